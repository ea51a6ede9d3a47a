"""A schedule for any kernel that no design space knows.

Kernels without reductions first, as the elementwise space writes them; then TVM's dlight rules in their
order, each guarded: a rule that throws, or whose schedule does not become CUDA C++, leaves the kernel to the
next one, and the last resort (inline what can be inlined, fuse each block's spatial loops, spread them over
blocks of threads) holds for every function with blocks that calls nothing of the host.
Sort, scan and scatter kernels bind their threads themselves and pass through.
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.errors import BuildError
from hetero_tvm.host.tvm import PrimFunc, TVMTarget, dlight, s_tir, tirx, tvm
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.schedules.cuda.tensor_program import elementwise
from hetero_tvm.schedules.nests.program import nests_of, without_empty
from hetero_tvm.targets.cuda.codegen import rejects
from hetero_tvm.targets.cuda.thread_binding import is_bound

THREADS = 256
_HOST = "TVM computes it by a function of the host's library"
RULE = "hetero.rule"
"""Attribute of a scheduled kernel: which rule made it."""


def schedule(function: PrimFunc, target: TVMTarget, machine: GpuModel) -> PrimFunc:
    """The function with every store bound to GPU threads.

    Parameters
    ----------
    function : an unscheduled PrimFunc, or one whose threads are bound already.
    target : the ``tvm.target.Target`` of the GPU.
    machine : the same GPU, as design spaces see it.

    Raises
    ------
    BuildError : the function does something that no GPU can (it calls a function of the host).
    """
    if is_bound(function):
        return function
    function = _with_root(function)
    if (found := _elementwise(function, machine)) is not None:
        return found.with_attr(RULE, "pointwise")
    with target:
        for rule in _rules(function):
            found = _apply(rule, function, target)
            if found is not None and is_bound(found) and rejects(found, target) is None:
                return found.with_attr(RULE, f"dlight.{type(rule).__name__}")
    found = bind_blocks(function)
    if (reason := rejects(found, target)) is not None:
        raise BuildError(
            "no schedule makes a kernel for a GPU of it",
            problems=[_HOST if "call_packed" in reason else reason],
            hint="build the model with --target cpu, or without the operator",
        )
    return found.with_attr(RULE, "generic")


def _with_root(function: PrimFunc) -> PrimFunc:
    """Add the root that schedules look for to a kernel of one hand-written block (an indexed assignment)."""
    body = function.body
    if not isinstance(body, s_tir.SBlockRealize) or body.block.name_hint == "root":
        return function
    return function.with_body(s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body)))


def _elementwise(function: PrimFunc, machine: GpuModel) -> PrimFunc | None:
    """The function as vectorised kernels where it reduces nothing (the parts of a split), or has no elements;
    None for others."""
    nests = nests_of(function)
    if nests is not None and nests.empty:
        nests = without_empty(nests)
    if nests is None or elementwise.refuses(nests) is not None:
        return None
    return elementwise.emit(nests, **elementwise.default(nests, machine))


def _rules(function: PrimFunc) -> list[Any]:
    """TVM's rules to try, in order."""
    gpu = dlight.gpu
    rules = [gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]
    # The matmul rule's tensor-core form of int8 schedules, and then does not compile.
    integer = any("int8" in str(getattr(param, "dtype", "")) for param in function.params)
    return rules if integer else [gpu.Matmul(), *rules]


def _apply(rule: Any, function: PrimFunc, target: TVMTarget) -> PrimFunc | None:
    """The function as a rule schedules it; None where it does not apply or fails."""
    try:
        found = rule.apply(function, target, False)
    except Exception:  # a rule that trips over a shape: the next one gets the function
        return None
    if found is None:
        return None
    if isinstance(found, list | tuple):
        found = found[0]
    module = found.mod
    (variable,) = module.get_global_vars()
    return module[variable]


def bind_blocks(function: PrimFunc) -> PrimFunc:
    """Schedule of last resort: each block's spatial loops, fused, over blocks of :data:`THREADS` threads.

    One thread computes one element from start to end, reductions included; correct for any function
    of blocks, and meant for the small oddities only.
    """
    sch = s_tir.Schedule(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        loops = sch.get_loops(block)
        kinds = [variable.iter_type for variable in sch.get(block).iter_vars]
        same = len(loops) == len(kinds)  # a block without axes has iter vars, and no loops
        spatial = [x for x, kind in zip(loops, kinds, strict=False) if same and kind == tirx.IterVar.DataPar]
        if not spatial:
            sch.bind(sch.add_unit_loop(loops[0] if loops else block), "blockIdx.x")
            continue
        sch.reorder(*spatial, *(loop for loop in loops if loop not in spatial))
        outer, inner = sch.split(sch.fuse(*spatial), [None, THREADS])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")
    result = sch.mod["main"]
    if function.attrs and "global_symbol" in function.attrs:
        return result.with_attr("global_symbol", function.attrs["global_symbol"])
    return result.without_attr("global_symbol")
