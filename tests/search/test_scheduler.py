from hetero_tvm.search.scheduler import Progress, pick


def test_unmeasured_tasks_come_first():
    assert pick([Progress(9, history=[1.0]), Progress(1)]) == 1


def test_the_task_with_more_to_gain():
    assert pick([Progress(1, history=[1.0]), Progress(10, history=[1.0])]) == 1
    assert pick([Progress(1, history=[3.0]), Progress(1, history=[1.0])]) == 0
    # At its roofline there is little to gain.
    assert pick([Progress(1, floor=2.9, history=[3.0]), Progress(1, floor=0.1, history=[1.0])]) == 1
    # Long without improvement: the other one's turn.
    assert pick([Progress(1, history=[1.0] * 9), Progress(1, history=[0.9])]) == 1
    # Still improving.
    assert pick([Progress(1, history=[9.0, 5.0, 3.0, 2.0]), Progress(1, history=[2.0] * 4)]) == 0


def test_a_heavy_task_that_gains_nothing_starves_no_other():
    heavy, light = Progress(1, floor=1.6, history=[1.8]), Progress(1, floor=0.09, history=[0.15])
    rounds = 0
    while pick([heavy, light]) == 0:
        heavy.round_done(1.8)
        rounds += 1
    assert 1 <= rounds <= 4
    heavy.round_done(1.7)  # a gain: worth more rounds
    assert pick([heavy, light]) == 0


def test_a_wrong_roofline_stops_nobody():
    assert pick([Progress(1, floor=5.0, history=[1.0]), Progress(9, floor=5.0, history=[1.0])]) == 1


def test_exhausted_tasks_are_left_alone():
    assert pick([Progress(9, history=[1.0], exhausted=True), Progress(1, history=[1e-9])]) == 1
    assert pick([Progress(1, exhausted=True)]) is None
    assert pick([]) is None


def test_a_task_without_a_valid_candidate_is_tried_less_and_less():
    failing = Progress(1, history=[float("inf")])
    first = failing.gain()
    failing.round_done(float("inf"))
    assert failing.gain() < first
