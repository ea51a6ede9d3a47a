"""Logarithms, powers and trigonometric functions, as expressions that vectorise.

As those of ``vector_math.py``: float32 of any number of lanes, in place of a call of libm per lane.  The
coefficients are Cephes'.  What would cancel in float32 (the remainder of an angle, the exponent of a power)
is computed in float64.
"""

from __future__ import annotations

import math

from hetero_tvm.codegen.vector_math import _EXP2, _c, _horner, _i, _let, _typed
from hetero_tvm.host.tvm import Expr, tirx, tvm

_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
"""(log(1 + r) - r + r**2 / 2) / r**3 on [sqrt(1/2) - 1, sqrt(2) - 1]."""

_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
_SQRT_HALF_BITS = 0x3F3504F3
_LEAST_NORMAL = 1.1754943508222875e-38


def _d(value: float, x: Expr) -> Expr:
    """A float64 constant in as many lanes as ``x`` has."""
    scalar, lanes = tirx.const(float(value), "float64"), tvm.DataType(str(x.ty.dtype)).lanes
    return tirx.Broadcast(scalar, lanes) if lanes > 1 else scalar


def _wide(value: int, x: Expr) -> Expr:
    """An int64 constant in as many lanes as ``x`` has."""
    scalar, lanes = tirx.const(value, "int64"), tvm.DataType(str(x.ty.dtype)).lanes
    return tirx.Broadcast(scalar, lanes) if lanes > 1 else scalar


def _reinterpret(dtype: str, x: Expr) -> Expr:
    return tirx.call_intrin(_typed(dtype, x), "tirx.reinterpret", x)


def _cast(dtype: str, x: Expr) -> Expr:
    return tirx.Cast(_typed(dtype, x), x)


def is_nan(x: Expr) -> Expr:
    """Whether ``x`` is NaN, from its bits: TVM cuts vectors that its own test is in into scalars."""
    magnitude = _reinterpret("int32", x) & _i(0x7FFFFFFF, x)
    return magnitude > _i(0x7F800000, x)


def _split(x: Expr, body: object) -> Expr:
    """``body(m, e)`` with ``x = m * 2**e`` and m in [sqrt(1/2), sqrt(2)), for positive finite x."""
    small = x < _c(_LEAST_NORMAL, x)
    scaled = tirx.Select(small, x * _c(2.0**23, x), x)

    def parts(bits: Expr) -> Expr:
        mantissa = _reinterpret("float32", (bits & _i(0x7FFFFF, x)) + _i(_SQRT_HALF_BITS, x))
        exponent = _cast("float32", tirx.shift_right(bits, _i(23, x)))
        exponent = exponent - tirx.Select(small, _c(23.0, x), _c(0.0, x))
        return _let(mantissa, lambda m: _let(exponent, lambda e: body(m, e)))

    return _let(_reinterpret("int32", scaled) - _i(_SQRT_HALF_BITS, x), parts)


def log(x: Expr) -> Expr:
    """Natural logarithm, relative error 2e-7; -inf of 0, NaN below."""

    def combined(r: Expr, e: Expr) -> Expr:
        square = r * r
        value = _horner(r, _LOG) * r * square + e * _c(-2.12194440e-4, r) - _c(0.5, r) * square
        return value + r + e * _c(0.693359375, r)

    def whole(x: Expr) -> Expr:
        value = _split(x, lambda m, e: _let(m - _c(1.0, m), lambda r: combined(r, e)))
        value = tirx.Select(x < _c(math.inf, x), value, x)
        nothing = tirx.Select(tirx.EQ(x, _c(0.0, x)), _c(-math.inf, x), _c(math.nan, x))
        return tirx.Select(x > _c(0.0, x), value, nothing)

    return _let(x, whole)


def log10(x: Expr) -> Expr:
    """Logarithm to base 10."""
    return log(x) * _c(1 / math.log(10), x)


def log1p(x: Expr) -> Expr:
    """log(1 + x) with the digits that the sum loses put back (Goldberg, 1991)."""

    def whole(x: Expr) -> Expr:
        def of(y: Expr) -> Expr:
            rest = (x - (y - _c(1.0, x))) / y
            value = log(y) + tirx.Select(y < _c(math.inf, x), rest, _c(0.0, x))
            value = tirx.Select(tirx.EQ(y, _c(0.0, x)), _c(-math.inf, x), value)
            return tirx.Select(tirx.EQ(y, _c(1.0, x)), x, value)

        return _let(x + _c(1.0, x), of)

    return _let(x, whole)


def atanh(x: Expr) -> Expr:
    """Inverse of tanh, by log1p: the quotient ``(1 + x) / (1 - x)`` loses what is small; NaN beyond 1."""

    def whole(a: Expr) -> Expr:
        return _c(0.5, x) * log1p((a + a) / (_c(1.0, x) - a))

    return _let(x, lambda x: _signed(x, _let(tirx.Select(x < _c(0.0, x), -x, x), whole)))


# powers ------------------------------------------------------------------------------------------------
def _log2_double(m: Expr, e: Expr) -> Expr:
    """log2(m * 2**e) in float64, error 1e-11."""
    m, e = _cast("float64", m), _cast("float64", e)

    def series(s: Expr) -> Expr:
        def of(z: Expr) -> Expr:
            value = _d(1 / 11, s)
            for power in (9, 7, 5, 3, 1):
                value = value * z + _d(1 / power, s)
            return e + value * s * _d(2 / math.log(2), s)

        return _let(s * s, of)

    return _let((m - _d(1.0, m)) / (m + _d(1.0, m)), series)


def _exp2_double(t: Expr) -> Expr:
    """2**t as float32, of a float64."""
    t = tirx.min(_d(300.0, t), tirx.max(_d(-300.0, t), t))

    def scaled(n: Expr, r: Expr) -> Expr:
        n = _cast("int32", n)

        def power(n: Expr) -> Expr:
            return _reinterpret("float32", tirx.shift_left(n + _i(127, n), _i(23, n)))

        value = _horner(_cast("float32", r), _EXP2)

        def quarters(n: Expr) -> Expr:  # 2**300 is no float32, and neither is 2**-300
            part = tirx.shift_right(n, _i(2, n))
            return _let(part, lambda q: value * power(q) * power(q) * power(q) * power(n - q - q - q))

        return _let(n, quarters)

    return _let(t, lambda t: _let(tirx.floor(t + _d(0.5, t)), lambda n: scaled(n, t - n)))


def power(x: Expr, y: Expr) -> Expr:
    """x**y with the special cases of C's ``powf``, relative error 3e-7."""

    def whole(x: Expr, y: Expr) -> Expr:
        one, none, infinity = _c(1.0, x), _c(0.0, x), _c(math.inf, x)

        def of(size: Expr) -> Expr:
            exponent = _split(size, _log2_double)
            exponent = tirx.Select(tirx.EQ(size, none), _d(-math.inf, x), exponent)
            exponent = tirx.Select(tirx.EQ(size, infinity), _d(math.inf, x), exponent)
            value = _exp2_double(exponent * _cast("float64", y))
            value = tirx.Select(is_nan(size), size, value)
            half = y * _c(0.5, x)
            odd = tirx.NE(tirx.floor(half), half)
            whole_number = tirx.EQ(tirx.floor(y), y)
            # The sign bit, because -0.0 to an odd power is -0.0 or -inf.
            negative = _reinterpret("int32", x) < _i(0, x)
            value = tirx.Select(tirx.And(negative, tirx.And(odd, whole_number)), none - value, value)
            undefined = tirx.And(tirx.And(x < none, tirx.Not(whole_number)), size < infinity)
            value = tirx.Select(undefined, _c(math.nan, x), value)
            always_one = tirx.Or(tirx.EQ(x, one), tirx.And(tirx.EQ(size, one), tirx.EQ(half, y)))
            return tirx.Select(tirx.Or(always_one, tirx.EQ(y, none)), one, value)

        return _let(tirx.Select(x < none, none - x, x), of)

    return _let(x, lambda x: _let(y, lambda y: whole(x, y)))


# remainders --------------------------------------------------------------------------------------------
_FMOD_STEPS = 4
"""Digits of a quotient, of 23 bits at least; TVM takes twice the time to compile with each one more."""


def fmod(x: Expr, y: Expr) -> Expr:
    """Remainder of the division that is rounded towards zero, with the sign of ``x``; exact
    while the quotient has at most 92 bits."""

    def remainder(a: Expr, b: Expr, inverse: Expr) -> Expr:
        # As by hand: the quotient's first 24 bits; in float64 their product with b is exact, and the rest.
        def step(rest: Expr, left: int) -> Expr:
            if not left:
                return within(rest)
            first = _reinterpret("int64", rest * inverse) & _wide(-(1 << 29), rest)
            digit = tirx.floor(_reinterpret("float64", first))
            return _let(rest - digit * b, lambda rest: step(rest, left - 1))

        # The inverse is rounded, so that the last digit may be wrong by one.
        def within(rest: Expr) -> Expr:
            rest = tirx.Select(rest < _d(0.0, rest), rest + b, rest)
            return _let(rest, lambda rest: tirx.Select(rest >= b, rest - b, rest))

        return _let(a, lambda a: step(a, _FMOD_STEPS))

    def whole(x: Expr, y: Expr) -> Expr:
        none = _c(0.0, x)
        size, divisor = tirx.Select(x < none, none - x, x), tirx.Select(y < none, none - y, y)

        def of(a: Expr, b: Expr) -> Expr:
            wide = _cast("float64", a)
            value = _let(_cast("float64", b), lambda b: _let(_d(1.0, b) / b, lambda r: remainder(wide, b, r)))
            value = tirx.Select(a < b, a, _cast("float32", value))
            return tirx.Select(is_nan(y), y, tirx.Select(a < _c(math.inf, a), value, _c(math.nan, a)))

        return _signed(x, _let(size, lambda a: _let(divisor, lambda b: of(a, b))))

    return _let(x, lambda x: _let(y, lambda y: whole(x, y)))


def nearbyint(x: Expr) -> Expr:
    """Nearest whole number, the even one of two."""

    def whole(x: Expr) -> Expr:
        def of(low: Expr) -> Expr:
            part, half = x - low, _c(0.5, x)
            odd = tirx.NE(tirx.floor(low * half), low * half)
            up = tirx.Or(part > half, tirx.And(tirx.EQ(part, half), odd))
            return _signed(x, low + tirx.Select(up, _c(1.0, x), _c(0.0, x)))

        # Infinities have no part behind the point, and -0.5 is -0.
        finite = _let(tirx.floor(x), of)
        return tirx.Select(tirx.And(x < _c(math.inf, x), x > _c(-math.inf, x)), finite, x)

    return _let(x, whole)


# angles ------------------------------------------------------------------------------------------------
def _wave(x: Expr, shift: int) -> Expr:
    """sin(x + shift * pi / 2), error 1e-7 up to 2**29; of larger numbers, which are many turns apart, some
    value between -1 and 1."""

    def value(quadrant: Expr, r: Expr) -> Expr:
        def of(z: Expr) -> Expr:
            sine = _horner(z, _SIN) * z * r + r
            cosine = _horner(z, _COS) * z * z - _c(0.5, r) * z + _c(1.0, r)
            odd = tirx.Or(tirx.EQ(quadrant, _c(1.0, r)), tirx.EQ(quadrant, _c(3.0, r)))
            size = tirx.Select(odd, cosine, sine)
            return _let(size, lambda s: tirx.Select(quadrant > _c(1.5, r), _c(0.0, r) - s, s))

        return _let(r * r, of)

    def reduced(wide: Expr, n: Expr) -> Expr:
        # The first constant has 33 bits, so that its product with n is exact for a million turns.
        r = wide - n * _d(1.57079632673412561417, n) - n * _d(6.07710050650619224932e-11, n)
        bound = _d(0.7853982, n)  # of what is left of huge angles, too
        r = tirx.min(bound, tirx.max(_d(-0.7853982, n), r))
        turned = n + _d(float(shift), n)
        quadrant = turned - _d(4.0, n) * tirx.floor(turned * _d(0.25, n))
        return _let(_cast("float32", quadrant), lambda q: _let(_cast("float32", r), lambda r: value(q, r)))

    def whole(wide: Expr) -> Expr:
        return _let(tirx.floor(wide * _d(2 / math.pi, wide) + _d(0.5, wide)), lambda n: reduced(wide, n))

    return _let(x, lambda x: _let(_cast("float64", x), whole))


def sin(x: Expr) -> Expr:
    """Sine."""
    return _wave(x, 0)


def cos(x: Expr) -> Expr:
    """Cosine."""
    return _wave(x, 1)


def tan(x: Expr) -> Expr:
    """Tangent."""
    return _let(x, lambda x: sin(x) / cos(x))


def _signed(x: Expr, size: Expr) -> Expr:
    """``size`` with the sign of ``x``."""
    sign = _reinterpret("int32", x) & _i(-(1 << 31), x)
    return _reinterpret("float32", _reinterpret("int32", size) | sign)


def atan(x: Expr) -> Expr:
    """Arc tangent."""

    def of(a: Expr) -> Expr:
        far, near = a > _c(2.414213562373095, a), a > _c(0.4142135623730950, a)
        one = _c(1.0, a)
        top = tirx.Select(far, _c(-1.0, a), tirx.Select(near, a - one, a))
        below = tirx.Select(far, a, tirx.Select(near, a + one, one))
        base = tirx.Select(far, _c(math.pi / 2, a), tirx.Select(near, _c(math.pi / 4, a), _c(0.0, a)))

        def poly(t: Expr) -> Expr:
            return _let(t * t, lambda z: base + (_horner(z, _ATAN) * z * t + t))

        return _let(top / below, poly)

    return _let(x, lambda x: _signed(x, _let(tirx.Select(x < _c(0.0, x), _c(0.0, x) - x, x), of)))


def _arc(a: Expr) -> Expr:
    """Arc sine of 0 <= a <= 1/2."""
    return _let(a, lambda a: _let(a * a, lambda z: _horner(z, _ASIN) * z * a + a))


def asin(x: Expr) -> Expr:
    """Arc sine; NaN beyond [-1, 1]."""

    def of(a: Expr) -> Expr:
        big = a > _c(0.5, a)
        inner = tirx.Select(big, tirx.sqrt(_c(0.5, a) - _c(0.5, a) * a), a)
        return _let(_arc(inner), lambda v: tirx.Select(big, _c(math.pi / 2, a) - v - v, v))

    return _let(x, lambda x: _signed(x, _let(tirx.Select(x < _c(0.0, x), _c(0.0, x) - x, x), of)))


def acos(x: Expr) -> Expr:
    """Arc cosine; NaN beyond [-1, 1]."""

    def whole(x: Expr) -> Expr:
        def of(a: Expr) -> Expr:
            big, below = a > _c(0.5, a), x < _c(0.0, a)
            inner = tirx.Select(big, tirx.sqrt(_c(0.5, a) - _c(0.5, a) * a), a)

            def value(v: Expr) -> Expr:
                outside = tirx.Select(below, _c(math.pi, a) - v - v, v + v)
                signed = tirx.Select(below, _c(0.0, a) - v, v)
                return tirx.Select(big, outside, _c(math.pi / 2, a) - signed)

            return _let(_arc(inner), value)

        return _let(tirx.Select(x < _c(0.0, x), _c(0.0, x) - x, x), of)

    return _let(x, whole)
