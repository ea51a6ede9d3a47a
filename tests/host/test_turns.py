"""One thread at a time."""

import threading

from hetero_tvm.host.turns import Turns


def test_threads_wait_for_each_other_and_not_for_themselves():
    turns, order = Turns(), []

    def use():
        with turns.taken():
            order.append("second")

    other = threading.Thread(target=use)
    with turns.taken(), turns.taken():
        other.start()
        order.append("first")
    other.join()
    assert order == ["first", "second"]


def test_what_another_thread_had_is_free_in_a_forked_process(monkeypatch):
    turns, order = Turns(), []

    def use():
        with turns.taken():
            order.append("used")

    with turns.taken():
        monkeypatch.setattr("os.getpid", lambda: -1)
        other = threading.Thread(target=use)
        other.start()
        other.join(30)
        assert order == ["used"]
