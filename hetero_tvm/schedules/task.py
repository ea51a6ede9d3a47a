"""Tuning tasks: the distinct kernels of a model, each with its operator, space and uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hetero_tvm.host.peaks import FLOAT32
from hetero_tvm.host.terminal import figure, number_of
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.schedules.sampled import SampledSpace

if TYPE_CHECKING:  # records are read, and the first process is started, before the compiler is imported
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class Task:
    """One distinct kernel of a model.

    Parameters
    ----------
    key : identity of the workload (structural hash of the unscheduled TensorIR), hexadecimal.
    name : readable label, unique within the model; also the name of the kernel in the library.
    op : the contract; None for a generic kernel that no operator contract covers.
    workload : the unscheduled PrimFunc (inputs, then the output).
    space : the design space that serves it; None when only the stock rules and the generic
        schedule are left.
    calls : for each call in the model, the names of the source nodes that it stands for.
    flops, nbytes : work and least traffic of one call.
    sampled : the user's own space, instead of the stock rules; only where ``space`` is None.
    weight : what each call counts, where a model is tuned at several lengths.
    arithmetic : kind of arithmetic that it spends its time on, whose peak bounds it.
    """

    key: str
    name: str
    op: FusedOp | None
    workload: PrimFunc
    space: DesignSpace | None
    calls: tuple[tuple[str, ...], ...]
    flops: int
    nbytes: int
    sampled: SampledSpace | None = None
    weight: float = 1.0
    arithmetic: str = FLOAT32

    def __repr__(self) -> str:
        space = self.space.name if self.space is not None else "no space"
        calls = number_of(self.count, "call")
        return f"<Task {self.name!r}: {calls}, {figure(self.flops / 1e6, 4)} MFLOP each, {space}>"

    @property
    def count(self) -> int:
        """Calls of this kernel per inference."""
        return len(self.calls)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the model's constants that a call reads as a whole, as far as is known."""
        return self.op.weight_bytes if self.op is not None else 0

    @property
    def uses(self) -> float:
        """Calls of this kernel per inference, of all lengths that the model is tuned at on average."""
        return self.count * self.weight


def task_key(function: PrimFunc) -> str:
    """Structural hash of a workload, in which its name does not count; hexadecimal."""
    from hetero_tvm.host.tvm import shash2hex, tvm

    return shash2hex(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))


def symbol(name: str) -> str:
    """A task's name with ``_`` for what a C identifier cannot have."""
    return re.sub(r"\W", "_", name)
