"""Locks that survive a fork: a child never waits for a call that only its parent's threads could finish."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref

from hetero_tvm.errors import LibraryError

PATIENCE_S = 5.0
"""Longest time that a fork waits for calls which are running in other threads."""


class CallGuard:
    """Lock around what must be whole when a process forks, and must not be entered twice by a thread.

    A fork waits until it is free; where that takes longer than :data:`PATIENCE_S`, the child gets an error
    instead of a virtual machine that stands in the middle of a call.

    Parameters
    ----------
    what : what goes on inside, for messages.
    """

    def __init__(self, what: str):
        self._what = what
        self.lock = threading.RLock()
        """The lock itself, for ``with`` after :meth:`admit`: unlike a method in Python it leaves no moment in
        which the exception of a signal handler finds it taken and nobody there to release it."""
        self._torn = False
        self.held_for_fork = False
        _guards.add(self)

    def __enter__(self) -> None:
        self.admit()
        self.lock.acquire()

    def admit(self) -> None:
        """Wait for a fork to be over.  :class:`LibraryError` where this thread or process must not enter."""
        # An RLock knows its owner without a moment in between where a signal could come.
        if self.lock._is_owned() and not _ending:  # type: ignore[attr-defined]
            raise LibraryError(
                f"{self._what} was interrupted in this thread, by a signal handler say, and is not finished",
                hint="set a flag in the handler, and call the library where the flag is read",
            )
        if self._torn:
            raise LibraryError(
                f"this process was forked in the middle of {self._what}, in another thread of its parent",
                hint="load the library after forking, in the child",
            )
        while _forking:  # or callers in a loop would never let the fork in
            time.sleep(1e-4)

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def before_fork(self, deadline: float) -> None:
        """Wait until nobody is inside."""
        if not self.lock._is_owned():  # type: ignore[attr-defined]
            self.held_for_fork = self.lock.acquire(timeout=max(0.0, deadline - time.monotonic()))

    def after_fork(self, child: bool) -> None:
        """Set free what :meth:`before_fork` holds."""
        if self.held_for_fork:
            self.held_for_fork = False
            self.lock.release()
        elif child:
            self._torn, self.lock = True, threading.RLock()


_guards: weakref.WeakSet[CallGuard] = weakref.WeakSet()
_waiting: list[CallGuard] = []
_forking = False
_ending = False


def _before() -> None:
    global _forking
    _forking = True
    deadline = time.monotonic() + PATIENCE_S
    _waiting[:] = _guards
    for guard in _waiting:
        guard.before_fork(deadline)


def _after(child: bool) -> None:
    global _forking
    for guard in _waiting:
        guard.after_fork(child)
    _forking = False
    _waiting.clear()


def _at_exit() -> None:
    """Wait for calls in daemon threads, and let no other in.

    The interpreter ends such a thread where it comes back from a call, and the C++ under that call would
    abort the process.  What is left of the main thread may go on calling: it holds every lock.
    """
    global _ending, _forking
    _forking = True  # as for a fork: callers in a loop must let this thread in
    deadline = time.monotonic() + PATIENCE_S
    for guard in list(_guards):
        if not guard.lock._is_owned():  # type: ignore[attr-defined]
            guard.lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
    _ending, _forking = True, False


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=lambda: _after(False),
        after_in_child=lambda: _after(True),
    )
