"""Converters of elementwise arithmetic whose corners (NaN, infinities, overflow, mixed types) TVM's miss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_tvm.frontend.onnx.operators.common import Inputs, is_float, static_shape
from hetero_tvm.host.tvm import Expr, onnx_frontend, relax, tvm


def _sign(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Sign of which NaN is NaN; of whole numbers without one, which TVM's kernel compares with -1."""
    x, dtype = inputs[0], str(inputs[0].ty.dtype)
    if is_float(x):
        return relax.op.where(relax.op.isnan(x), x, relax.op.sign(x))
    return relax.op.minimum(x, relax.const(1, dtype)) if dtype.startswith("uint") else None


def _hyperbolic(odd: bool) -> Callable[[Inputs, dict[str, Any]], Expr | None]:
    """Sinh, or Cosh, as products of halves: ``exp(x)`` overflows before they do.  Sinh near 0 is a series."""

    def convert(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
        x = inputs[0]
        dtype = str(x.ty.dtype)
        if dtype not in ("float32", "float64"):
            return None
        half = relax.const(0.5, dtype)
        rising = relax.op.exp(relax.op.multiply(x, half))
        falling = relax.op.exp(relax.op.multiply(x, relax.const(-0.5, dtype)))
        join = relax.op.subtract if odd else relax.op.add
        y = join(
            relax.op.multiply(relax.op.multiply(half, rising), rising),
            relax.op.multiply(relax.op.multiply(half, falling), falling),
        )
        if not odd:
            return y
        square, series = relax.op.multiply(x, x), relax.const(1.0, dtype)
        for divisor in (272.0, 210.0, 156.0, 110.0, 72.0, 42.0, 20.0, 6.0)[4 if dtype == "float32" else 0 :]:
            step = relax.op.multiply(square, relax.const(1.0 / divisor, dtype))
            series = relax.op.add(relax.op.multiply(step, series), relax.const(1.0, dtype))
        near = relax.op.less(relax.op.abs(x), relax.const(1.0, dtype))
        return relax.op.where(near, relax.op.multiply(x, series), y)

    return convert


def _thresholded_relu(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """``x`` above ``alpha``, else 0: TVM multiplies with 0, which infinities and NaN survive as NaN."""
    x = inputs[0]
    alpha, zero = (relax.const(value, str(x.ty.dtype)) for value in (attrs.get("alpha", 1.0), 0.0))
    return relax.op.where(relax.op.greater(x, alpha), x, zero)


def _shrink(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """The formula, the lower side first: TVM adds both sides, and negates thresholds that have no sign.

    Whole numbers whose type lacks the threshold or the bias are computed in float64 and cut towards zero, as
    by ONNX Runtime.
    """
    x, dtype = inputs[0], str(inputs[0].ty.dtype)
    threshold, bias = (float(attrs.get(name, default)) for name, default in (("lambd", 0.5), ("bias", 0.0)))
    unsigned, kind = dtype.startswith("uint"), dtype
    # A threshold of at least 0 may be cut: no whole number lies between.
    below = threshold < 0 and (unsigned or not threshold.is_integer())
    if "int" in dtype and (below or not bias.is_integer() or (unsigned and bias < 0)):
        unsigned, kind = False, "float64"
        x = relax.op.astype(x, kind)
    added, zero = relax.const(bias, kind), relax.const(0, kind)
    y = relax.op.where(relax.op.greater(x, relax.const(threshold, kind)), relax.op.subtract(x, added), zero)
    if not unsigned:
        y = relax.op.where(relax.op.less(x, relax.const(-threshold, kind)), relax.op.add(x, added), y)
    return y if kind == dtype else relax.op.astype(y, dtype)


def _celu(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """The formula: ONNX's own definition makes a vector of a scalar."""
    x = inputs[0]
    zero, one, alpha = (relax.const(v, str(x.ty.dtype)) for v in (0.0, 1.0, float(attrs.get("alpha", 1.0))))
    below = relax.op.multiply(alpha, relax.op.subtract(relax.op.exp(relax.op.divide(x, alpha)), one))
    return relax.op.add(relax.op.maximum(x, zero), relax.op.minimum(below, zero))


def _times(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """A product with zero as ``x - x``: zero, and NaN where x is not finite.  TVM folds it to zero."""
    for x, factor in (inputs[:2], inputs[1::-1]):
        if isinstance(factor, tvm.ir.GenericConst) and not isinstance(x, tvm.ir.GenericConst):
            array, shape = factor.value.numpy(), static_shape(x)
            if array.size == 1 and is_float(x) and not array.any() and shape is not None:
                return relax.op.subtract(x, x) if array.ndim <= len(shape) else None
    return None


def _zero(value: Any) -> np.ndarray | None:
    """A constant of one element that is zero, or None."""
    if not isinstance(value, tvm.ir.GenericConst) or not is_float(value):
        return None
    array = value.value.numpy()
    return array if array.size == 1 and not array.any() else None


def _divided(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """A quotient by zero as a product with infinity, one of zero as ``1 / x - 1 / x``.

    TVM refuses to write the first and takes the second for zero, which it is not where x is 0 or NaN.
    """
    x, divisor = inputs[:2]
    if (zero := _zero(divisor)) is not None:
        return relax.op.multiply(x, _constant(np.copysign(np.inf, zero), x))
    if (zero := _zero(x)) is not None and zero.ndim <= len(static_shape(divisor) or ()):
        inverse = relax.op.divide(_constant(np.ones_like(zero), divisor), divisor)
        return relax.op.subtract(inverse, inverse)
    return None


def _constant(array: np.ndarray, like: Expr) -> Expr:
    dtype = str(like.ty.dtype)
    return relax.const(np.asarray(array).astype(dtype), dtype)


def _pow(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Powers of whole numbers, and of two types; TVM has those of one type of floats."""
    base, exponent = inputs[0], inputs[1]
    kind, other = str(base.ty.dtype), str(exponent.ty.dtype)
    if all(isinstance(value, tvm.ir.GenericConst) for value in (base, exponent)):
        return None
    if "float" in kind:
        return None if kind == other else relax.op.power(base, relax.op.astype(exponent, kind))
    if "float" in other:  # in double: a power that is a whole number must not end just below it
        powers = relax.op.power(relax.op.astype(base, "float64"), relax.op.astype(exponent, "float64"))
        return relax.op.astype(powers, kind)
    one, zero = relax.const(1, kind), relax.const(0, kind)
    count = relax.op.astype(exponent, kind) if kind != other else exponent
    odd = relax.op.bitwise_and(count, one)
    # Beyond 62 only 0, 1 and -1 have powers that fit, and whether the exponent is odd decides.
    most = relax.const(62, kind)
    rest = relax.op.where(relax.op.greater(count, most), relax.op.add(most, odd), count)
    power, square = relax.op.add(relax.op.subtract(base, base), one), base
    for _ in range(6):
        is_set = relax.op.equal(relax.op.bitwise_and(rest, one), one)
        power = relax.op.multiply(power, relax.op.where(is_set, square, one))
        square, rest = relax.op.multiply(square, square), relax.op.right_shift(rest, one)
    if kind.startswith("u"):
        return power
    unit = relax.op.less_equal(relax.op.abs(base), one)
    small = relax.op.where(relax.op.equal(odd, one), base, relax.op.multiply(base, base))
    negative = relax.op.where(unit, small, zero)  # 1 / n is 0 for all others
    return relax.op.where(relax.op.less(count, zero), negative, power)


def _cast(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Conversion of floats to int32 and int64 as processors have it; TVM's wraps what is too large around.

    What lies outside of the type, NaN included, becomes its least number on x86, as in ONNX Runtime.
    """
    x, wanted = inputs[0], onnx_frontend.get_type(attrs["to"])
    given = isinstance(x, relax.Expr) and isinstance(getattr(x, "ty", None), relax.TensorType)
    if not given or isinstance(x, tvm.ir.GenericConst) or wanted not in ("int32", "int64"):
        return None
    return relax.op.astype(x, wanted) if str(x.ty.dtype) in ("float32", "float64") else None


def _reduced_axes(inputs: Inputs, attrs: dict[str, Any]) -> list[int] | None:
    """Axes of a reduction, [] for all; None where they come at run time, or nothing is reduced."""
    axes = attrs.get("axes")
    if len(inputs) > 1 and inputs[1] is not None:
        if not isinstance(inputs[1], tvm.ir.GenericConst):
            return None
        axes = inputs[1].value.numpy()
    if axes is None or not len(axes):
        return None if attrs.get("noop_with_empty_axes", 0) else []
    return [int(axis) for axis in axes]


def _reduce_mean(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Mean of whole numbers, cut towards zero; TVM's has the type of the extents instead of the operand's."""
    x, axes, dtype = inputs[0], _reduced_axes(inputs, attrs), str(inputs[0].ty.dtype)
    if "int" not in dtype or axes is None:
        return None
    kind = dtype if dtype == "uint64" else "int64"
    wide = x if kind == dtype else relax.op.astype(x, kind)
    keep = bool(attrs.get("keepdims", 1))
    total, count = (relax.op.sum(y, axes or None, keep) for y in (wide, relax.op.ones_like(wide)))
    mean = relax.op.divide(total, count)
    return mean if kind == dtype else relax.op.astype(mean, dtype)


def _gemm(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Sum of products of whole numbers by factors that are none, which TVM's converter rounds to whole ones.

    It is computed in float64 and cut towards zero, as by ONNX's evaluator.
    """
    alpha, beta = (float(attrs.get(name, 1.0)) for name in ("alpha", "beta"))
    a, b, dtype = *inputs[:2], str(inputs[0].ty.dtype)
    if "int" not in dtype or (alpha.is_integer() and beta.is_integer()):
        return None
    a, b = (
        relax.op.permute_dims(x, [1, 0]) if attrs.get(name, 0) else x
        for x, name in ((a, "transA"), (b, "transB"))
    )
    total = relax.op.multiply(
        relax.op.astype(relax.op.matmul(a, b), "float64"), relax.const(alpha, "float64")
    )
    if len(inputs) > 2 and inputs[2] is not None:
        bias = relax.op.multiply(relax.op.astype(inputs[2], "float64"), relax.const(beta, "float64"))
        total = relax.op.add(total, bias)
    return relax.op.astype(total, dtype)


def _neg(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Negation of whole numbers without a sign, which wraps around; TVM's multiplies with -1."""
    x, dtype = inputs[0], str(inputs[0].ty.dtype)
    return relax.op.subtract(relax.const(0, dtype), x) if dtype.startswith("uint") else None


def _reduce_log_sum_exp(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Logarithm of a sum of exponentials; TVM's is NaN where the largest value is infinite."""
    x, found = inputs[0], _reduced_axes(inputs, attrs)
    if not is_float(x) or found is None:
        return None
    axes = found or None
    peak = relax.op.max(x, axes, True)
    peak = relax.op.where(relax.op.isfinite(peak), peak, relax.const(0.0, str(x.ty.dtype)))
    total = relax.op.sum(relax.op.exp(relax.op.subtract(x, peak)), axes, True)
    result = relax.op.add(relax.op.log(total), peak)
    return result if attrs.get("keepdims", 1) else relax.op.squeeze(result, axes)


def _exponential_below_zero(alpha: float, gamma: float) -> Callable[[Inputs, dict[str, Any]], Expr]:
    """Converter of Elu and Selu in the operand's own type; TVM's constants are float32, and NaN becomes 0."""

    def convert(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
        x = inputs[0]
        zero, one, slope, scale = (
            relax.const(value, str(x.ty.dtype))
            for value in (0.0, 1.0, attrs.get("alpha", alpha), attrs.get("gamma", gamma))
        )
        below = relax.op.multiply(slope, relax.op.subtract(relax.op.exp(x), one))
        curve = relax.op.where(relax.op.less(x, zero), below, x)
        if not attrs.get("gamma", gamma):
            return relax.op.subtract(curve, curve)  # TVM folds a product with zero
        return curve if attrs.get("gamma", gamma) == 1.0 else relax.op.multiply(scale, curve)

    return convert


def _flat_below_zero(x: Expr) -> Expr:
    """``x``, and zero times it below zero: NaN where it is not finite.  TVM folds that product to zero."""
    return relax.op.where(relax.op.greater(x, relax.const(0, str(x.ty.dtype))), x, relax.op.subtract(x, x))


def _hard_sigmoid(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """One whose slope is zero, which is NaN where the operand is not finite."""
    if attrs.get("alpha", 0.2):
        return None
    x = inputs[0]
    level = relax.const(min(max(attrs.get("beta", 0.5), 0.0), 1.0), str(x.ty.dtype))
    return relax.op.add(relax.op.subtract(x, x), level)


def _leaky_relu(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """One whose slope is zero; TVM's converter is right of others."""
    return _flat_below_zero(inputs[0]) if attrs.get("alpha", 0.01) == 0 else None


def _prelu(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """A choice where the operand is a scalar, which TVM's converter does not take, or slopes are not finite,
    which it multiplies with the zeros of what lies above."""
    x, slope = inputs
    shape, slopes = static_shape(x), static_shape(slope)
    if shape is None or slopes is None:
        return None
    wide = (1,) * (len(shape) - len(slopes)) + slopes
    if len(wide) > max(len(shape), 1) or any(n not in (1, m) for n, m in zip(wide, shape, strict=False)):
        raise ValueError(f"slopes of shape {slopes} do not fit an operand of shape {shape}")
    if _zero(slope) is not None:
        return _flat_below_zero(x)
    finite = not isinstance(slope, tvm.ir.GenericConst) or np.isfinite(slope.value.numpy()).all()
    if finite and (shape or any(extent != 1 for extent in slopes)):
        return None
    slope = relax.op.reshape(slope, wide[len(wide) - len(shape) :])
    zero = relax.const(0, str(x.ty.dtype))
    return relax.op.where(relax.op.greater(x, zero), x, relax.op.multiply(x, slope))


def _sum(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """Sums of two, one after the other; TVM's converter stacks copies, and fails without elements."""
    return functools.reduce(relax.op.add, inputs)


def _mean(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """A sum by the number of its terms, likewise."""
    total = _sum(inputs, attrs)
    return relax.op.divide(total, relax.const(len(inputs), str(inputs[0].ty.dtype)))


ARITHMETIC: dict[str, Callable[[Inputs, dict[str, Any]], Expr | None]] = {
    "Cast": _cast,
    "Celu": _celu,
    "Cosh": _hyperbolic(odd=False),
    "Div": _divided,
    "Elu": _exponential_below_zero(1.0, 1.0),
    "Gemm": _gemm,
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": _leaky_relu,
    "Mean": _mean,
    "Mul": _times,
    "Neg": _neg,
    "PRelu": _prelu,
    "Pow": _pow,
    "ReduceLogSumExp": _reduce_log_sum_exp,
    "ReduceMean": _reduce_mean,
    "Selu": _exponential_below_zero(1.67326319217681884765625, 1.05070102214813232421875),
    "Shrink": _shrink,
    "Sign": _sign,
    "Sinh": _hyperbolic(odd=True),
    "Sum": _sum,
    "ThresholdedRelu": _thresholded_relu,
}
"""Operator -> its converter."""
