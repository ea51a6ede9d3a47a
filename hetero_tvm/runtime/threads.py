"""Number of threads that a library runs on, and the cores that they are pinned to.

The threads are those of the process's one pool (``cpp/pool/``), which every call tells how many of them it
wants, and where.
"""

from __future__ import annotations

import ctypes
import operator
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from hetero_tvm import host
from hetero_tvm.errors import UsageError
from hetero_tvm.host.cores import parse_cores

THREADS_VARIABLE = "HETERO_TVM_THREADS"
PIN_VARIABLE = "HETERO_TVM_PIN"


@dataclass(frozen=True)
class ThreadPinning:
    """Threads of a call, the calling one included.

    Parameters
    ----------
    threads : number of them.
    cores : where thread *i* is kept on ``cores[i]``; None: the scheduler decides.
    asked : whether somebody asked for that number, so that it holds in a forked child with fewer cores too.
    """

    threads: int
    cores: tuple[int, ...] | None = None
    asked: bool = field(default=True, compare=False)

    def limits(self) -> Limits:
        """The same for the pool."""
        cores = self.cores or ()
        array = (ctypes.c_int32 * max(1, len(cores)))(*cores)
        return Limits(self.threads if self.asked else -self.threads, len(cores), array)


class Limits(ctypes.Structure):
    """``Limits`` of ``cpp/pool/pool.h``, field by field."""

    _fields_ = [
        ("threads", ctypes.c_int32),
        ("pinned", ctypes.c_int32),
        ("core", ctypes.POINTER(ctypes.c_int32)),
    ]


def choose_pinning(threads: int | None = None, pin: bool | Iterable[int] | None = None) -> ThreadPinning:
    """Number of threads and their cores, from arguments and environment.

    Threads: ``threads``, else ``$HETERO_TVM_THREADS``, else the length of a list of cores, else
    one per available core.  Cores: ``pin``, else ``$HETERO_TVM_PIN`` (``0`` no, ``1`` yes, or
    core ids such as ``2,3`` or ``4-7``; a lone core 0 or 1 is written ``0,``).  By default threads are
    not pinned: other processes may sit on any core, and the scheduler knows better.

    Raises :class:`UsageError` for impossible requests.
    """
    if pin is None:
        pin = _pin_from_environment()
    listed = None if pin is None or isinstance(pin, bool) else _cores(pin)
    available = host.available_cores()
    count = threads if threads is not None else _threads_from_environment()
    asked = count is not None or listed is not None
    if count is None:
        count = len(listed) if listed else len(available)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"threads must be a whole number of at least 1, got {count!r}")
    most = max(os.cpu_count() or 1, len(available))
    if listed is None and not pin and count > most:
        raise UsageError(
            f"{count} threads were asked for, the limit on this machine is {most}, one per core",
            hint=f"threads={len(available)}, or {THREADS_VARIABLE}={len(available)}",
        )
    if listed is not None:
        return ThreadPinning(count, _checked(listed, count))
    if not pin:
        return ThreadPinning(count, asked=asked)
    if count > len(available):
        raise UsageError(
            f"{count} threads cannot be pinned to {len(available)} available cores",
            hint=f"threads={len(available)}, or pin=False",
        )
    return ThreadPinning(count, available[:count])


def _threads_from_environment() -> int | None:
    text = os.environ.get(THREADS_VARIABLE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10) or int(text) < 1:
        raise UsageError(f"{THREADS_VARIABLE}={text!r} is not a whole number of at least 1")
    return int(text)


def _cores(pin: Iterable[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(core) for core in pin)
    except TypeError:
        raise UsageError(
            f"pin is True, False or a list of cores, not {pin!r}", hint="pin=[0, 1], or HETERO_TVM_PIN=0,1"
        ) from None


def _pin_from_environment() -> bool | tuple[int, ...] | None:
    text = os.environ.get(PIN_VARIABLE, "").strip()
    if text in ("", "0", "1"):
        return {"": None, "0": False, "1": True}[text]
    try:
        return tuple(parse_cores(text))
    except ValueError:
        raise UsageError(
            f"{PIN_VARIABLE}={text!r} is not 0, 1, or a list of core ids", hint=f"{PIN_VARIABLE}=2,3"
        ) from None


def _checked(cores: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The first ``count`` of ``cores``; raises :class:`UsageError` where they cannot be had."""
    allowed = os.sched_getaffinity(0)
    problems = [f"core {core} is not available to this process" for core in cores if core not in allowed]
    if len(set(cores)) != len(cores):
        problems.append("a core is listed twice")
    if len(cores) < count:
        problems.append(f"{count} threads need {count} cores, {len(cores)} are listed")
    if problems:
        raise UsageError(
            f"cannot pin to cores {list(cores)}",
            problems=problems,
            hint=f"choose among {sorted(allowed)}",
        )
    return cores[:count]
