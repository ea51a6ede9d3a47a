"""Operators element by element, or over few elements: running products, determinants, blocked quantisers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.promised import PromisedBody
from hetero_tvm.frontend.onnx.graph.nodes import refusal
from hetero_tvm.frontend.onnx.graph.rounds import OPEN

_LARGEST_DETERMINANT = 4


def cumulative_product(b: PromisedBody) -> bool:
    """CumProd: each step multiplies with what lies twice as far before.

    Among sizes of which each would have its own number of steps, it goes one element a round.
    """
    shape, axis = b.shape(b.input(0)), b.value(1)
    if shape is None or axis is None or 0 in shape:
        return False
    x, at = b.input(0), int(axis.reshape(-1)[0]) % len(shape)
    if b.node.doc_string == OPEN:
        b.end(0, _product_in_rounds(b, shape[:at] + shape[at + 1 :], at))
        return True
    one, length = b.const(1, b.dtype(b.input(0))), shape[at]
    mirrored = b.ints(np.arange(length)[::-1])
    reverse = bool(b.attributes.get("reverse", 0))
    if reverse:
        x = b.op("Gather", x, mirrored, axis=at)

    def behind(y: str, by: int) -> str:
        """``y`` moved back along the axis, with ones before it."""
        pads = [0] * 2 * len(shape)
        pads[at] = by
        return b.op("Pad", b.cut(y, at, 0, length - by), b.ints(pads), one)

    if b.attributes.get("exclusive", 0):
        x = behind(x, 1) if length > 1 else b.op("Expand", one, b.ints(shape))
    step = 1
    while step < length:
        x = b.op("Mul", x, behind(x, step))
        step *= 2
    b.end(0, b.op("Gather", x, mirrored, axis=at) if reverse else x)
    return True


def _product_in_rounds(b: PromisedBody, rest: Sequence[int], at: int) -> str:
    """Name of the running products along the axis ``at``; ``rest`` are the other extents."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(b.dtype(b.input(0))))
    so_far, element, product, result = (f"{b.node.name}/{part}" for part in ("so_far", "x", "product", "y"))
    shown = so_far if b.attributes.get("exclusive", 0) else product
    body = helper.make_graph(
        [
            helper.make_node("Mul", [so_far, element], [product], name=product),
            helper.make_node("Identity", [shown], [result], name=result),
        ],
        "body",
        *(
            [helper.make_tensor_value_info(name, kind, rest) for name in names]
            for names in ((so_far, element), (product, result))
        ),
    )
    begin = b.op("Expand", b.const(1, b.dtype(b.input(0))), b.ints(rest))
    backwards = [int(b.attributes.get("reverse", 0))]
    last = b.op(
        "Scan",
        begin,
        b.input(0),
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[at],
        scan_output_axes=[at],
        scan_input_directions=backwards,
        scan_output_directions=backwards,
    )
    b.nodes[-1].doc_string = OPEN
    b.nodes[-1].output[:] = [last, f"{last}_all"]
    return f"{last}_all"


def extremum_of_flags(b: PromisedBody) -> bool:
    """ReduceMax or ReduceMin of bools, which have no least and largest value in TVM: that of bytes."""
    if b.dtype(b.input(0)) != "bool":
        return False
    axes = [b.input(1)] if b.input(1) else []
    y = b.op(b.node.op_type, b.op("Cast", b.input(0), to=TensorProto.UINT8), *axes, **b.attributes)
    b.end(0, b.op("Cast", y, to=TensorProto.BOOL))
    return True


def determinant(b: PromisedBody) -> bool:
    """Det of matrices of up to 4 rows, by expansion along the first row."""
    shape = b.shape(b.input(0))
    if shape is None:
        return False
    size = shape[-1] or 0
    if not 0 < size <= _LARGEST_DETERMINANT:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (Det) is of matrices of {size} rows; up to {_LARGEST_DETERMINANT} are "
            "supported.",
            hint="Compute the determinant outside of the model.",
        )

    def entry(row: int, column: int) -> str:
        line = b.op("Gather", b.input(0), b.ints(row), axis=-2)
        return b.op("Gather", line, b.ints(column), axis=-1)

    def minor(row: int, columns: tuple[int, ...]) -> str:
        if len(columns) == 1:
            return entry(row, columns[0])
        total = ""
        for n, column in enumerate(columns):
            rest = minor(row + 1, columns[:n] + columns[n + 1 :])
            term = b.op("Mul", entry(row, column), rest)
            total = b.op("Sub" if n % 2 else "Add", total, term) if total else term
        return total

    b.end(0, minor(0, tuple(range(size))))
    return True


def quantizer(b: PromisedBody) -> bool:
    """QuantizeLinear of whole numbers, which are divided in float32, or with a scale per block."""
    if b.shape(b.input(0)) is None or b.dtype(b.input(0)) != "int32":
        return blocked_quantizer(b)
    b.again({0: b.op("Cast", b.input(0), to=TensorProto.FLOAT)})
    return True


def blocked_quantizer(b: PromisedBody) -> bool:
    """QuantizeLinear and DequantizeLinear with a scale per block of elements along an axis."""
    shape, scales = b.shape(b.input(0)), b.shape(b.input(1))
    block = int(b.attributes.get("block_size", 0))
    if not block or shape is None or scales is None:
        return False
    axis = int(b.attributes.get("axis", 1)) % len(shape)
    length, blocks = shape[axis], scales[axis]
    if None not in (length, blocks) and blocks != -(-length // block):
        raise refusal(b.node, f"{blocks} scales for {length} elements in blocks of {block}")
    beside = [[e for n, e in enumerate(each) if n != axis] for each in (shape, scales)]
    if len(beside[0]) != len(beside[1]) or any(
        None not in pair and pair[0] != pair[1] for pair in zip(*beside, strict=True)
    ):
        raise refusal(b.node, f"scales of shape {scales} for blocks along axis {axis} of {shape}")
    scale = _spread(b, b.input(1), scales, axis, block, shape[axis])
    zero = b.input(2) and _spread(b, b.input(2), scales, axis, block, shape[axis])
    if b.node.op_type == "DequantizeLinear":
        x = b.op("Cast", b.input(0), to=TensorProto.FLOAT)
        if zero:
            x = b.op("Sub", x, b.op("Cast", zero, to=TensorProto.FLOAT))
        y = b.op("Mul", x, b.op("Cast", scale, to=TensorProto.FLOAT))
        element = int(b.attributes.get("output_dtype", 0)) or helper.np_dtype_to_tensor_dtype(
            np.dtype(b.dtype(b.input(1)))
        )
        b.end(0, y if element == TensorProto.FLOAT else b.op("Cast", y, to=element))
        return True
    element = int(b.attributes.get("output_dtype", 0)) or TensorProto.UINT8
    if b.input(2):
        element = helper.np_dtype_to_tensor_dtype(np.dtype(b.dtype(b.input(2))))
    limits = np.iinfo(helper.tensor_dtype_to_np_dtype(element))
    x = b.op("Round", b.op("Div", b.input(0), scale))
    if zero:
        x = b.op("Add", x, b.op("Cast", zero, to=TensorProto.FLOAT))
    x = b.op("Max", b.op("Min", x, b.const(float(limits.max))), b.const(float(limits.min)))
    b.end(0, b.op("Cast", x, to=element))
    return True


def _spread(
    b: PromisedBody, x: str, shape: tuple[int | None, ...], axis: int, block: int, length: int | None
) -> str:
    """One value per element of an axis, from one per block."""
    places = np.arange(length or 0) // block
    return x if shape[axis] == length else b.op("Gather", x, b.ints(places), axis=axis)


def scatter_tensor(b: PromisedBody) -> bool:
    """TensorScatter: new rows of a cache, from a place that differs by sequence."""
    cache, update = b.shape(b.input(0)), b.shape(b.input(1))
    if cache is None or update is None or None in update:
        return False
    axis = int(b.attributes.get("axis", -2)) % len(cache)
    rows, circular = b.input(1), b.attributes.get("mode", b"linear") == b"circular"
    steps = b.ints(np.arange(update[axis] or 0).reshape([-1 if n == axis else 1 for n in range(len(cache))]))
    places = steps
    if b.input(2):
        start = b.op("Reshape", b.input(2), b.ints([-1, *[1] * (len(cache) - 1)]))
        inside = b.every(
            b.op("GreaterOrEqual", start, b.ints(0))
        )  # ScatterElements counts others from the end
        rows = b.checked(rows, inside, b.dtype(rows), "the places of new rows must be 0 or more")
        places = b.op("Add", steps, start)
    if circular:
        places = b.op("Mod", places, b.ints(cache[axis] or 1))
    places = b.op("Expand", places, b.ints([int(n or 0) for n in update]))
    b.end(0, b.op("ScatterElements", b.input(0), places, rows, axis=axis))
    return True


def dropout(b: PromisedBody) -> bool:
    """Dropout outside of training: a copy, and a mask of which all elements hold."""
    if not b.wants(1) and not b.input(2):
        return False  # removed with what does nothing
    shape, training, ratio = b.shape(b.input(0)), b.value(2), b.value(1)
    x, rate = b.input(0), b.attributes.get("ratio", 0.5)
    if b.input(2) and (training is None or training.any()):
        if training is None:
            off = b.op("Not", b.input(2))
            if b.input(1):
                off = b.op("Or", off, b.op("Equal", b.input(1), b.const(0, b.dtype(b.input(1)))))
            rest = "training_mode must be false, or the ratio 0: random numbers are not supported"
            x = b.checked(x, b.every(off), b.dtype(x), rest)
        elif float(rate if ratio is None and not b.input(1) else 1.0 if ratio is None else ratio) != 0.0:
            raise UnsupportedOperatorError(
                f"Node {b.node.name!r} (Dropout) has training_mode=1, which is not supported.",
                hint="Export the model for inference (model.eval()).",
            )
    if b.wants(1) and shape is None:
        return False
    b.end(0, x)
    b.end(1, b.const(np.ones(shape or ()), "bool"))
    return True
