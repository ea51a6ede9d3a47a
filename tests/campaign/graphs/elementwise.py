"""Steps that add operators of single elements."""

from __future__ import annotations

import numpy as np

from tests.campaign.graphs.builder import Builder
from tests.campaign.graphs.registry import operator
from tests.campaign.graphs.values import FLOATS, INTEGERS, NUMBERS, SIGNED, UNSIGNED, Rejected, onnx_type

_ANYWHERE = (
    "Abs Neg Exp Sigmoid Tanh Erf Relu Softplus Softsign Sin Cos HardSigmoid HardSwish Elu Selu LeakyRelu "
    "Celu ThresholdedRelu Mish Gelu Shrink Identity Asinh Atan Sinh Cosh Swish"
).split()
_SLOPES = {
    "HardSigmoid": ("alpha", "beta"),
    "Elu": ("alpha",),
    "Selu": ("alpha", "gamma"),
    "LeakyRelu": ("alpha",),
    "Celu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "Swish": ("alpha",),
}


@operator(14)
def unary(b: Builder) -> None:
    op = b.one(_ANYWHERE)
    x = b.pick(FLOATS)
    attributes = {
        name: round(float(b.rng.uniform(0.1, 1.2)), 3) for name in _SLOPES.get(op, ()) if b.chance(0.5)
    }
    if op == "Gelu" and b.chance(0.6):
        attributes["approximate"] = b.one(["none", "tanh"])
    if op == "Shrink":
        attributes = {"lambd": b.one([0.5, 0.2]), "bias": b.one([0.0, 0.5])}
    if op in ("Exp", "Sinh", "Cosh") and not b.special:
        x = (
            b.op("Clip", [x, b.const(-4, x.dtype), b.const(4, x.dtype)])
            if b.opset >= 11
            else b.op("Tanh", [x])
        )
    b.op(op, [x], **attributes)


@operator(4)
def unary_of_a_domain(b: Builder) -> None:
    op = b.one(["Sqrt", "Log", "Reciprocal", "Acos", "Asin", "Atanh", "Acosh", "Tan"])
    x = b.pick(FLOATS)
    if op in ("Sqrt", "Log", "Reciprocal"):
        x = b.positive(x)
    elif op == "Acosh":
        x = b.op("Add", [b.positive(x), b.const(1.0, x.dtype)])
    else:
        x = b.bounded(x)
        x = b.op("Mul", [x, b.const(0.9, x.dtype)])
    b.op(op, [x])


@operator(2)
def rounding(b: Builder) -> None:
    op = b.one(["Floor", "Ceil", "Round", "Sign"])
    x = b.pick(FLOATS)
    if b.chance(0.3):  # exact halves
        x = b.fresh("float32", b.shape(), p_const=0.0)
        whole = b.op("Cast", [b.source("int32", b.shape(), -9, 9)], to=onnx_type(b.floats))
        x = b.op("Mul", [whole, b.const(0.5, b.floats)])
    else:
        b.far_from(x, {"Floor": np.floor, "Ceil": np.ceil, "Round": np.round, "Sign": np.sign}[op])
    b.op(op, [x])


@operator(3)
def unary_of_integers(b: Builder) -> None:
    op = b.one(["Abs", "Neg", "Sign", "BitwiseNot", "Relu", "Identity"])
    b.op(op, [b.pick(SIGNED if op in ("Neg", "Relu") else INTEGERS)])


@operator(12)
def binary(b: Builder) -> None:
    op = b.one(["Add", "Sub", "Mul", "Mul", "Add", "Div", "Max", "Min", "PRelu"])
    x = b.pick(FLOATS)
    y = b.positive(b.partner(x)) if op == "Div" else b.partner(x)
    if op == "PRelu":
        if y.rank > x.rank or np.broadcast_shapes(x.shape, y.shape) != x.shape:
            raise Rejected("slope too large")
        b.op(op, [x, y])
        return
    pair = [x, y] if op == "Div" or b.chance(0.6) else [y, x]
    b.op(op, pair)


@operator(3)
def binary_of_integers(b: Builder) -> None:
    op = b.one("Add Sub Mul Div Mod Max Min BitwiseAnd BitwiseOr BitwiseXor BitShift Pow".split())
    x = b.pick(UNSIGNED if op == "BitShift" else INTEGERS)
    if op in ("Div", "Mod"):
        y = b.partner(x, low=1, high=7)
        if b.chance(0.4) and x.dtype in SIGNED:
            y = b.op("Neg", [y])
        b.op(op, [x, y], fmod=1 if op == "Mod" and b.chance(0.3) else None)
    elif op == "BitShift":
        b.op(op, [x, b.partner(x, low=0, high=9)], direction=b.one(["LEFT", "RIGHT"]))
    elif op == "Pow":
        if x.dtype not in ("int32", "int64"):
            raise Rejected("Pow of small integers")
        if np.abs(x.sample).max(initial=0) > 50:
            raise Rejected("Pow of large integers")
        b.op(op, [x, b.const(b.number(0, 3), b.one([x.dtype, "float32"]) if b.opset >= 12 else x.dtype)])
    else:
        b.op(op, [x, b.partner(x)])


@operator(1.5)
def power(b: Builder) -> None:
    x = b.pick(FLOATS)
    exponent = b.one([2.0, 3.0, 0.5, -1.0, 1.0, 0.0, 1.7, -0.5, 4.0])
    if exponent not in (2.0, 3.0, 1.0, 0.0, 4.0):
        x = b.positive(x)
    dtype = b.one(["int32", "int64", "float32", x.dtype]) if b.opset >= 12 and b.chance(0.3) else x.dtype
    if "int" in dtype:
        exponent = int(abs(exponent))
    b.op("Pow", [x, b.const(exponent, dtype)])


@operator(1)
def float_remainder(b: Builder) -> None:
    x = b.pick(FLOATS)
    y = b.positive(b.partner(x))
    with np.errstate(all="ignore"):
        ratio = np.asarray(x.sample, np.float64) / np.asarray(y.sample, np.float64)
    if ratio.size and np.nanmin(np.abs(ratio - np.round(ratio)), initial=1) < 5e-3:
        raise Rejected("near a step")
    b.op("Mod", [x, y], fmod=1)


@operator(2)
def several(b: Builder) -> None:
    op = b.one(["Sum", "Mean", "Max", "Min"])
    x = b.pick(FLOATS if op in ("Sum", "Mean") else NUMBERS)
    b.op(op, [x, *(b.partner(x) for _ in range(b.number(0, 3)))])


@operator(3)
def clip(b: Builder) -> None:
    x = b.pick(FLOATS if b.opset < 12 or b.chance(0.7) else NUMBERS)
    low, high = (1, 5) if x.dtype in UNSIGNED else b.one([(-1, 1), (0, 6), (-0.5, 3), (0, 1), (2, -2)])
    if b.opset < 11:
        b.op(
            "Clip", [x], min=float(low) if b.chance(0.7) else None, max=float(high) if b.chance(0.7) else None
        )
        return
    bounds = [b.const(bound, x.dtype) if b.chance(0.8) else None for bound in (low, high)]
    if b.chance(0.2):
        bounds[0] = b.source(x.dtype, (), low, low + 1)
    while bounds and bounds[-1] is None:
        bounds.pop()
    b.op("Clip", [x, *bounds])


@operator(4)
def comparison(b: Builder) -> None:
    op = b.one(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
    x = b.pick(NUMBERS if op != "Equal" else (*NUMBERS, "bool"))
    y = b.partner(x)
    if x.is_float and x is not y:
        with np.errstate(all="ignore"):
            gap = np.abs(np.asarray(x.sample, np.float64) - np.asarray(y.sample, np.float64))
        if np.nanmin(np.where(gap == 0, 1, gap), initial=1) < 1e-3:
            raise Rejected("near a step")
    b.op(op, [x, y])


@operator(2)
def logic(b: Builder) -> None:
    x = b.pick(("bool",))
    if b.chance(0.3):
        b.op("Not", [x])
    else:
        b.op(b.one(["And", "Or", "Xor"]), [x, b.partner(x)])


@operator(4)
def where(b: Builder) -> None:
    condition = b.pick(("bool",))
    x = b.pick((*NUMBERS, "bool"), where=lambda v: _fits(v, condition))
    pair = [x, b.partner(x)]
    if b.chance(0.5):
        pair.reverse()
    b.op("Where", [condition, *pair])


def _fits(v, condition) -> bool:
    try:
        np.broadcast_shapes(v.shape, condition.shape)
    except ValueError:
        return False
    return True


@operator(2)
def tests_of_floats(b: Builder) -> None:
    x = b.pick(FLOATS)
    if b.chance(0.5):
        b.op("IsNaN", [x])
    else:
        signs = {f"detect_{s}": b.number(0, 1) for s in ("positive", "negative") if b.chance(0.4)}
        b.op("IsInf", [x], **signs)


@operator(6)
def cast(b: Builder) -> None:
    x = b.pick((*NUMBERS, "bool"))
    to = b.one(["float32", "float32", "float16", "float64", "bool", *SIGNED, *UNSIGNED, "bfloat16"])
    if x.is_float and to not in FLOATS:
        wide = np.asarray(x.sample, np.float64)
        if to == "bool":
            b.far_from(x, lambda a: a != 0)
        else:
            limits = np.iinfo(to)
            if (
                not np.isfinite(wide).all()
                or wide.min(initial=0) < limits.min
                or wide.max(initial=0) > limits.max
            ):
                raise Rejected("undefined cast")
            if to in UNSIGNED:  # of fresh inputs another draw could be negative
                x = b.op("Abs", [x])
            b.far_from(x, np.trunc)
    if b.opset >= 15 and b.chance(0.15):
        like = b.const(np.zeros((1,)), to)
        b.op("CastLike", [x, like])
    else:
        b.op("Cast", [x], to=onnx_type(to))


@operator(0.6)
def dropout(b: Builder) -> None:
    x = b.pick(FLOATS)
    results = [True, b.chance(0.3)]
    if b.opset < 12:
        b.node("Dropout", [x], results, ratio=0.3)
    else:
        extra = [b.const(0.4, "float32")] if b.chance(0.6) else []
        if extra and b.chance(0.4):
            extra.append(b.const(False, "bool"))
        b.node("Dropout", [x, *extra], results)
