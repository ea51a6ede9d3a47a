"""exp, erf, tanh and activations built from them, as expressions that vectorise.

LLVM turns ``exp`` of a vector into one libm call per lane (20 to 74 ns per 8 lanes); a polynomial
costs 3 ns.  All functions take and return float32 expressions of any number of lanes.

Rounding uses ``floor(x + 0.5)``: ``nearbyint`` is scalarised, and the ``(x + 1.5 * 2**23) - 1.5 * 2**23``
trick is folded away by TVM's simplifier.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.host.activation_names import ByName
from hetero_tvm.host.tvm import Expr, tirx, tvm, tvm_ffi


def _lanes(x: Expr) -> int:
    """Lanes of a value; 1 for a scalar."""
    return tvm.DataType(str(x.ty.dtype)).lanes


def _c(value: float, x: Expr) -> Expr:
    """A float32 constant in as many lanes as ``x`` has."""
    scalar = tirx.const(float(value), "float32")
    lanes = _lanes(x)
    return tirx.Broadcast(scalar, lanes) if lanes > 1 else scalar


def _i(value: int, x: Expr) -> Expr:
    """An int32 constant in as many lanes as ``x`` has."""
    scalar = tirx.const(value, "int32")
    lanes = _lanes(x)
    return tirx.Broadcast(scalar, lanes) if lanes > 1 else scalar


def _typed(dtype: str, x: Expr) -> str:
    """``dtype`` with as many lanes as ``x`` has."""
    lanes = _lanes(x)
    return f"{dtype}x{lanes}" if lanes > 1 else dtype


def _let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """``body`` of a variable bound to ``value``: in a tree, reuse without a name is repetition."""
    name = tirx.Var("t", str(value.ty.dtype))
    return tirx.Let(name, tvm_ffi.structural_map(value, (tirx.Cast, _chosen), order="post"), body(name))


def _chosen(cast: tirx.Cast) -> Expr:
    """A number made of a condition, as a choice: TVM's analysis of what is bound takes no vectors of bool."""
    if not str(cast.value.ty.dtype).startswith("bool"):
        return cast
    dtype = str(cast.ty.dtype)
    return tirx.Select(cast.value, tirx.const(1, dtype), tirx.const(0, dtype))


def _horner(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """A polynomial; the coefficient of the highest power comes first."""
    value = _c(coefficients[0], x)
    for coefficient in coefficients[1:]:
        value = value * x + _c(coefficient, x)
    return value


_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def _exp_in_range(y: Expr, upper: bool = False) -> Expr:
    """e**y for y in [-87.3, 88.3]; with ``upper`` up to 88.72, where e**y overflows.

    ``y = n ln2 + r``, a polynomial for ``e**r``, and ``2**n`` added to the exponent bits: Cody and
    Waite's reduction with the coefficients of Cephes' ``expf``.  Beyond 88.376 n would be 128, which
    the exponent cannot take: ``upper`` keeps it at 127 (relative error 4e-7 there).
    """

    def scaled(n: Expr, r: Expr) -> Expr:
        p = _horner(r, _EXP) * r * r + r + _c(1.0, r)
        bits = tirx.call_intrin(_typed("int32", r), "tirx.reinterpret", p)
        shifted = bits + tirx.shift_left(tirx.Cast(_typed("int32", r), n), _i(23, r))
        return tirx.call_intrin(_typed("float32", r), "tirx.reinterpret", shifted)

    def reduced(y: Expr, n: Expr) -> Expr:
        r = y - n * _c(0.693145751953125, y) - n * _c(1.428606765330187e-06, y)
        return _let(r, lambda r: scaled(n, r))

    def split(y: Expr) -> Expr:
        n = tirx.floor(y * _c(1.4426950408889634, y) + _c(0.5, y))
        n = tirx.min(_c(127.0, y), n) if upper else n
        return _let(n, lambda n: reduced(y, n))

    return _let(y, split)


def exp(x: Expr) -> Expr:
    """e**x, relative error 1.2e-7 (4e-7 above 88.3); 0 below -87.3, inf above 88.7; NaN stays NaN."""

    def whole(x: Expr) -> Expr:
        low, high = _c(-87.33654, x), _c(88.72283, x)
        value = _exp_in_range(tirx.max(low, x), upper=True)
        value = tirx.Select(x < low, _c(0.0, x), value)
        return tirx.Select(x > high, _c(math.inf, x), value)

    return _let(x, whole)


_EXP2 = (0.00132647273, 0.00967151270, 0.0555073374, 0.240222421, 0.693146978, 1.0)
"""2**r on [-1/2, 1/2], relative error 2e-7 (least maximum among those that are 1 at 0: the logarithm of a
sum of exponentials that one term makes up is 0)."""


def softmax_exp(x: Expr, peak: Expr) -> Expr:
    """e**(x - peak) for ``x <= peak``, relative error 3e-7; below e**-87 less than 2e-38, below e**-89 zero.

    As a power of two there is nothing to reduce but the integer part: ``2**n * 2**r``.  NaN stays NaN.
    2**-127 has the exponent bits of zero, and 1 as its polynomial no others: it is zero at no cost.
    """

    # This operand order of max lets NaN through.
    return _exp2(tirx.max(_c(-127.0, x), (x - peak) * _c(1.4426950408889634, x)))


_EXP2_OF_HALVES = (0.039615848, 0.23115857, 0.69158745, 1.0)
"""2**r on [-1, 0], relative error 9e-05, 1 at 0."""


def softmax_exp_of_halves(x: Expr, peak: Expr, factor: float = 1.0) -> Expr:
    """e**(x * factor - peak) for what is not above 0, relative error 9e-5: a twentieth of what rounding to
    bfloat16 makes of it.  Zero below 2**-126; NaN stays NaN."""
    log2_e = 1.4426950408889634

    def scaled(y: Expr, n: Expr, r: Expr) -> Expr:
        bits = tirx.call_intrin(_typed("int32", r), "tirx.reinterpret", _horner(r, _EXP2_OF_HALVES))
        shifted = bits + tirx.shift_left(n, _i(23, r))
        power = tirx.call_intrin(_typed("float32", r), "tirx.reinterpret", shifted)
        return tirx.Select(y < _c(-126.0, y), _c(0.0, y), power)

    def reduced(y: Expr) -> Expr:
        whole = tirx.Cast(_typed("int32", y), y)
        return _let(whole, lambda n: _let(y - tirx.Cast(_typed("float32", y), n), lambda r: scaled(y, n, r)))

    return _let(x * _c(factor * log2_e, x) - peak * _c(log2_e, x), reduced)


def _exp2(y: Expr) -> Expr:
    """2**y for y in [-126, 126], relative error 2e-7; 0 for -127."""

    def scaled(n: Expr, r: Expr) -> Expr:
        bits = tirx.call_intrin(_typed("int32", r), "tirx.reinterpret", _horner(r, _EXP2))
        shifted = bits + tirx.shift_left(tirx.Cast(_typed("int32", r), n), _i(23, r))
        return tirx.call_intrin(_typed("float32", r), "tirx.reinterpret", shifted)

    return _let(y, lambda y: _let(_round(y), lambda n: _let(y - n, lambda r: scaled(n, r))))


def _round(x: Expr) -> Expr:
    """Nearest integer.  TVM's vectoriser would take ``nearbyint`` apart, but not one on vectors."""
    if _lanes(x) == 1:
        return tirx.floor(x + _c(0.5, x))
    return tirx.call_llvm_pure_intrin(_typed("float32", x), "llvm.nearbyint", x)


# fmt: off
_ERF_NUMERATOR = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06,
    -5.69250639462346e-05, -7.34990630326855e-04, -2.95459980854025e-03,
    -1.60960333262415e-02,
)
"""Odd polynomial in x on [-4, 4], in powers of x**2."""
_ERF_DENOMINATOR = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03,
    -7.37332916720468e-03, -1.42647390514189e-02,
)
"""Even polynomial in x on [-4, 4], in powers of x**2."""
# fmt: on


def _within_one(quotient: Expr, x: Expr) -> Expr:
    """A quotient that may round to 1 + 2e-7, of which a logarithm or a root of 1 - y would be NaN."""
    return _let(quotient, lambda y: tirx.max(_c(-1.0, x), tirx.min(_c(1.0, x), y)))


def erf(x: Expr) -> Expr:
    """The error function within [-1, 1], absolute error 4e-7 (rational, of degree 13/8 on [-4, 4])."""

    def ratio(y: Expr, s: Expr) -> Expr:
        return _within_one(y * _horner(s, _ERF_NUMERATOR) / _horner(s, _ERF_DENOMINATOR), x)

    clamped = tirx.max(_c(-4.0, x), tirx.min(_c(4.0, x), x))
    return _let(clamped, lambda y: _let(y * y, lambda s: ratio(y, s)))


# fmt: off
_TANH_NUMERATOR = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11,
    5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04,
    4.89352455891786e-03,
)
"""Odd polynomial in x on [-9, 9], in powers of x**2."""
_TANH_DENOMINATOR = (
    1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03,
    4.89352518554385e-03,
)
"""Even polynomial in x on [-9, 9], in powers of x**2."""
# fmt: on


def tanh(x: Expr) -> Expr:
    """tanh within [-1, 1], absolute error 3e-7 (rational, of degree 13/6 on [-9, 9], as in Eigen)."""

    def ratio(y: Expr, s: Expr) -> Expr:
        return _within_one(y * _horner(s, _TANH_NUMERATOR) / _horner(s, _TANH_DENOMINATOR), x)

    clamped = tirx.max(_c(-9.0, x), tirx.min(_c(9.0, x), x))
    return _let(clamped, lambda y: _let(y * y, lambda s: ratio(y, s)))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e**-x), relative error 4e-7 + 6e-8 |x| for negative x, where a logarithm may follow.

    Below -87.3 it is 0, as ``exp`` is.
    """

    def whole(x: Expr) -> Expr:
        y = tirx.min(_c(126.0, x), tirx.max(_c(-126.0, x), x * _c(-1.4426950408889634, x)))
        return tirx.Select(x < _c(-87.33654, x), _c(0.0, x), _c(1.0, x) / (_c(1.0, x) + _exp2(y)))

    return _let(x, whole)


def silu(x: Expr) -> Expr:
    """x * sigmoid(x)."""
    return _let(x, lambda x: x * sigmoid(x))


def quick_gelu(x: Expr) -> Expr:
    """x * sigmoid(1.702 x), CLIP's approximation of GELU."""
    return _let(x, lambda x: x * sigmoid(_c(1.702, x) * x))


# fmt: off
_CDF = (
    0.00109774875, -0.00324797025, 0.0037580682, -0.00457318686, 0.00977869425, -0.0170214288, 0.0239236075,
    -0.0319759585, 0.0414755084, -0.0519230589, 0.0650394931, -0.0880664438, 0.176734924,
)
# fmt: on
"""(cdf(x) - 1/2) / z of the normal distribution, z = 4 x / 5.2, in powers of ``z**2 / 8 - 1``.

Least maximum of x times the error on |x| <= 5.2.  The coefficients add up to 1/8 in float32, so that
z = -4 gives ``-4 / 8 + 1/2``: exactly zero, however large -x is."""


def gelu_erf(x: Expr) -> Expr:
    """x / 2 * (1 + erf(x / sqrt 2)) = x * cdf(x), absolute error 1.5e-6 where |x| <= 5, then 3e-7 relative.

    A polynomial without a division costs half of a rational one (a vector division takes as long as
    ten FMAs).
    """

    def product(x: Expr, z: Expr) -> Expr:
        q = _let(z * z * _c(0.125, x) - _c(1.0, x), lambda u: _horner(u, _CDF))
        return x * (z * q + _c(0.5, x))

    def whole(x: Expr) -> Expr:
        z = tirx.max(_c(-4.0, x), tirx.min(_c(4.0, x), x * _c(4.0 / 5.2, x)))
        return _let(z, lambda z: product(x, z))

    return _let(x, whole)


def gelu_tanh(x: Expr) -> Expr:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3)))."""

    def whole(x: Expr) -> Expr:
        inner = _c(math.sqrt(2.0 / math.pi), x) * (x + _c(0.044715, x) * x * x * x)
        return x * _c(0.5, x) * (_c(1.0, x) + tanh(inner))

    return _let(x, whole)


def relu(x: Expr) -> Expr:
    """max(x, 0)."""
    return tirx.max(_c(0.0, x), x)  # this operand order lets NaN through


def relu6(x: Expr) -> Expr:
    """min(max(x, 0), 6)."""
    return tirx.min(_c(6.0, x), tirx.max(_c(0.0, x), x))


def hard_swish(x: Expr) -> Expr:
    """x * relu6(x + 3) / 6, MobileNetV3's approximation of SiLU."""
    return _let(x, lambda x: x * (relu6(x + _c(3.0, x)) * _c(1.0 / 6.0, x)))


def leaky_relu(slope: float) -> Callable[[Expr], Expr]:
    """x, and below zero ``slope * x``; of a slope between 0 and 1."""
    return lambda x: _let(x, lambda x: tirx.Select(x > _c(0.0, x), x, _c(slope, x) * x))


_KNOWN: dict[str, Callable[[Expr], Expr]] = {
    "relu": relu,
    "relu6": relu6,
    "gelu_erf": gelu_erf,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "quick_gelu": quick_gelu,
    "hard_swish": hard_swish,
    "sigmoid": sigmoid,
    "tanh": tanh,
}
ACTIVATIONS = ByName(_KNOWN, leaky_relu)
"""Name -> vector code, for the names of :data:`hetero_tvm.ops.activations.ACTIVATIONS`."""
