"""Step of cleaning: nodes whose results' shapes depend on values are written out for the declared shapes.

A new operator is one function and one entry in ``PROMISED``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from hetero_tvm.frontend.onnx.bodies import (
    elements,
    given_shapes,
    loops,
    run_time_axes,
    run_time_places,
    run_time_resize,
    suppression,
    windows,
)
from hetero_tvm.frontend.onnx.bodies.promised import PromisedBody, Promises, spread
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool, Types, tensor_type
from hetero_tvm.frontend.onnx.graph.nodes import set_nodes

Writer = Callable[[PromisedBody], bool]
"""Writes a node out; False when it does not cover its form, or nothing promises a shape."""


def cumulative_product(b: PromisedBody) -> bool:
    """CumProd, of a known axis or one that comes at run time."""
    return elements.cumulative_product(b) or run_time_axes.cumulative(b)


def extremum(b: PromisedBody) -> bool:
    """ReduceMax or ReduceMin over axes that come at run time, or of flags."""
    if b.input(1) and b.value(1) is None:
        return run_time_axes.reduction(b)
    return elements.extremum_of_flags(b)


PROMISED: dict[str, tuple[tuple[int, ...], Writer]] = {
    **dict.fromkeys(run_time_axes.REDUCTIONS, ((1,), run_time_axes.reduction)),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), ((), extremum)),
    "AffineGrid": ((1,), given_shapes.affine_grid),
    "CenterCropPad": ((), given_shapes.center_crop_pad),
    "Col2Im": ((), windows.col2im),
    "Compress": ((1,), run_time_places.compress),
    "ConstantOfShape": ((0,), given_shapes.constant_of_shape),
    "CumProd": ((), cumulative_product),
    "CumSum": ((1,), run_time_axes.cumulative),
    "DFT": ((1, 2), run_time_axes.dft),
    "DeformConv": ((), windows.deformable),
    "DequantizeLinear": ((), elements.blocked_quantizer),
    "Det": ((), elements.determinant),
    "Dropout": ((), elements.dropout),
    "Expand": ((1,), given_shapes.expand),
    "Loop": ((), loops.loop),
    "MaxPool": ((), windows.max_pool),
    "MaxUnpool": ((2,), given_shapes.max_unpool),
    "NonMaxSuppression": ((), suppression.non_max),
    "NonZero": ((0,), run_time_places.non_zero),
    "OneHot": ((1,), given_shapes.one_hot),
    "Pad": ((1, 3), run_time_places.pad),
    "QuantizeLinear": ((), elements.quantizer),
    "Range": ((0, 1, 2), given_shapes.count_up),
    "Reshape": ((1,), given_shapes.reshape),
    "Resize": ((1, 2, 3), run_time_resize.resize),
    "STFT": ((1, 3), run_time_axes.stft),
    "Scan": ((), loops.scan),
    "Slice": ((1, 2, 3, 4), run_time_places.slices),
    "Split": ((1,), given_shapes.split),
    "Squeeze": ((1,), given_shapes.squeeze),
    "TensorScatter": ((), elements.scatter_tensor),
    "TfIdfVectorizer": ((), windows.n_grams),
    "Tile": ((1,), given_shapes.tile),
    "TopK": ((1,), given_shapes.top_k),
    "Unsqueeze": ((1,), given_shapes.squeeze),
}
"""Operator -> inputs that decide its results' shapes, and what writes it out when one is no constant.

Where none is named, the operator is written out in any case.
"""


def declared_shapes(model: onnx.ModelProto, fixed: Mapping[str, tuple[int, ...]]) -> Promises:
    """Shapes that a file declares for its results, by name; ``fixed`` has those of its inputs.

    A symbol counts as declared where an input fixes it.
    """
    symbols: dict[str, int] = {}
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, fixed.get(value.name, ()), strict=False):
            if dim.dim_param:
                symbols.setdefault(dim.dim_param, size)
    promises = {}
    for value in model.graph.output:
        if not value.type.tensor_type.HasField("shape"):
            continue
        shape = tuple(
            size if size is not None else symbols.get(dim.dim_param)
            for dim, size in zip(
                value.type.tensor_type.shape.dim, tensor_type(value.type.tensor_type)[1] or (), strict=True
            )
        )
        known = tuple(size for size in shape if size is not None and size >= 0)
        if len(known) == len(shape):
            promises[value.name] = known
    return promises


def write_promised(
    graph: onnx.GraphProto, types: Types, pool: ConstantPool, opset: int, promises: Promises
) -> bool:
    """Replace nodes whose result shapes depend on values, where declared ones say; whether there were any.

    Raises
    ------
    UnsupportedOperatorError : a node that leaves too many choices; names the node.
    """
    wanted = spread(graph, types, promises)
    nodes: list[onnx.NodeProto] = []
    found = False
    for node in graph.node:
        entry = PROMISED.get(node.op_type) if node.domain in ONNX_DOMAINS else None
        body = PromisedBody(node, opset, types, pool, wanted)
        if entry and _is_open(body, entry[0]) and entry[1](body):
            nodes += body.nodes
            found = True
        else:
            nodes.append(node)
    if found:
        set_nodes(graph, nodes)
    return found


def _is_open(b: PromisedBody, deciding: tuple[int, ...]) -> bool:
    """Whether a value that decides the shapes of a node's results comes at run time."""
    if b.node.op_type in ("CumSum", "CumProd", "NonZero", "DFT", "Resize"):
        open_shape = True
    else:
        open_shape = any(name and b.inferred(index) is None for index, name in enumerate(b.node.output))
    return not deciding or (open_shape and any(b.input(n) and b.value(n) is None for n in deciding))
