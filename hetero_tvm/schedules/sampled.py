"""Design spaces that users write for kernels of their own, with MetaSchedule's sampling instructions.

The spaces of this project emit a kernel from a point's choices.  A user's space is a function over a TensorIR
schedule instead: it splits, reorders and annotates, and wherever something is to be found out it samples
(``sample_perfect_tile``, ``sample_categorical``, ``sample_compute_location``).  A candidate is the trace of
one such run, so that MetaSchedule's mutators, its features with its XGBoost model, and its database apply.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hetero_tvm.errors import UsageError, last_line
from hetero_tvm.machines.base import Machine

if TYPE_CHECKING:  # see task.py
    from hetero_tvm.host.tvm import PrimFunc

USER = "user."
"""Prefix of these spaces' names, in records too."""

Sampler = Callable[..., None]
"""Schedules a kernel in place: takes its ``tvm.s_tir.Schedule``, and the :class:`Machine` if it has room."""


@dataclass(frozen=True)
class SampledSpace:
    """A user's design space for the kernels of certain names; made by :func:`design_space`.

    Parameters
    ----------
    name : of the space, as records have it: ``user.NAME``.
    kernels : names of the functions that it schedules.
    version : raised whenever old traces should no longer be used.
    sample : the user's function.
    """

    name: str
    kernels: tuple[str, ...]
    version: int
    sample: Sampler

    def __call__(self, schedule: Any, machine: Machine) -> None:
        """Schedule one candidate in place."""
        takes_machine = len(inspect.signature(self.sample).parameters) > 1
        self.sample(schedule, machine) if takes_machine else self.sample(schedule)

    def default(self, workload: PrimFunc, machine: Machine) -> str | None:
        """Trace, as JSON text, of the space's own default; None where it leaves something to chance.

        A space has a default when it gives each of its samples a ``decision``.

        Raises
        ------
        UsageError : the user's function failed on this kernel.
        """
        first, second = (self._trace(workload, machine, seed) for seed in (1, 2))
        return first if first == second else None

    def _trace(self, workload: PrimFunc, machine: Machine, seed: int) -> str:
        from hetero_tvm.host.tvm import s_tir, tvm

        module = tvm.IRModule({"main": workload.with_attr("global_symbol", "main")})
        schedule = s_tir.Schedule(module, seed=seed)
        try:
            self(schedule, machine)
        except Exception as error:  # TVM's, or whatever else the user's function may raise
            raise UsageError(
                f"the design space {self.name} fails on the kernel {', '.join(self.kernels)}: "
                f"{type(error).__name__}: {last_line(error)}"
            ) from error
        return trace_text(schedule.trace)


def trace_text(trace: Any) -> str:
    """A trace as JSON text."""
    return json.dumps(trace.as_json(), default=_plain)


def _plain(value: Any) -> Any:
    """TVM's containers and numbers as JSON."""
    if hasattr(value, "items"):
        return dict(value.items())
    if hasattr(value, "__iter__"):
        return list(value)
    return getattr(value, "value", str(value))


def design_space(*kernels: str, version: int = 1) -> Callable[[Sampler], SampledSpace]:
    """Decorator that makes a design space of a function which schedules a kernel.

    >>> @design_space("scale_rows")
    ... def rows(schedule, machine):
    ...     row, column = schedule.get_loops(schedule.get_sblock("Y"))
    ...     outer, inner = schedule.split(column, schedule.sample_perfect_tile(column, 2, machine.lanes))
    ...     schedule.parallel(row)
    ...     schedule.vectorize(inner)

    Parameters
    ----------
    kernels : names of the functions (their ``global_symbol``, or their names in a Relax module).
    version : of the space; records of another one are not used.

    Raises
    ------
    UsageError : no kernel is named, or what is decorated cannot take a schedule.
    """
    if not kernels or not all(isinstance(name, str) and name for name in kernels):
        raise UsageError(
            "design_space takes the names of the kernels that the space is for",
            hint='for example @design_space("scale_rows")',
        )
    if not isinstance(version, int) or version < 1:
        raise UsageError(f"the version of a design space is a whole number from 1, not {version!r}")

    def decorate(sample: Sampler) -> SampledSpace:
        count = len(inspect.signature(sample).parameters) if callable(sample) else 0
        if count not in (1, 2):
            raise UsageError(
                "a design space is a function of a schedule, or of a schedule and a machine",
                hint="def space(schedule, machine): ...",
            )
        return SampledSpace(f"{USER}{sample.__name__}", kernels, version, sample)

    return decorate
