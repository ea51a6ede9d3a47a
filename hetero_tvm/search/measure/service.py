"""The measuring service, as the search sees it: jobs in, results out.

Three services measure: processes forked on this machine (``forked_workers.py``), devices that one process
owns (``device_workers.py``), and an NPU's simulator (``targets/npu/tuning``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hetero_tvm.machines.base import Machine
from hetero_tvm.machines.roofs import Roofs
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.records import candidates
from hetero_tvm.schedules.base import DesignSpace

if TYPE_CHECKING:  # the first process is started before the compiler is imported
    from hetero_tvm.host.tvm import PrimFunc

OK = "ok"
BUILD_ERROR = "build_error"
TIMEOUT = "timeout"
CRASH = "crash"
DISTURBED = "disturbed"
"""Status of a candidate that ran and was right, while others took the cores: its time says nothing."""


@dataclass(frozen=True)
class Limits:
    """Limits of one candidate.

    Parameters
    ----------
    build_seconds : time of building; that of the processor, where others have kept it waiting.
    run_seconds : wall time of checking plus timing.
    memory : bytes of address space beyond what the fork server itself has mapped.
    """

    build_seconds: float = 20.0
    run_seconds: float = 10.0
    memory: int = 4 << 30


@dataclass(frozen=True)
class Job:
    """Work of one child process: a candidate to measure, or several to compare side by side.

    Parameters
    ----------
    limit : seconds per call; a single candidate slower than this is not timed to the end.
    budget : seconds of timing per candidate.
    store_reference : the first candidate is ``plain``: it is run once, and its result is what the
        other candidates of this task, in this job and later, must reproduce.
    run_seconds : deadline of checking and timing; default that of :class:`Limits`.
    group_size : neighbouring jobs of one candidate each that may share a child process, as long as none
        of them misbehaves: half of what LLVM costs for a small kernel does not depend on it.
    """

    task: str
    candidates: tuple[candidates.Candidate, ...]
    limit: float | None = None
    budget: float = 0.014
    store_reference: bool = False
    run_seconds: float | None = None
    group_size: int = 1


@dataclass(frozen=True)
class Result:
    """Outcome of one candidate: ``seconds`` per call when ``status`` is ``ok``, else ``text`` says why.

    Parameters
    ----------
    spread, disturbed : see :class:`hetero_tvm.search.measure.timing.Timing`.  A candidate whose status is
        ``disturbed`` has seconds too; they are too many.
    """

    status: str
    seconds: float | None = None
    text: str = ""
    spread: float = 0.0
    disturbed: float = 0.0

    @property
    def ok(self) -> bool:
        return self.status == OK


class Workers(Protocol):
    """A service that builds, checks and times candidates.

    Attributes
    ----------
    spent : seconds that candidates took, by phase.
    """

    spent: dict[str, float]

    def add_task(self, name: str, spec: Mapping[str, Any]) -> None:
        """Declare a task (:func:`contract_spec`, :func:`generic_spec`); prepared on first use."""
        ...

    def wait_ready(self) -> None:
        """Block until jobs are taken.  :class:`TuningError` when the service cannot start."""
        ...

    def measure(
        self, jobs: Sequence[Job], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, list[Result]]]:
        """Run jobs; yields (index in ``jobs``, one result per candidate) as each is known.

        ``stop`` is asked several times per second; when it says yes, candidates in flight are killed
        and the iteration ends.
        """
        ...

    def roofs(self) -> Roofs | None:
        """Peaks of what measures; None where they are those of this machine's cores."""
        ...

    def close(self) -> None:
        """End whatever runs."""
        ...


def contract_spec(op: FusedOp, space: DesignSpace) -> dict[str, Any]:
    """Wire description of a task with a contract and a design space."""
    return {"op": op.to_json(), "space": candidates.type_reference(space), "workload": None}


def generic_spec(workload: PrimFunc, schedule: str) -> dict[str, Any]:
    """Wire description of a task that only has its unscheduled TensorIR.

    ``schedule``: ``module:function`` of its untuned schedule, ``(PrimFunc, machine) -> PrimFunc``.
    """
    from hetero_tvm.host.tvm import tvm

    return {"op": None, "space": None, "workload": tvm.ir.save_json(workload), "generic": schedule}


def wire_task(
    spec: Mapping[str, Any], machine: Machine, target: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """A task's description with the machine it is built for; ``seed`` is that of its random inputs."""
    return {
        **spec,
        "machine": machine.to_json(),
        "machine_type": candidates.type_reference(machine),
        "target": target,
        "seed": seed,
    }
