"""Lowering: regions of ``main`` become calls into the NPU's library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero_tvm.host.scratch import temporary_folder
from hetero_tvm.host.tvm import IRModule, RelaxFunction, relax
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.task import Task
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.npu.regions import byoc
from hetero_tvm.targets.npu.regions.graph_region import GraphRegion, divided
from hetero_tvm.targets.npu.regions.partition import Placement
from hetero_tvm.targets.npu.regions.placement import place
from hetero_tvm.targets.npu.regions.region import CompiledRegion, KernelCache
from hetero_tvm.targets.npu.regions.stored_regions import save


def lower_regions(
    module: IRModule, tasks: Sequence[Task], points: Mapping[str, Point], target: Target
) -> tuple[IRModule, list[CompiledRegion], Placement]:
    """Compile every region and replace it by a call of its function in an external module.

    Raises
    ------
    BuildError : a kernel cannot be generated, or the external module does not compile.
    """
    placed = place(module, tasks, target)
    if not placed.regions.region_of:
        return placed.module, [], placed.placement
    compiled: list[CompiledRegion] = []
    builder = relax.BlockBuilder(placed.module)
    bindings: list[Any] = []
    for piece in divided(placed, points, KernelCache(target.machine)):
        if isinstance(piece, relax.VarBinding):
            bindings.append(piece)
            continue
        compiled.append(piece.compile())
        function = piece.function()
        bindings += piece.call(builder.add_func(function, piece.name), function)
    result = _with_main(builder.get(), placed.module["main"], bindings)
    with temporary_folder("hetero_tvm-npu-") as folder:
        save(compiled, target.machine, folder)
        result = relax.transform.RunCodegen({byoc.CODEGEN: {"folder": str(folder)}}, ["main"])(result)
    if result.attrs is not None and "const_name_to_constant" in result.attrs:
        result = result.without_attr("const_name_to_constant")  # the regions hold their constants
    return relax.transform.DeadCodeElimination()(result), compiled, placed.placement


def compile_regions(
    module: IRModule,
    tasks: Sequence[Task],
    points: Mapping[str, Point],
    target: Target,
    region_type: type[GraphRegion] = GraphRegion,
    cache: KernelCache | None = None,
) -> list[CompiledRegion]:
    """The regions without a library around them, to see what they cost.

    Parameters
    ----------
    region_type, cache : compiler of regions and generator of kernels; subclasses may decide otherwise than
        a build does (``benchmarks/npu_ablation``).
    """
    placed = place(module, tasks, target)
    pieces = divided(placed, points, cache or KernelCache(target.machine), region_type)
    return [piece.compile() for piece in pieces if isinstance(piece, GraphRegion)]


def _with_main(module: IRModule, main: RelaxFunction, bindings: list[Any]) -> IRModule:
    """The module with other bindings in ``main``."""
    result = module.clone()
    body = relax.SeqExpr([relax.BindingBlock(bindings)], main.body.body)
    result.update_func(
        result.get_global_var("main"),
        relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs),
    )
    return relax.transform.Normalize()(result)
