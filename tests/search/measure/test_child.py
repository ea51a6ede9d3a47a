"""What a candidate process watches while it times kernels."""

import threading

import numpy as np
import pytest

pytest.importorskip("tvm")

from hetero_tvm.search.measure import child, timing


class Pool:
    """Kernels that share a thread, which the first call starts."""

    def __init__(self):
        self.once, self.ended, self.thread = 0.0, threading.Event(), None

    def run_once(self):
        if self.thread is None:
            self.thread = threading.Thread(target=self.ended.wait)
            self.thread.start()
        return np.zeros(1)

    results = run_once

    def call(self):
        return self.run_once


class Told:
    def __init__(self):
        self.messages = []

    def send(self, message):
        self.messages.append(message)


def test_the_threads_of_the_pool_are_watched_for_every_member_of_a_group(monkeypatch):
    watched = []

    class Watch:
        def __init__(self, threads, cores):
            watched.append(set(threads))

        def lost(self):
            return 0.0

        def close(self):
            pass

    monkeypatch.setattr(child, "Disturbance", Watch)
    monkeypatch.setattr(child, "_fault", lambda task, result: None)
    monkeypatch.setattr(timing, "pin_threads", lambda workers, cores: None)
    pool, told = Pool(), Told()
    job = {"store_reference": False, "cores": [0, 1], "budget": 1e-4, "limit": None}
    before = timing.threads_now()
    try:
        child._one_by_one(None, job, [pool, pool], [None, None], child._Clock(), told, before)
    finally:
        pool.ended.set()
        pool.thread.join()
    assert len(watched) == 2 and all(pool.thread.native_id in threads for threads in watched)
    assert [message["result"][0] for message in told.messages if "result" in message] == ["ok", "ok"]
