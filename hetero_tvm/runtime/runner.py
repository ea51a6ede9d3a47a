"""Threads that models run on: TVM has a pool of workers per calling thread, so calls come from few threads.

Work of every caller goes to a thread of ours, which keeps one pool of one size on its cores: 200 callers
leave one pool behind, not 200, and none of their affinity masks is touched.  Handing over takes 5 to 10 us.
A forked child has no such thread; it starts one of its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from hetero_tvm.runtime.forking import CallGuard
from hetero_tvm.runtime.threads import ThreadPinning, attach
from hetero_tvm.runtime.tvm_runtime import TVMRuntime

T = TypeVar("T")


class Runner:
    """A thread with a pool of workers; runs one piece of work at a time.

    Raises :class:`hetero_tvm.errors.LibraryError` when the pool cannot be had.
    """

    def __init__(self, runtime: TVMRuntime, pinning: ThreadPinning):
        self.gone = False
        """Whether this is the memory of a thread that stayed behind in the parent of a fork."""
        self._turn = CallGuard("a call", inner=True)
        self._wake, self._done = threading.Lock(), threading.Lock()
        self._wake.acquire()
        self._done.acquire()
        self._work: Callable[[], Any] | None = None
        self._outcome: tuple[Any, BaseException | None] = (None, None)
        self._stopped = False
        threading.Thread(target=self._loop, name="hetero_tvm", daemon=True).start()
        _runners.add(self)
        self.run(lambda: _settle(runtime, pinning))

    def run(self, work: Callable[[], T]) -> T:
        """Result of ``work()``, called in the thread."""
        with self._turn:
            self._work = work
            try:
                self._start()
                self._done.acquire()
            except BaseException:  # of a signal handler; the work uses buffers of the caller, so it must end
                self._finish()
                raise
            (result, error), self._outcome = self._outcome, (None, None)
        if error is None:
            return result
        try:
            raise error
        finally:
            error = None  # no circle of the error, its traceback and this frame

    def stop(self) -> None:
        """End the thread, and with it the pool."""
        self._stopped = True
        self._start()

    def _start(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is awake
            self._wake.release()

    def _finish(self) -> None:
        while self._work is not None:
            with contextlib.suppress(BaseException):
                self._start()
                self._done.acquire(timeout=0.05)
        self._done.acquire(blocking=False)
        self._outcome = (None, None)

    def _loop(self) -> None:
        while True:
            self._wake.acquire()
            work = self._work
            if work is not None:
                try:
                    self._outcome = (work(), None)
                except BaseException as error:
                    self._outcome = (None, error)
                self._work = work = None
                self._done.release()
            elif self._stopped:
                return


def _settle(runtime: TVMRuntime, pinning: ThreadPinning) -> None:
    attach(runtime, pinning)
    if pinning.cores:
        os.sched_setaffinity(0, {pinning.cores[0]})


_runners: weakref.WeakSet[Runner] = weakref.WeakSet()
_shared: dict[ThreadPinning, Runner] = {}
_lock = threading.Lock()


def runner(runtime: TVMRuntime, pinning: ThreadPinning, owner: object) -> Runner:
    """A thread for the calls of ``owner``, a library.

    Libraries with the same pool of several threads share it: side by side they would only wait for one
    another.  With one thread each runs beside the others.
    """
    if pinning.threads == 1:
        own = Runner(runtime, pinning)
        weakref.finalize(owner, own.stop)
        return own
    with _lock:
        if pinning not in _shared:
            _shared[pinning] = Runner(runtime, pinning)
        return _shared[pinning]


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _shared.clear()
    for runner in list(_runners):
        runner.gone = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
