"""exp, tanh and sigmoid of float64, as expressions that vectorise.

As those of ``vector_math.py``, in place of a call of libm per lane: of a power of e the integer power of 2
becomes the exponent, the rest a Taylor series up to the thirteenth power, whose remainder is below 1e-17.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.codegen.vector_functions import _cast, _d, _reinterpret, _wide
from hetero_tvm.codegen.vector_math import _let
from hetero_tvm.host.tvm import Expr, tirx

_TERMS = tuple(1.0 / math.factorial(n) for n in range(13, 1, -1))
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""ln 2, in a number whose products with exponents are exact, and the rest."""
_LOWEST, _HIGHEST = -746.0, 710.0
"""Powers of e that are 0 and infinite."""
_ONE_BELOW = 22.0
"""Least number whose tanh is 1 in float64."""


def _power_of_2(n: Expr) -> Expr:
    """2**n of an int64 that an exponent can be."""
    bits = tirx.shift_left(n + _wide(1023, n), _wide(52, n))
    return _reinterpret("float64", bits)


def _reduced(y: Expr, body: Callable[[Expr, Expr], Expr]) -> Expr:
    """``body(n, p)`` with ``e**y = 2**n * (1 + p)``, n an int64, for y in [-746, 710]."""

    def split(y: Expr, n: Expr) -> Expr:
        rest = y - n * _d(_LN2_HIGH, y) - n * _d(_LN2_LOW, y)
        whole = _cast("int64", _cast("int32", n))
        return _let(rest, lambda r: _let(_series(r), lambda p: _let(whole, lambda n: body(n, p))))

    n = tirx.floor(y * _d(1.4426950408889634, y) + _d(0.5, y))
    return _let(n, lambda n: split(y, n))


def _series(r: Expr) -> Expr:
    """e**r - 1 for r in [-.35, .35]."""
    value = _d(_TERMS[0], r)
    for term in _TERMS[1:]:
        value = value * r + _d(term, r)
    return value * (r * r) + r


def exp(x: Expr) -> Expr:
    """e**x, relative error 4e-16; 0 below -745.2, inf above 709.8; NaN stays NaN."""

    def scaled(n: Expr, p: Expr) -> Expr:
        # In two factors: 2**n may lie beyond the exponents, where the result does not.
        half = tirx.shift_right(n, _wide(1, n))
        return _let(half, lambda h: (p + _d(1.0, p)) * _power_of_2(h) * _power_of_2(n - h))

    def whole(x: Expr) -> Expr:
        low = tirx.Select(x < _d(_LOWEST, x), _d(_LOWEST, x), x)
        kept = tirx.Select(low > _d(_HIGHEST, x), _d(_HIGHEST, x), low)
        return _let(kept, lambda y: _reduced(y, scaled))

    return _let(x, whole)


def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent, relative error 5e-16; of e**2x - 1, which keeps the digits of small numbers."""

    def signed(x: Expr, size: Expr) -> Expr:
        sign = _reinterpret("int64", x) & _wide(-(1 << 63), x)
        return _reinterpret("float64", _reinterpret("int64", size) | sign)

    def quotient(n: Expr, p: Expr) -> Expr:
        scale = _power_of_2(n)
        less_one = _let(scale, lambda s: s * p + (s - _d(1.0, p)))
        return _let(less_one, lambda e: e / (e + _d(2.0, e)))

    def whole(x: Expr) -> Expr:
        size = tirx.abs(x)
        kept = tirx.Select(size > _d(_ONE_BELOW, x), _d(_ONE_BELOW, x), size)
        return signed(x, _let(kept + kept, lambda y: _reduced(y, quotient)))

    return _let(x, whole)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e**-x)."""
    one = _d(1.0, x)
    return one / (one + exp(-x))
