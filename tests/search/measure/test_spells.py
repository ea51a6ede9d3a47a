from hetero_tvm.search.measure.spells import Spells, cores_in_use


class Machine:
    """Cores that another process leaves at some moment, by a clock that looking advances."""

    def __init__(self, until):
        self.now, self.until = 0.0, until

    def others(self):
        self.now += 0.25
        return 0.9 if self.now < self.until else 0.01

    def spells(self, patience):
        return Spells(patience, self.others, lambda: self.now)


def test_a_spell_is_waited_out():
    machine = Machine(until=10)
    spells = machine.spells(60)
    assert spells.wait(lambda: False)
    assert 9.5 < spells.waited < 10.5


def test_patience_is_that_of_a_whole_run():
    machine = Machine(until=1e9)
    spells = machine.spells(5)
    assert not spells.wait(lambda: False) and 5 <= spells.waited < 5.5
    assert not spells.wait(lambda: False) and spells.waited < 5.5


def test_each_look_at_cores_in_use_is_told():
    machine, told = Machine(until=0.75), []
    spells = machine.spells(60)
    spells.on_look = lambda busy, left: told.append((busy, left))
    assert spells.wait(lambda: False)
    assert told == [(0.9, 59.75), (0.9, 59.5)]


def test_a_run_that_is_stopped_does_not_wait():
    spells = Machine(until=1e9).spells(60)
    assert not spells.wait(lambda: True) and spells.waited == 0


def test_the_cores_of_this_machine():
    assert 0 <= cores_in_use() < 1.5
