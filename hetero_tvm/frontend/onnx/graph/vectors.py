"""Inputs that say axes, extents and places: as vectors, or as scalars, whichever an operator asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool, Types
from hetero_tvm.frontend.onnx.graph.nodes import all_nodes

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_AXES = {"Squeeze": (1,), **{f"Reduce{kind}": (1,) for kind in _REDUCTIONS}}
"""Operators for which an axis that is named twice counts once."""
_VECTORS = {
    **_AXES,
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Pad": (1, 3),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}
_SCALARS = {"CumSum": (1,), "Range": (0, 1, 2), "Trilu": (1,)}
_MOST_BYTES = 1 << 12
"""Size of a constant beyond which it is none of these, or of the right rank."""


def settle_vectors(
    graph: onnx.GraphProto,
    pool: ConstantPool,
    value_of: Callable[[onnx.NodeProto], Sequence[np.ndarray] | None],
) -> None:
    """Give constants that say axes, extents or places the rank that their operators ask for.

    ``value_of`` reads a Constant node.  Exporters write a single axis as a scalar, and scalars as vectors of
    one; ONNX's evaluator takes both, ONNX Runtime mostly.

    Raises
    ------
    ModelError : a scalar is asked for, and there are several values or none.
    """
    made = {n.output[0]: n for n in graph.node if n.op_type == "Constant" and len(n.output) == 1}
    for node in all_nodes(graph):
        wanted = dict.fromkeys(_VECTORS.get(node.op_type, ()), 1)
        wanted |= dict.fromkeys(_SCALARS.get(node.op_type, ()), 0)
        for index in wanted if node.domain in ONNX_DOMAINS else ():
            name = node.input[index] if index < len(node.input) else ""
            if name in pool:
                if len(pool.type_of(name)[1]) == wanted[index] and node.op_type not in _AXES:
                    continue  # as nearly all are
                array = pool.array(name) if pool.nbytes(name) <= _MOST_BYTES else None
            else:
                found = value_of(made[name]) if name in made else None
                array = found[0] if found else None
            if array is None:
                continue
            settled = array.reshape(-1)
            if not wanted[index]:
                if array.size != 1:
                    raise ModelError(
                        f"Node {node.name!r} ({node.op_type}) asks for one value, and its input {name!r} has "
                        f"{array.size}.",
                        hint="Check the program that wrote the file.",
                    )
                settled = array.reshape(())
            elif node.op_type in _AXES:
                settled = np.array(list(dict.fromkeys(settled.tolist())), array.dtype)
            if settled.shape != array.shape:
                node.input[index] = f"{name}/{node.name}/{index}"
                pool.add_array(node.input[index], settled)


def settle_repeats(graph: onnx.GraphProto, types: Types, pool: ConstantPool) -> bool:
    """Name axes once that are named from both ends (1 and -2 of three), as ONNX Runtime takes them; returns
    whether there were any."""
    changed = False
    for node in all_nodes(graph):
        if node.op_type not in _AXES or node.domain not in ONNX_DOMAINS or not node.input[0]:
            continue
        rank = _rank(node.input[0], types, pool)
        name = node.input[1] if len(node.input) > 1 else ""
        attribute = next((a for a in node.attribute if a.name == "axes"), None)
        given = pool.array(name).reshape(-1).tolist() if name in pool else attribute and list(attribute.ints)
        if not given or rank is None:
            continue
        once = list({axis % rank if -rank <= axis < rank else axis: None for axis in given})
        if len(once) == len(given):
            continue
        changed = True
        if attribute is not None:
            attribute.CopyFrom(onnx.helper.make_attribute("axes", once))
        else:
            node.input[1] = f"{name}/{node.name}/once"
            pool.add_array(node.input[1], np.array(once, np.int64))
    return changed


def _rank(name: str, types: Types, pool: ConstantPool) -> int | None:
    shape = pool.type_of(name)[1] if name in pool else types.get(name, (0, None))[1]
    return None if shape is None else len(shape)
