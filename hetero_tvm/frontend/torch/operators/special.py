"""Special functions: gamma and its logarithm's slope, Bessel and error functions, their inverses, divisors.

They are computed in float64, with as many terms as that takes, and rounded to the operand's type.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip
"""Coefficients of Lanczos' sum for g = 7."""
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 5 / 660, -691 / 32760, 1 / 12)
"""B(2n) / 2n, of the series in 1 / x^2."""
_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""B(2n), of its slope's series in 1 / x^2."""
_SHIFTS = 10
"""Steps up to where that series is exact to float64."""
_NEAR = 15.0
"""Argument of a Bessel function from which on its series in 1 / x is the exact one."""
_CENTRE = ((0.886226899, -1.645349621, 0.914624893, -0.140543331),
           (1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801))  # fmt: skip
_TAIL = ((-1.970840454, -1.624906493, 3.429567803, 1.641345311), (1.0, 3.543889200, 1.637067800))
"""Quotients of polynomials near the inverse error function, which two of Newton's steps make exact."""
_SCALED = (
    1.2375126308378275, -0.14024059858554705, 0.0035854154854794845, 0.0822767384901497, -0.10880393014246265,
    0.09230432116026314, -0.058693398576378286, 0.028362277420301868, -0.00974657968534847,
    0.0017556258441161594, 0.0002937143873719235, -0.00029015404560934306, 5.1646503738744544e-05,
    2.2384150042457206e-05, -1.1438001513426802e-05, -9.734110872465873e-07, 1.7419287151954745e-06,
    -5.7380074393209825e-08, -2.485331343640653e-07, 2.337395030453683e-08, 3.1963886161675214e-08,
    -3.787150956031987e-09, -2.620425589786976e-09, 3.1840161719935736e-10,
)  # fmt: skip
"""Chebyshev's approximation of ``(1 + 2 x) exp(x^2) erfc(x)``, in ``(x - 3.75) / (x + 3.75)``, for x >= 0."""
_QUANTILE_STEPS = 5
"""Newton's steps that make any quantile of the normal distribution exact."""
_DIVISIONS = {8: 13, 16: 24, 32: 47, 64: 93}
"""Most divisions that Euclid's algorithm takes, by bits: those of neighbours in Fibonacci's series."""


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Functions of single elements by sums, quotients and products."""
    aten, prims = torch.ops.aten, torch.ops.prims

    def in_double(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
        def computed(x: Tensor) -> Tensor:
            kind = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
            return function(x.to(torch.float64)).to(kind)

        return computed

    def polynomial(x: Tensor, terms: Sequence[float]) -> Tensor:
        """Sum of ``terms``, the constant one first, by Horner."""
        y = torch.full_like(x, terms[-1])
        for term in reversed(terms[:-1]):
            y = y * x + term
        return y

    def fraction(x: Tensor) -> Tensor:
        return x - x.floor()

    def lgamma(x: Tensor) -> Tensor:
        mirrored = x < 0.5
        z = torch.where(mirrored, 1.0 - x, x) - 1.0
        total = torch.full_like(z, _LANCZOS[0])
        for n, term in enumerate(_LANCZOS[1:], 1):
            total = total + term / (z + n)
        t = z + 7.5
        y = 0.5 * math.log(2 * math.pi) + (z + 0.5) * t.log() - t + total.log()
        waves = (fraction(x) * math.pi).sin()
        y = torch.where(mirrored, math.log(math.pi) - waves.log() - y, y)
        pole = x.isinf() | ((x <= 0) & (fraction(x) == 0))
        return torch.where(pole, math.inf, y)

    def digamma(x: Tensor) -> Tensor:
        mirrored = x < 0
        z = torch.where(mirrored, 1.0 - x, x)
        total = torch.zeros_like(z)
        for _ in range(_SHIFTS):
            low = z < _SHIFTS
            total = total - torch.where(low, 1.0 / z, 0.0)
            z = torch.where(low, z + 1.0, z)
        square = 1.0 / (z * z)
        y = total + z.log() - 0.5 / z - square * polynomial(square, _DIGAMMA)
        turns = fraction(x) * math.pi
        y = torch.where(mirrored, y - math.pi * turns.cos() / turns.sin(), y)
        y = torch.where(x == 0, -1.0 / x, y)  # infinite, by the sign of the zero
        return torch.where(mirrored & ((fraction(x) == 0) | x.isinf()), math.nan, y)

    def trigamma(x: Tensor) -> Tensor:
        """Slope of digamma, which its gradient takes."""
        mirrored = x < 0.5
        z = torch.where(mirrored, 1.0 - x, x)
        total = torch.zeros_like(z)
        for _ in range(_SHIFTS):
            low = z < _SHIFTS
            total = total + torch.where(low, 1.0 / (z * z), 0.0)
            z = torch.where(low, z + 1.0, z)
        square = 1.0 / (z * z)
        y = total + 1.0 / z + square / 2 + square / z * polynomial(square, _TRIGAMMA)
        wave = (fraction(x) * math.pi).sin()
        return torch.where(mirrored, (math.pi / wave) ** 2 - y, y)

    def polygamma(n: int, x: Tensor) -> Any:
        """Derivative ``n`` of digamma."""
        return in_double((digamma, trigamma)[n])(x) if n in (0, 1) else NotImplemented

    def erfinv(x: Tensor) -> Tensor:
        size = x.abs()
        square = x * x
        centre = x * polynomial(square, _CENTRE[0]) / polynomial(square, _CENTRE[1])
        root = (-((1.0 - size.clamp(max=1 - 1e-300)) / 2).log()).sqrt()
        tail = polynomial(root, _TAIL[0]) / polynomial(root, _TAIL[1])
        y = torch.where(size <= 0.7, centre, torch.where(x < 0, -tail, tail))
        for _ in range(2):
            y = y - (y.erf() - x) / (2 / math.sqrt(math.pi) * (-y * y).exp())
        y = torch.where(size == 1, x * math.inf, y)
        return torch.where(size > 1, math.nan, y)

    def erfcx(x: Tensor) -> Tensor:
        """Complement of the error function times ``exp(x^2)``; at large x neither factor is exact."""
        size = x.abs()
        y = polynomial(1.0 - 7.5 / (size + 3.75), _SCALED) / (1.0 + 2.0 * size)
        return torch.where(x < 0, 2.0 * (x * x).exp() - y, y)

    def erfc(x: Tensor) -> Tensor:
        return torch.where(x < 0.5, 1.0 - x.erf(), (-x * x).exp() * erfcx(x))

    def ndtri(x: Tensor) -> Tensor:
        """Quantile of the normal distribution: the tail's logarithm is concave, so steps converge."""
        tail = torch.minimum(x, 1.0 - x)
        aim = tail.clamp(min=1e-300).log()
        y = (-2.0 * aim).sqrt()
        for _ in range(_QUANTILE_STEPS):
            scaled = erfcx(y / math.sqrt(2))
            y = y + ((scaled / 2).log() - y * y / 2 - aim) * scaled * math.sqrt(math.pi / 2)
        y = torch.where(tail == 0, math.inf, y)
        return torch.where(tail < 0, math.nan, torch.where(x < 0.5, -y, y))

    def bessel(order: int, *, scaled: bool) -> Callable[[Tensor], Tensor]:
        """Modified Bessel function of the first kind, of order 0 or 1; ``scaled`` by exp(-|x|)."""
        near = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(44)]
        far = [1.0]
        for k in range(1, 26):
            far.append(far[-1] * -(4 * order**2 - (2 * k - 1) ** 2) / (8 * k))

        def function(x: Tensor) -> Tensor:
            size = x.abs()
            small = size.clamp(max=_NEAR)
            inner = polynomial(small * small / 4, near) * (small / 2) ** order * (-small).exp()
            large = size.clamp(min=_NEAR)
            outer = polynomial(1.0 / large, far) / (2 * math.pi * large).sqrt()
            y = torch.where(size < _NEAR, inner, outer)
            if not scaled:
                y = torch.where(x.isinf(), math.nan, y * size.exp())
            y = torch.where(x.isnan(), x, y)
            return torch.where(x < 0, -y, y) if order else y

        return function

    def gcd(x: Tensor, y: Tensor) -> Any:
        kind = torch.promote_types(x.dtype, y.dtype)
        if kind not in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
            return NotImplemented
        a, b = torch.broadcast_tensors(x.to(kind).abs(), y.to(kind).abs())
        for _ in range(_DIVISIONS[torch.iinfo(kind).bits]):
            done = b == 0
            rest = a % torch.where(done, 1, b)
            a, b = torch.where(done, a, b), torch.where(done, 0, rest)
        return a

    def lcm(x: Tensor, y: Tensor) -> Any:
        divisor = gcd(x, y)
        if divisor is NotImplemented:
            return divisor
        return (torch.div(x, torch.where(divisor == 0, 1, divisor), rounding_mode="trunc") * y).abs()

    def multigamma(x: Tensor, p: int) -> Tensor:
        """Logarithm of the gamma function of matrices of ``p`` rows."""
        parts = [lgamma(x - n / 2) for n in range(p)]
        return sum(parts[1:], parts[0]) + p * (p - 1) / 4 * math.log(math.pi)

    def multigammas(x: Tensor, p: int) -> Tensor:
        return in_double(functools.partial(multigamma, p=p))(x)

    table = {
        aten.lgamma.default: lgamma,
        aten.special_gammaln.default: lgamma,
        aten.digamma.default: digamma,
        aten.special_digamma.default: digamma,
        aten.special_psi.default: digamma,
        aten.erfinv.default: erfinv,
        aten.special_erfinv.default: erfinv,
        aten.erfc.default: erfc,
        aten.special_erfc.default: erfc,
        aten.special_erfcx.default: erfcx,
        aten.special_ndtri.default: ndtri,
        aten.i0.default: bessel(0, scaled=False),
        aten.special_i0.default: bessel(0, scaled=False),
        aten.special_i0e.default: bessel(0, scaled=True),
        aten.special_i1.default: bessel(1, scaled=False),
        aten.special_i1e.default: bessel(1, scaled=True),
        # What PyTorch's own decompositions make of functions that use them.
        prims.lgamma.default: lgamma,
        prims.digamma.default: digamma,
        prims.erf_inv.default: erfinv,
        prims.erfc.default: erfc,
        prims.erfcx.default: erfcx,
        prims.ndtri.default: ndtri,
        prims.bessel_i0.default: bessel(0, scaled=False),
    }
    return {operator: in_double(function) for operator, function in table.items()} | {
        aten.mvlgamma.default: multigammas,
        aten.special_multigammaln.default: multigammas,
        aten.polygamma.default: polygamma,
        aten.special_polygamma.default: polygamma,
        aten.gcd.default: gcd,
        aten.lcm.default: lcm,
    }
