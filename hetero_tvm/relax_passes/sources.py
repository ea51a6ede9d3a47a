"""Which source nodes a binding stands for, carried through TVM's own passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import relax  # noqa: E402


def initial(module: Any, node_of: Any) -> dict[str, tuple[str, ...]]:
    """Source names of an imported module: ``node_of(var)`` gives the node of one binding."""
    return {binding.var.name: (node_of(binding.var),) for binding in _bindings(module["main"])}


def after_fusion(
    before: Any, module: Any, sources: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Source names after ``FuseOps``: a group stands for all bindings that moved into its function.

    Inside a group the bindings keep their names, all but its outputs, which are renamed.  Names that
    have vanished therefore belong to the outputs of the groups, in order.
    """
    groups: list[tuple[str, list[str]]] = []
    for binding in _bindings(module["main"]):
        value = binding.value
        inside = []
        if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            if isinstance(module[value.op], relax.Function):
                inside = [b.var.name for b in _bindings(module[value.op])]
        groups.append((binding.var.name, inside))
    original = [binding.var.name for binding in _bindings(before["main"])]
    kept = {name for outer, inside in groups for name in (outer, *inside)}
    vanished = iter([name for name in original if name not in kept])
    known = set(original)
    names: dict[str, tuple[str, ...]] = {}
    for outer, inside in groups:
        members = [name if name in known else next(vanished, name) for name in inside] or [outer]
        found = [node for name in members for node in sources.get(name, ())]
        names[outer] = tuple(dict.fromkeys(found)) or (outer,)
    return names


def _bindings(function: Any) -> list[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]
