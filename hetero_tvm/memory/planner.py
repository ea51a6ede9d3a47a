"""Offsets for buffers with known live ranges, so that the arena is as small as can be.

The work is done in C++ (``memory/cpp/planner*``): greedy first fit in several orders, local search
over orders, and an exact search with restarts that also proves bounds.  Without a C++ compiler
the same greedy orders run in Python, and the plan says so.

Sources: MiniMalloc (M. D. Moffitt, ASPLOS 2023), TelaMalloc (M. Maas et al., ASPLOS 2023); the
greedy by size is that of TensorFlow Lite (Y. Pisarchyk and J. Lee, MLSys 2020).
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Sequence

from hetero_tvm.errors import HeteroTVMError, NativeBuildError, UsageError
from hetero_tvm.memory import greedy
from hetero_tvm.memory.plan_data import Plan
from hetero_tvm.memory.problem import LIMIT, Buffer, Problem, is_alignment

DEFAULT_SECONDS = 5.0
_METHODS = ("trivial", "greedy", "local search", "exact search")
_MOST_BUFFERS = 2**31 - 1


def plan(
    problem: Problem,
    *,
    capacity: int | None = None,
    seconds: float = DEFAULT_SECONDS,
    alignment: int = 1,
    seed: int = 0,
    keep_on_interrupt: bool = False,
) -> Plan:
    """Give every buffer an offset.

    Parameters
    ----------
    capacity : bytes.  Given: stop at the first plan within it, or when it is proven that there is
        none.  None: look for the lowest peak until it is proven lowest or the time is over.
    seconds : limit of the search, wall clock; the greedy start may take longer on huge problems.
    alignment : bytes, a power of two; every offset is a multiple of it, unless the buffer has its own.
    seed : seed of the search.  The same seed gives the same plan as long as time does not run out, in
        whatever order the buffers come (but where greedy by size in just that order is better still).
    keep_on_interrupt : Ctrl-C ends the search with the best plan so far, instead of an exception.

    The plan is always valid; whether it fits is ``Plan.fits``.  Raises :class:`UsageError` for
    arguments out of range.
    """
    if capacity is not None and capacity < 0:
        raise UsageError(f"capacity must be 0 or more, got {capacity}")
    if not 0 < seconds < float("inf"):
        raise UsageError(f"seconds must be a positive number, got {seconds}")
    if not is_alignment(alignment):
        raise UsageError(f"alignment must be a power of two up to 2**32, got {alignment}")
    buffers = [b for b in problem.buffers if b.size > 0 and b.upper > b.lower]
    aligns = [b.alignment or alignment for b in buffers]
    if len(buffers) > _MOST_BUFFERS or sum(b.size + a for b, a in zip(buffers, aligns, strict=True)) >= LIMIT:
        raise UsageError("the sum of all sizes, each with its alignment, is beyond 2**62")
    note = library = None
    try:
        library = _library()
    except NativeBuildError as error:
        note = f"{error.message}: only greedy orders in Python were tried"
    start = time.perf_counter()  # compiling, once per machine, is no planning
    if library is None:
        interrupted = False
        offsets, peak, bound, method, decisions = _in_python(buffers, aligns)
    else:
        (offsets, peak, bound, method, decisions), interrupted = _in_cpp(
            library, buffers, aligns, capacity, seconds, seed, keep_on_interrupt
        )
    placed = {b.id: 0 for b in problem.buffers}
    placed.update({b.id: offset for b, offset in zip(buffers, offsets, strict=True)})
    return Plan(
        offsets=placed,
        peak=peak,
        lower_bound=bound,
        optimal=peak == bound,
        method=method,
        seconds=time.perf_counter() - start,
        capacity=capacity,
        alignment=alignment,
        note=note,
        interrupted=interrupted,
        decisions=decisions,
    )


Outcome = tuple[Sequence[int], int, int, str, int]  # offsets, peak, lower bound, method, decisions


def _in_python(buffers: Sequence[Buffer], aligns: Sequence[int]) -> Outcome:
    offsets, peak = greedy.best_of_orders(buffers, aligns)
    return offsets, peak, Problem(buffers).max_live(), "greedy (Python)", 0


def _in_cpp(
    library: ctypes.CDLL,
    buffers: Sequence[Buffer],
    aligns: Sequence[int],
    capacity: int | None,
    seconds: float,
    seed: int,
    keep_on_interrupt: bool,
) -> tuple[Outcome, bool]:
    """Run the C++ planner; gives the outcome, and whether the user ended the search."""
    count = len(buffers)
    array = ctypes.c_int64 * count
    lower, upper = array(*(b.lower for b in buffers)), array(*(b.upper for b in buffers))
    size, align = array(*(b.size for b in buffers)), array(*aligns)
    offsets, result, stop = array(), (ctypes.c_int64 * 4)(), ctypes.c_int(0)
    limit = -1 if capacity is None else min(capacity, LIMIT)
    failed: list[int] = []

    def work() -> None:
        status = library.hetero_plan_memory(
            count, lower, upper, size, align, limit, seconds, seed, ctypes.byref(stop), offsets, result
        )
        if status:
            failed.append(status)

    # In a thread of its own, so that Ctrl-C reaches Python while C++ is at work.
    thread = threading.Thread(target=work, name="hetero_tvm-planner", daemon=True)
    interrupted = False
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
    except BaseException as error:
        stop.value = 1
        thread.join()
        if not (keep_on_interrupt and isinstance(error, KeyboardInterrupt)):
            raise
        interrupted = True
    if failed:
        raise HeteroTVMError(f"not enough memory to plan {count} buffers")
    peak, bound, method, decisions = result
    return (list(offsets), peak, bound, _METHODS[method], decisions), interrupted


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    from hetero_tvm.host import native

    path = native.compile_shared(["memory/cpp/planner.cc"], flags=["-O3", "-march=native"], name="planner")
    library = ctypes.CDLL(str(path))
    numbers = ctypes.POINTER(ctypes.c_int64)
    library.hetero_plan_memory.restype = ctypes.c_int
    ranges = [ctypes.c_int64, *[numbers] * 4]  # count, lower, upper, size, alignment
    limits = [ctypes.c_int64, ctypes.c_double, ctypes.c_uint64]  # capacity, seconds, seed
    results = [ctypes.POINTER(ctypes.c_int), numbers, numbers]  # stop flag, offsets, outcome
    library.hetero_plan_memory.argtypes = [*ranges, *limits, *results]
    return library
