"""Functions that NumPy lacks: SciPy's where it is installed, else exact and slower ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np


def erf(x: np.ndarray) -> np.ndarray:
    """Error function of each element, in the dtype of ``x`` (whole numbers become float64)."""
    return _erf()(x)


def expit(x: np.ndarray) -> np.ndarray:
    """Logistic function of each element, in the dtype of ``x``; no overflow for large negative ones."""
    x = np.asarray(x)
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(_floating(x.dtype), copy=False)


@functools.lru_cache(maxsize=1)
def _erf() -> Callable[[Any], np.ndarray]:
    try:
        from scipy.special import erf as found  # slow to import
    except ImportError:
        return plain_erf
    return found


def plain_erf(x: np.ndarray) -> np.ndarray:
    """Error function by the C library, element by element (10 million a second)."""
    x = np.asarray(x)
    return np.asarray(_each(x.astype(np.float64))).astype(_floating(x.dtype))


def normal_quantile(part: np.ndarray) -> np.ndarray:
    """Quantiles of the standard normal distribution at numbers between 0 and 1, float64.

    Wichura, *Algorithm AS 241: The Percentage Points of the Normal Distribution*, 1988 (PPND16).  The same
    numbers on every machine, whether SciPy is there or not: a model that draws them is the same model.
    """
    part = np.asarray(part, np.float64)
    from_middle = part - 0.5
    middle = np.abs(from_middle) <= 0.425
    found = np.empty_like(part)
    inner = from_middle[middle]
    found[middle] = inner * _ratio(0.180625 - inner * inner, _MIDDLE)
    tail = ~middle
    distance = np.sqrt(-np.log(np.where(from_middle < 0, part, 1 - part)[tail]))
    outer = np.where(distance <= 5, _ratio(distance - 1.6, _TAIL), _ratio(distance - 5, _FAR_TAIL))
    found[tail] = np.copysign(outer, from_middle[tail])
    return found


def _ratio(x: np.ndarray, polynomials: tuple[tuple[float, ...], tuple[float, ...]]) -> np.ndarray:
    over, under = polynomials
    return np.polynomial.polynomial.polyval(x, over) / np.polynomial.polynomial.polyval(x, under)


_MIDDLE = (
    (
        *(3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4),
        *(4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    ),
    (
        *(1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3),
        *(2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
    ),
)
"""Coefficients of AS 241 by rising powers, numerator and denominator: of the middle; below, of the tails."""
_TAIL = (
    (
        *(1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0),
        *(3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1),
        *(2.27238449892691845833e-2, 7.74545014278341407640e-4),
    ),
    (
        *(1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1),
        *(1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4),
        1.05075007164441684324e-9,
    ),
)
_FAR_TAIL = (
    (
        *(6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0),
        *(2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3),
        *(2.71155556874348757815e-5, 2.01033439929228813265e-7),
    ),
    (
        *(1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2),
        *(7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7),
        2.04426310338993978564e-15,
    ),
)

_each = np.frompyfunc(math.erf, 1, 1)


def _floating(dtype: np.dtype) -> np.dtype:
    return dtype if dtype.kind == "f" else np.dtype(np.float64)
