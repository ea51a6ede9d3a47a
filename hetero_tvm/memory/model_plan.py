"""Memory of one inference as data: tensors, the bytes they share and when, for the manifest and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hetero_tvm.errors import UsageError, shortened
from hetero_tvm.memory.check import PlanError, check_plan
from hetero_tvm.memory.plan_data import Plan
from hetero_tvm.memory.problem import Buffer, Problem, max_live

VERSION = 1


@dataclass(frozen=True)
class Tensor:
    """A tensor in an arena.  Tensors of the same ``buffer`` share memory on purpose (in place)."""

    name: str
    """Name of its variable in the graph, which is a source node's name where there is one."""
    kernel: str
    """Kernel that writes it; a workspace is written and read by it alone."""
    buffer: str
    lower: int
    """First step that uses the tensor."""
    upper: int
    """First step after the last use."""
    nbytes: int
    nodes: tuple[str, ...] = ()
    """Source nodes that the tensor stands for."""
    workspace: bool = False
    """Scratch of one kernel call instead of a tensor of the graph."""
    begin: int = 0
    """First byte within the buffer, of a part of a concatenation."""


@dataclass(frozen=True)
class Arena:
    """Block of memory on one device, allocated once; all sizes and offsets are in bytes."""

    device: str
    tensors: tuple[Tensor, ...]
    plan: Plan

    @property
    def problem(self) -> Problem:
        """The planning problem: a buffer per group of tensors that share memory."""
        ranges: dict[str, tuple[int, int, int]] = {}
        for t in self.tensors:
            lower, upper, size = ranges.get(t.buffer, (t.lower, t.upper, t.nbytes))
            ranges[t.buffer] = min(lower, t.lower), max(upper, t.upper), max(size, t.nbytes)
        return Problem(Buffer(name, *values) for name, values in ranges.items())

    def row(self, tensor: Tensor) -> dict[str, Any]:
        """A tensor with its first byte in the arena, as JSON values."""
        begin = self.plan.offsets[tensor.buffer] + tensor.begin
        return {**asdict(tensor), "nodes": list(tensor.nodes), "offset": begin}

    @property
    def naive(self) -> int:
        """Sum of all tensors' bytes: the arena without any sharing."""
        return sum(t.nbytes for t in self.tensors)

    @property
    def live_without_sharing(self) -> int:
        """Largest number of bytes live at once if nothing worked in place."""
        return max_live((t.lower, t.upper, t.nbytes) for t in self.tensors)


@dataclass(frozen=True)
class MemoryPlan:
    """Memory that a call of the model uses beside weights, inputs and outputs."""

    arenas: tuple[Arena, ...] = ()
    steps: int = 0
    """Number of kernel calls; live ranges are positions in their order."""
    static_plan: int | None = None
    """Bytes that TVM's StaticPlanBlockMemory takes for the same tensors."""
    outputs: int = 0
    """Bytes allocated per call for the results, which belong to the caller."""
    constant_results: tuple[int, ...] = ()
    """Results, by number, that are or may be constants of the library: the same memory at every call."""
    in_place: tuple[str, ...] = ()
    """Tensors that were written over an input of their kernel."""
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Concatenations whose parts are written where they belong, so that nothing is copied -> source nodes."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Kernel and operand -> why it could not work in place though nobody reads the operand later."""
    stack: Mapping[str, int] = field(default_factory=dict)
    """Kernel -> bytes of scratch of each thread outside of the arena (from the runtime's pool)."""

    def __repr__(self) -> str:
        return f"<MemoryPlan: {self.peak:,} bytes, lower bound {self.lower_bound:,}, {self.steps} steps>"

    @property
    def peak(self) -> int:
        """Size of all arenas, in bytes."""
        return sum(arena.plan.peak for arena in self.arenas)

    @property
    def lower_bound(self) -> int:
        """Largest number of bytes live at once: no plan needs less."""
        return sum(arena.plan.lower_bound for arena in self.arenas)

    @property
    def naive(self) -> int:
        """Bytes that the arenas would need without any sharing."""
        return sum(arena.naive for arena in self.arenas)

    def verify(self) -> None:
        """Check independently of the planner that nothing overlaps what is live beside it.

        Raises :class:`PlanError` with all findings.
        """
        problems = []
        for arena in self.arenas:
            plan = arena.plan
            sizes = {buffer.id: buffer.size for buffer in arena.problem.buffers}
            problems += [
                f"{arena.device}: {t.name} at byte {t.begin} of {t.buffer} ends beyond it or is not aligned"
                for t in arena.tensors
                if t.begin % plan.alignment or t.begin + t.nbytes > sizes[t.buffer]
            ]
            try:
                check_plan(arena.problem, plan.offsets, capacity=plan.peak, alignment=plan.alignment)
            except PlanError as error:
                problems += [f"{arena.device}: {text}" for text in error.problems]
        if problems:
            raise PlanError("the memory plan is wrong", problems=shortened(problems))

    def to_json(self) -> dict[str, Any]:
        """JSON values; :meth:`from_json` reads them back.  Times are left out: they differ by build."""
        return {
            "version": VERSION,
            "peak": self.peak,
            "lower_bound": self.lower_bound,
            "naive": self.naive,
            "static_plan": self.static_plan,
            "outputs": self.outputs,
            "constant_results": list(self.constant_results),
            "steps": self.steps,
            "arenas": [
                {
                    "device": arena.device,
                    "plan": {name: v for name, v in arena.plan.to_dict().items() if name != "seconds"},
                    "tensors": [arena.row(t) for t in arena.tensors],
                }
                for arena in self.arenas
            ],
            "in_place": list(self.in_place),
            "joined": {name: list(nodes) for name, nodes in self.joined.items()},
            "refused": dict(self.refused),
            "stack": dict(self.stack),
        }

    @classmethod
    def from_json(cls, data: Any) -> MemoryPlan:
        """Read :meth:`to_json`'s values; raises :class:`UsageError` for another version or missing fields."""
        if not isinstance(data, Mapping) or data.get("version") != VERSION or "arenas" not in data:
            raise UsageError(
                f"this is no memory plan of version {VERSION}", hint="export the model again for one"
            )
        try:
            arenas = tuple(
                Arena(
                    arena["device"],
                    tuple(
                        Tensor(**{k: tuple(v) if k == "nodes" else v for k, v in t.items() if k != "offset"})
                        for t in arena["tensors"]
                    ),
                    Plan.from_dict(arena["plan"]),
                )
                for arena in data["arenas"]
            )
            plain = {name: data[name] for name in ("steps", "static_plan", "outputs")}
            mappings: dict[str, Any] = {name: dict(data[name]) for name in ("refused", "stack")}
            mappings["joined"] = {name: tuple(nodes) for name, nodes in data.get("joined", {}).items()}
            constants = tuple(data.get("constant_results", ()))
            in_place = tuple(data["in_place"])
            return cls(arenas, constant_results=constants, in_place=in_place, **plain, **mappings)
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"the memory plan is damaged: {error!r}") from error
