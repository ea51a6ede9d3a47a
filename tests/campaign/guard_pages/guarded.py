"""The process whose memory is guarded (``guard.cc`` is preloaded): models are built, run and compared here.

Every tensor of a call has a block of its own: the arena, in which they would be neighbours, is not used, and
the virtual machine's pool, which rounds sizes up to pages, neither.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

from hetero_tvm.host.tvm import IRModule, relax, tvm
from hetero_tvm.memory.model_plan import MemoryPlan
from hetero_tvm.relax_passes.rewriting.graph import Sources
from hetero_tvm.relax_passes.storage import plan_memory, rounds, workspaces

FILLS = (0xFF, 0x00, 0x4B)
"""Bytes of memory before it is written: NaN and -1, 0, and 13 million."""
_NAIVE = 1
"""TVM's allocator that asks for as many bytes as a tensor has."""
_ALLOCATION = tvm.ir.Op.get("relax.builtin.alloc_tensor")

planned = plan_memory.plan_memory


def _separately(
    module: IRModule, sources: Sources | None = None, *, share: bool = True
) -> tuple[IRModule, MemoryPlan]:
    """The module with an allocation for every tensor, and the plan that it would have had."""
    _, plan = planned(module, sources, share=share)
    return _allocated_before_loops(workspaces.as_arguments(module)), plan


def _allocated_before_loops(module: IRModule) -> IRModule:
    """The module, whose loops begin when all tensors are there: rounds are a function of their own."""
    if rounds.closed(module) is module:
        return module
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    first: list[relax.Binding] = []
    for one in bindings:
        value, there = one.value, {other.var for other in first}
        made = getattr(value, "op", None) == _ALLOCATION
        names = isinstance(value, (relax.Var, relax.Tuple, relax.TupleGetItem))  # of such tensors
        if made or (names and there.issuperset(relax.analysis.free_vars(value))):
            first.append(one)
    others = [one for one in bindings if not any(one.same_as(other) for other in first)]
    blocks = [relax.BindingBlock([*first, *others])]
    body = relax.SeqExpr(blocks, main.body.body)
    changed = module.clone()
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    changed.update_func(changed.get_global_var("main"), function)
    return changed


@contextlib.contextmanager
def blocks_of_their_own(arena: bool = False) -> Iterator[None]:
    """Give every tensor that a model is compiled or called with a block (``arena``: those outside of it)."""
    usual = relax.VirtualMachine
    with contextlib.ExitStack() as changed:
        change = changed.enter_context
        if not arena:
            change(mock.patch("hetero_tvm.relax_passes.pipeline.plan_memory", _separately))
        change(
            mock.patch.object(
                relax,
                "VirtualMachine",
                lambda module, device, memory_cfg=None, **more: usual(module, device, "naive", **more),
            )
        )
        change(mock.patch("hetero_tvm.runtime.library._POOLED", _NAIVE))
        change(mock.patch("hetero_tvm.runtime.arrays._ALWAYS_COPY", 1 << 62))
        yield


class Guard:
    """The library that is preloaded."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["GUARD_LIBRARY"])
        self._library.guard_count.restype = ctypes.c_long

    def watch(self) -> None:
        """Report faults, whoever has handled them before."""
        self._library.guard_watch()

    def fill(self, byte: int) -> None:
        self._library.guard_fill(byte)

    @property
    def blocks(self) -> int:
        """Blocks that were guarded so far."""
        return int(self._library.guard_count())


def run(
    guard: Guard, call: Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]], inputs: Any
) -> str | None:
    """What is wrong with a call: results that depend on what memory held before it."""
    results = []
    for byte in FILLS:
        guard.fill(byte)
        results.append([np.array(array) for array in call(inputs)])
    for other in results[1:]:
        for number, (one, two) in enumerate(zip(results[0], other, strict=True)):
            if one.shape != two.shape or one.tobytes() != two.tobytes():
                at = "shapes differ"
                if one.shape == two.shape:
                    size = one.itemsize
                    bytes_ = [
                        np.frombuffer(array.tobytes(), np.uint8).reshape(-1, size) for array in (one, two)
                    ]
                    wrong = np.flatnonzero((bytes_[0] != bytes_[1]).any(axis=1))
                    first = int(wrong[0])
                    at = f"{len(wrong)} of {one.size}, first {first}: {one.flat[first]} or {two.flat[first]}"
                return f"output {number} depends on memory that nothing has written: {at}"
    return None
