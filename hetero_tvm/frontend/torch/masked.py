"""Assignments to what a mask selects of values computed from what it selects, as choices by that mask.

``y[mask] = f(x[mask])`` is how splines of normalizing flows treat what lies beyond their interval.  PyTorch
exports ``x[mask]`` with as many elements as a run finds.
"""

from __future__ import annotations

import copy
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hetero_tvm.frontend.torch.load import quiet

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node


def with_choices(torch: ModuleType, program: ExportedProgram) -> ExportedProgram:
    """The program with ``torch.where(mask, f(x), y)`` for such assignments; itself where it has none."""
    aten = torch.ops.aten
    puts = (aten.index_put.default, aten.index_put_.default)
    if not any(node.target in puts and _mask(torch, node) is not None for node in program.graph.nodes):
        return program
    with quiet(), torch.no_grad():
        pure = program.run_decompositions({})  # nothing is read before and written after a change in place
    module = copy.deepcopy(pure.graph_module)
    graph, found = module.graph, False
    for node in list(graph.nodes):
        mask = _mask(torch, node) if node.target == aten.index_put.default else None
        if mask is None:
            continue
        base, indices, values, *accumulates = node.args
        with graph.inserting_before(node):
            whole = _whole(torch, graph, values, indices, base.meta["val"])
            if whole is None:
                continue
            if accumulates and accumulates[0]:
                whole = graph.call_function(aten.add.Tensor, (base, whole))
                whole.meta = dict(node.meta)
            wide = mask
            for _ in range(base.meta["val"].dim() - len(indices) + 1 - mask.meta["val"].dim()):
                value = wide.meta["val"].unsqueeze(-1)
                wide = graph.call_function(aten.unsqueeze.default, (wide, -1))
                wide.meta = {**mask.meta, "val": value}
        node.target, node.args = aten.where.self, (wide, whole, base)
        found = True
    if not found:
        return program
    graph.eliminate_dead_code()
    module.recompile()
    with quiet(), torch.no_grad():
        return pure._update(module, pure.graph_signature).run_decompositions({})


def _mask(torch: ModuleType, node: Node) -> Node | None:
    """The one mask among the indices of an assignment of as many values as a run finds."""
    if node.op != "call_function" or len(node.args) < 3 or not isinstance(node.args[1], list | tuple):
        return None
    given = [index for index in node.args[1] if index is not None]
    value = node.args[2].meta.get("val") if isinstance(node.args[2], torch.fx.Node) else None
    if len(given) != 1 or value is None or given[0].meta["val"].dtype != torch.bool:
        return None
    unbacked = torch.fx.experimental.symbolic_shapes.free_unbacked_symbols
    return given[0] if unbacked(value.shape) else None


def _whole(torch: ModuleType, graph: Graph, value: Any, indices: list[Node | None], base: Any) -> Any | None:
    """Tensor that the mask selects a value from; None where it is not made element by element."""
    if not isinstance(value, torch.fx.Node):
        return value
    result = value.meta.get("val")
    if not isinstance(result, torch.Tensor):
        return None
    if value.target == torch.ops.aten.index.Tensor and _same(torch, value.args[1], indices):
        known = torch.fx.experimental.symbolic_shapes.statically_known_true
        x = value.args[0]
        shape = x.meta["val"].shape
        alike = len(shape) == base.dim() and all(
            map(known, (a == b for a, b in zip(shape, base.shape, strict=True)))
        )
        return x if alike else None
    if result.dim() == 0:
        return value
    schema = getattr(value.target, "_schema", None)
    if schema is None or schema.is_mutable or torch.Tag.pointwise not in value.target.tags:
        return None
    if not result.is_floating_point() and result.dtype != torch.bool:
        return None  # a quotient of whole numbers may end the process where it is not selected
    arguments = []
    for argument in value.args:
        part = (
            argument if isinstance(argument, list | tuple) else _whole(torch, graph, argument, indices, base)
        )
        if part is None and argument is not None:
            return None
        arguments.append(part)
    if any(isinstance(one, torch.fx.Node) for one in value.kwargs.values()):
        return None
    whole = graph.call_function(value.target, tuple(arguments), dict(value.kwargs))
    whole.meta = {**value.meta, "val": base.to(result.dtype)}
    return whole


def _same(torch: ModuleType, one: Any, other: Any) -> bool:
    """Whether two arguments are one, or are computed alike: a program writes ``~mask`` twice."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(torch, a, b) for a, b in zip(one, other, strict=True))
    if not isinstance(one, torch.fx.Node) or not isinstance(other, torch.fx.Node) or one is other:
        return one is other or (not isinstance(one, torch.fx.Node) and one == other)
    alike = one.op == other.op == "call_function" and one.target == other.target
    random = torch.Tag.nondeterministic_seeded in getattr(one.target, "tags", ())
    return alike and not random and _same(torch, one.args, other.args) and one.kwargs == other.kwargs
