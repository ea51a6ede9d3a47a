"""TensorFlow Lite operators on elements, and reductions, as ONNX nodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from hetero_tvm.frontend.nodes import Untranslatable
from hetero_tvm.frontend.tflite.op import Op


def _one(build: Callable[[Op, str], str]) -> Callable[[Op], None]:
    """An operator on the elements of one operand."""

    def translate(op: Op) -> None:
        first = op.first
        op.give(build(op, op.value(0, first)), first=first)

    return translate


def _plain(kind: str) -> Callable[[Op], None]:
    return _one(lambda op, x: op.emit(kind, x))


def _two(build: Callable[[Op, str, str], str]) -> Callable[[Op], None]:
    """An operator on the elements of two operands, with the activation that may follow."""

    def translate(op: Op) -> None:
        first = op.first
        made = build(op, op.value(0, first), op.value(1, first))
        op.give(op.activated(made), first=first)

    return translate


def _pair(kind: str) -> Callable[[Op], None]:
    return _two(lambda op, x, y: op.emit(kind, x, y))


def _sum_of_two(op: Op, x: str, y: str) -> str:
    """``ADD``; a norm as Keras writes it, ``x * r + (beta - m * r)``, as ``(x - m) * r + beta``.

    With r = gamma / deviation, that is the form which fusions look for; ``(-m) * r`` stands for no beta.
    """
    for left, right in ((x, y), (y, x)):
        shift, mean = op.maker(right, "Sub"), op.maker(right, "Mul")
        mean = mean if shift is None else op.maker(shift[1], "Mul")
        product = op.maker(left, "Mul")
        if mean is None or product is None:
            continue
        for (a, r), (b, s) in itertools.product(_both_ways(product), _both_ways(mean)):
            negative = op.maker(b, "Neg")
            if r != s or (shift is None and negative is None):
                continue
            made = op.emit("Sub", a, negative[0] if shift is None else b)
            factors = op.maker(r, "Mul") or [r]
            for factor in sorted(factors, key=lambda part: op.maker(part, "Reciprocal") is None):
                made = op.emit("Mul", made, factor)
            return made if shift is None else op.emit("Add", made, shift[0])
    return op.emit("Add", x, y)


def _both_ways(pair: Sequence[str]) -> tuple[tuple[str, str], tuple[str, str]]:
    return (pair[0], pair[1]), (pair[1], pair[0])


def _power(op: Op, x: str, y: str) -> str:
    return op.emit("Pow", x, y)


def _difference(op: Op, x: str, y: str) -> str:
    made = op.emit("Sub", x, y)
    return op.emit("Mul", made, made)


def _floored(op: Op, x: str, y: str) -> str:
    """``FLOOR_DIV``."""
    if op.tensor().dtype.startswith("float") or op.tensor().scale is not None:
        return op.emit("Floor", op.emit("Div", x, y))
    return op.emit("Div", op.emit("Sub", x, op.emit("Mod", x, y)), y)


def _remainder(op: Op, x: str, y: str) -> str:
    """``FLOOR_MOD``: the sign of the divisor."""
    if op.tensor().dtype.startswith("float") or op.tensor().scale is not None:
        return op.emit("Sub", x, op.emit("Mul", op.emit("Floor", op.emit("Div", x, y)), y))
    return op.emit("Mod", x, y)


def _angle(op: Op, y: str, x: str) -> str:
    """``ATAN2``: the angle of a point, by the quadrant that it lies in."""
    zero = op.const(0.0, "float32")
    tall, wide = op.emit("Abs", y), op.emit("Abs", x)
    one = op.const(1.0, "float32")
    flat = op.emit("Equal", op.emit("Add", tall, wide), zero)
    acute = op.emit("Atan", op.emit("Div", tall, op.emit("Where", flat, one, wide)))
    blunt = op.emit("Sub", op.const(np.pi, "float32"), acute)
    turned = op.emit("Where", op.emit("Less", x, zero), blunt, acute)
    return op.emit("Where", op.emit("Less", y, zero), op.emit("Neg", turned), turned)


def _shifted(op: Op, x: str, places: str) -> str:
    """``RIGHT_SHIFT``: of signed numbers, towards the lesser one."""
    wide = op.cast(x, "int64")
    count = op.emit("Clip", op.cast(places, "int64"), op.const(0), op.const(62))
    step = op.emit("BitShift", op.const(1, "uint64"), op.cast(count, "uint64"), direction="LEFT")
    step = op.cast(step, "int64")
    exact = op.emit("Sub", wide, op.emit("Mod", wide, step))
    return op.cast(op.emit("Div", exact, step), op.result().dtype)


def _in_buckets(op: Op) -> None:
    """``BUCKETIZE``: how many bounds an element reaches."""
    bounds = np.array([op.options.Boundaries(i) for i in range(op.options.BoundariesLength())], np.float32)
    x = op.cast(op.raw(), "float32")
    reached = op.emit("GreaterOrEqual", op.reshaped(x, [*op.shape(), 1]), op.const(bounds, "float32"))
    rank = len(op.shape())
    op.give_raw(op.emit("ReduceSum", op.cast(reached, "int32"), op.const([rank]), keepdims=0))


def _leaky(op: Op, x: str) -> str:
    return op.emit("LeakyRelu", x, alpha=float(op.option("Alpha")))


def _prelu(op: Op) -> None:
    first = op.first
    op.give(op.emit("PRelu", op.value(0, first), op.value(1, first)), first=first)


def _softmax(op: Op) -> None:
    """``SOFTMAX`` over the last axis, of ``beta`` times the operand."""
    x, beta = op.value(), float(op.option("Beta", 1.0))
    x = x if beta == 1 else op.emit("Mul", x, op.const(beta, "float32"))
    op.give(op.emit("Softmax", x, axis=-1))


def _unit(op: Op) -> None:
    """``L2_NORMALIZATION`` over the last axis."""
    x = op.value()
    squares = op.emit("ReduceSum", op.emit("Mul", x, x), op.const([-1]), keepdims=1)
    length = op.emit("Sqrt", op.emit("Max", squares, op.const(1e-6, "float32")))
    op.give(op.activated(op.emit("Div", x, length)))


def _sum(op: Op) -> None:
    """``ADD_N``."""
    op.give(op.emit("Sum", *(op.value(i) for i in range(op.count))))


def _chosen(op: Op) -> None:
    """``SELECT`` and ``SELECT_V2``; a vector of the first chooses rows."""
    condition, rank = op.raw(), len(op.shape(1))
    if op.kind == "SELECT" and len(op.shape()) == 1 and rank > 1:
        condition = op.reshaped(condition, [-1] + [1] * (rank - 1))
    op.moved([1, 2], lambda x, y: [op.emit("Where", condition, x, y)])


def _reduced(kind: str) -> Callable[[Op], None]:
    def translate(op: Op) -> None:
        rank, keep = len(op.shape()), bool(op.option("KeepDims", False))
        axes = sorted(set(op.axes(1, rank)))
        first = op.first_operand(0) and (keep or axes == [1, 2])
        places = [{0: 0, 1: 2, 2: 3, 3: 1}[axis] for axis in axes] if first else axes
        boolean = kind in ("Any", "All")
        x = op.value(0, first)
        made = (
            op.emit(
                {"Any": "ReduceMax", "All": "ReduceMin"}.get(kind, kind),
                op.cast(x, "int32") if boolean else x,
                op.const(places),
                keepdims=int(keep),
            )
            if axes
            else x
        )
        made = op.cast(made, "bool") if boolean and axes else made
        op.give(made, first=first and keep)

    return translate


def _extremum(kind: str) -> Callable[[Op], None]:
    def translate(op: Op) -> None:
        axis = op.axes(1, len(op.shape()))
        if len(axis) != 1:
            raise Untranslatable("over several axes")
        made = op.emit(kind, op.value(), axis=axis[0], keepdims=0)
        op.give_raw(op.cast(made, op.result().dtype))

    return translate


def _running(op: Op) -> None:
    """``CUMSUM``."""
    axis = op.const(op.axes(1, len(op.shape()))[0])
    flags = {"exclusive": int(op.option("Exclusive", False)), "reverse": int(op.option("Reverse", False))}
    op.give(op.emit("CumSum", op.value(), axis, **flags))


def _cast(op: Op) -> None:
    op.give_raw(op.cast(op.raw(0, op.first), op.result().dtype), first=op.first)


def _dequantized(op: Op) -> None:
    """``DEQUANTIZE``, of half precision too."""
    tensor, first = op.tensor(), op.first
    if op.is_constant(0) and tensor.scale is None:
        op.give_constant(op.constant(0).astype(np.float32))
        return
    x = op.value(0, first)
    op.give_raw(op.cast(x, "float32") if tensor.scale is None else x, first=first)


def _quantized(op: Op) -> None:
    """``QUANTIZE``: to 8 bits, or from one scale to another."""
    first = op.first
    op.give(op.value(0, first), first=first)


def _fake(op: Op) -> None:
    """``FAKE_QUANT``: nothing, as in a file that is run."""
    op.give_raw(op.raw(0, op.first), first=op.first)


def _gelu(op: Op, x: str) -> str:
    return op.emit("Gelu", x, approximate="tanh" if op.option("Approximate", False) else "none")


ELEMENTWISE: dict[str, Callable[[Op], None]] = {
    **{name: _plain(kind) for name, kind in {
        "ABS": "Abs", "NEG": "Neg", "EXP": "Exp", "LOG": "Log", "SQRT": "Sqrt", "SIN": "Sin", "COS": "Cos",
        "FLOOR": "Floor", "CEIL": "Ceil", "ROUND": "Round", "SIGN": "Sign", "LOGISTIC": "Sigmoid",
        "TANH": "Tanh", "RELU": "Relu", "ELU": "Elu", "HARD_SWISH": "HardSwish", "LOGICAL_NOT": "Not",
    }.items()},
    **{name: _pair(kind) for name, kind in {
        "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "MAXIMUM": "Max", "MINIMUM": "Min",
        "EQUAL": "Equal", "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual", "LESS": "Less",
        "LESS_EQUAL": "LessOrEqual", "LOGICAL_AND": "And", "LOGICAL_OR": "Or",
    }.items()},
    "ADD": _two(_sum_of_two),
    "NOT_EQUAL": _two(lambda op, x, y: op.emit("Not", op.emit("Equal", x, y))),
    "RSQRT": _one(lambda op, x: op.emit("Reciprocal", op.emit("Sqrt", x))),
    "SQUARE": _one(lambda op, x: op.emit("Mul", x, x)),
    "RELU6": _one(lambda op, x: op.bounded(x, 0.0, 6.0)),
    "RELU_N1_TO_1": _one(lambda op, x: op.bounded(x, -1.0, 1.0)),
    "RELU_0_TO_1": _one(lambda op, x: op.bounded(x, 0.0, 1.0)),
    "LEAKY_RELU": _one(_leaky),
    "GELU": _one(_gelu),
    "POW": _two(_power),
    "SQUARED_DIFFERENCE": _two(_difference),
    "FLOOR_DIV": _two(_floored),
    "ATAN2": _two(_angle),
    "BITWISE_XOR": _two(lambda op, x, y: op.emit("BitwiseXor", x, y)),
    "RIGHT_SHIFT": _two(_shifted),
    "BUCKETIZE": _in_buckets,
    "FLOOR_MOD": _two(_remainder),
    "PRELU": _prelu,
    "SOFTMAX": _softmax,
    "LOG_SOFTMAX": lambda op: op.give(op.emit("LogSoftmax", op.value(), axis=-1)),
    "L2_NORMALIZATION": _unit,
    "ADD_N": _sum,
    "SELECT": _chosen,
    "SELECT_V2": _chosen,
    **{name: _reduced(kind) for name, kind in {
        "MEAN": "ReduceMean", "SUM": "ReduceSum", "REDUCE_MAX": "ReduceMax", "REDUCE_MIN": "ReduceMin",
        "REDUCE_PROD": "ReduceProd", "REDUCE_ANY": "Any", "REDUCE_ALL": "All",
    }.items()},
    "ARG_MAX": _extremum("ArgMax"),
    "ARG_MIN": _extremum("ArgMin"),
    "CUMSUM": _running,
    "CAST": _cast,
    "DEQUANTIZE": _dequantized,
    "QUANTIZE": _quantized,
    "FAKE_QUANT": _fake,
}  # fmt: skip
"""Translations of operators on elements, and of reductions."""
