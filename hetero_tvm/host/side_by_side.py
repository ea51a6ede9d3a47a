"""Work that goes on outside of Python, on all cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from hetero_tvm.host.cores import available_cores

_Subject = TypeVar("_Subject")
_Result = TypeVar("_Result")

_STACK = 64 << 20
"""Bytes of stack of a thread: LLVM goes deep, and without a limit for the process a thread has 2 MB."""


def side_by_side(task: Callable[[_Subject], _Result], subjects: Iterable[_Subject]) -> list[_Result]:
    """Results of a task for each subject, in their order, worked out by as many threads as there are cores.

    What fails first is raised, and what has not begun by then never does.
    """
    subjects = list(subjects)
    workers = min(len(available_cores()), len(subjects))
    if workers < 2:
        return [task(subject) for subject in subjects]
    with _deep_stacks():
        pool = ThreadPoolExecutor(workers)
        try:
            return list(pool.map(task, subjects))
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _deep_stacks() -> Iterator[None]:
    """Threads that begin now have stacks of :data:`_STACK` bytes."""
    before = threading.stack_size(_STACK)
    try:
        yield
    finally:
        threading.stack_size(before)
