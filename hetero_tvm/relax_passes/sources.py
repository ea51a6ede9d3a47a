"""Which source nodes a binding stands for, carried through TVM's own passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import relax  # noqa: E402


def initial(module: Any, node_of: Any) -> dict[str, tuple[str, ...]]:
    """Source names of an imported module: ``node_of(var)`` gives the node of one binding."""
    return {
        binding.var.name: (node_of(binding.var),)
        for block in module["main"].body.blocks
        for binding in block.bindings
    }


def after_fusion(module: Any, sources: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Source names after ``FuseOps``: a group stands for all bindings that moved into its function."""
    names: dict[str, tuple[str, ...]] = {}
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            inside = [binding.var.name]
            value = binding.value
            if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar):
                group = module[value.op]
                if isinstance(group, relax.Function):
                    inside = [b.var.name for blk in group.body.blocks for b in blk.bindings] + inside
            found = [name for var in inside for name in sources.get(var, ())]
            names[binding.var.name] = tuple(dict.fromkeys(found)) or (binding.var.name,)
    return names
