"""Functions of single elements, and images of another size, that PyTorch's exporter has no words for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Signs, lengths, angles, bounds, extrema, ranges of fractions, leaky units at rest, aligned corners."""
    aten = torch.ops.aten

    def negative(x: Tensor) -> Tensor:
        """Whether the sign is set, that of -0.0 too."""
        return (x < 0) | ((x == 0) & (1.0 / x < 0)) if x.dtype.is_floating_point else x < 0

    def sign(x: Tensor) -> Any:
        """Sign of a number; 0 of NaN, which ONNX leaves open."""
        if not x.dtype.is_floating_point:
            return NotImplemented
        return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)

    def with_sign(x: Tensor, other: Tensor | float) -> Any:
        if not x.dtype.is_floating_point:
            return NotImplemented
        if not isinstance(other, torch.Tensor):
            return x.abs() * math.copysign(1.0, other)
        return torch.where(negative(other), -x.abs(), x.abs())

    def hypotenuse(x: Tensor, y: Tensor) -> Tensor:
        """Root of the squares' sum, where the squares alone would be infinite or nothing."""
        longer, shorter = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
        length = longer * (1.0 + (shorter / longer).square()).sqrt()
        known = torch.where(longer == 0, longer, length)
        return torch.where(x.isinf() | y.isinf(), math.inf, known)

    def angle_of(y: Tensor, x: Tensor) -> Any:
        """Angle of the point (x, y), in the quadrant that the signs name, those of zeros too (IEEE 754)."""
        if not (x.dtype.is_floating_point and y.dtype.is_floating_point):
            return NotImplemented
        slope = y.abs() / x.abs()
        slope = torch.where((x == 0) & (y == 0), 0.0, torch.where(x.isinf() & y.isinf(), 1.0, slope))
        acute = slope.atan()
        angle = torch.where(negative(x), math.pi - acute, acute)
        return torch.where(negative(y), -angle, angle)

    def argument(x: Tensor) -> Tensor:
        """Angle of a complex number, of a real one without a sign of zero."""
        if x.is_complex():
            parts = torch.view_as_real(x)
            return torch.atan2(parts[..., 1], parts[..., 0])
        turned = torch.where(x < 0, math.pi, 0.0).to(x.dtype if x.dtype.is_floating_point else torch.float32)
        return torch.where(x.isnan(), x, turned) if x.dtype.is_floating_point else turned

    def known(operator: Any) -> Callable[[Tensor, Tensor], Tensor]:
        """The extremum of two numbers, of which one may be none."""
        return lambda x, y: torch.where(x.isnan(), y, torch.where(y.isnan(), x, operator(x, y)))

    def leaky(x: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, *_: Any) -> Any:
        return NotImplemented if training else torch.where(x >= 0, x, x * ((lower + upper) / 2))

    def truth(operator: Any) -> Callable[..., Any]:
        """The extremum of truth values and its place."""

        def found(x: Tensor, dim: int, keepdim: bool = False) -> Any:
            if x.dtype != torch.bool:
                return NotImplemented
            values, places = operator(x.to(torch.int32), dim, keepdim)
            return values.to(torch.bool), places

        return found

    def between(x: Tensor, least: Any = None, most: Any = None) -> Any:
        """A clamp whose bounds are numbers of one kind."""
        if not has_uneven_bounds((x, least, most)):
            return NotImplemented
        return aten.clamp.default(x, torch.sym_float(least), torch.sym_float(most))

    def steps(start: float, end: float, step: float = 1, *, dtype: Any = None, **_: Any) -> Any:
        """Numbers as many as float64 counts: float32 counts four from 0 to 0.3 in steps of 0.1."""
        wanted = dtype or torch.get_default_dtype()
        if not (wanted.is_floating_point and has_fractions((start, end, step))):
            return NotImplemented
        count = torch.arange(max(0, math.ceil((end - start) / step)))
        return (count.to(torch.float64) * step + start).to(wanted)

    def line(start: Any, end: Any, count: int, *, dtype: Any = None, **_: Any) -> Any:
        """Numbers between tensors, counted from the nearer end; whole ones lie between whole ends."""
        wanted = dtype or torch.get_default_dtype()
        if wanted.is_complex:
            return NotImplemented
        kind = wanted if wanted.is_floating_point else torch.float64

        def end_of(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.reshape(()).to(wanted).to(kind)
            return value if wanted.is_floating_point else int(value)

        first, last = end_of(start), end_of(end)
        if count < 2:
            return (first + torch.zeros(count, dtype=kind)).to(wanted)
        place = torch.arange(count)
        before, after = place.to(kind), (count - 1 - place).to(kind)
        step = (last - first) / (count - 1)
        return torch.where(place < count // 2, first + step * before, last - step * after).to(wanted)

    def powers(start: Any, end: Any, count: int, base: float = 10.0, *, dtype: Any = None, **_: Any) -> Any:
        exponents = line(start, end, count, dtype=dtype)
        floats = exponents is not NotImplemented and exponents.dtype.is_floating_point
        return base**exponents if floats else NotImplemented

    def with_sizes(operator: Any) -> Callable[..., Any]:
        """A resize whose scales say nothing but the sizes."""

        def resized(
            x: Tensor,
            output_size: Sequence[int] | None,
            align_corners: bool,
            scale_factors: Sequence[float] | None = None,
        ) -> Any:
            if not align_corners or output_size is not None or scale_factors is None:
                return NotImplemented
            extents = zip(x.shape[2:], scale_factors, strict=True)
            return operator(x, [math.floor(n * scale) for n, scale in extents], align_corners, None)

        return resized

    def over_all(operator: Any) -> Callable[..., Any]:
        """An extremum without dimensions, which is that of all of them."""

        def extremum(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
            if dim or x.dim() == 0:
                return NotImplemented
            return operator(x, list(range(x.dim())), keepdim)

        return extremum

    def moved(operator: Any) -> Callable[..., Any]:
        """A shift of bytes in 32 bits; the exporter's gives them the sign of their first bit."""

        def shifted(x: Tensor, places: Any) -> Any:
            if x.dtype != torch.uint8 or torch.result_type(x, places) != torch.uint8:
                return operator(x, places) if isinstance(places, torch.Tensor) else NotImplemented
            if not isinstance(places, torch.Tensor):
                places = torch.full((), places)
            return operator(x.to(torch.int32), places.to(torch.int32).clamp(max=8)).to(torch.uint8)

        return shifted

    def moved_by_each(operator: Any) -> Callable[..., Any]:
        def shifted(x: Tensor, places: Tensor) -> Any:
            return moved(operator)(x, places) if x.dtype == places.dtype == torch.uint8 else NotImplemented

        return shifted

    resizes = (aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d)
    return {
        aten.sign.default: sign,
        aten.neg.default: lambda x: 0 - x if x.dtype == torch.uint8 else NotImplemented,
        aten.__rshift__.Tensor: moved(aten.bitwise_right_shift.Tensor),
        aten.__rshift__.Scalar: moved(aten.bitwise_right_shift.Tensor),
        aten.bitwise_right_shift.Tensor_Scalar: moved(aten.bitwise_right_shift.Tensor),
        aten.bitwise_right_shift.Tensor: moved_by_each(aten.bitwise_right_shift.Tensor),
        aten.bitwise_left_shift.Tensor: moved_by_each(aten.bitwise_left_shift.Tensor),
        aten.__lshift__.Tensor: moved(aten.bitwise_left_shift.Tensor),
        aten.__lshift__.Scalar: moved(aten.bitwise_left_shift.Tensor),
        aten.bitwise_left_shift.Tensor_Scalar: moved(aten.bitwise_left_shift.Tensor),
        aten.signbit.default: negative,
        aten.copysign.Tensor: with_sign,
        aten.copysign.Scalar: with_sign,
        aten.hypot.default: hypotenuse,
        aten.atan2.default: angle_of,
        aten.angle.default: argument,
        aten.fmax.default: known(torch.maximum),
        aten.fmin.default: known(torch.minimum),
        aten.rrelu.default: leaky,
        aten.max.dim: truth(aten.max.dim),
        aten.min.dim: truth(aten.min.dim),
        aten.amax.default: over_all(aten.amax.default),
        aten.amin.default: over_all(aten.amin.default),
        aten.clamp.default: between,
        aten.arange.start: steps,
        aten.arange.start_step: steps,
        aten.linspace.Tensor_Tensor: line,
        aten.linspace.Tensor_Scalar: line,
        aten.linspace.Scalar_Tensor: line,
        aten.logspace.Tensor_Tensor: powers,
        aten.logspace.Tensor_Scalar: powers,
        aten.logspace.Scalar_Tensor: powers,
        **{family.vec: with_sizes(family.vec) for family in (*resizes, aten.upsample_bicubic2d)},
    }


def has_uneven_bounds(arguments: Sequence[Any]) -> bool:
    """Whether a clamp has one whole and one fractional bound, which PyTorch's exporter does not take."""
    bounds = [bound for bound in arguments[1:3] if bound is not None]
    return len(bounds) == 2 and isinstance(bounds[0], float) != isinstance(bounds[1], float)


def has_fractions(arguments: Sequence[Any]) -> bool:
    """Whether a range of fixed numbers is not one of whole numbers."""
    return all(isinstance(a, int | float) for a in arguments) and any(isinstance(a, float) for a in arguments)


def in_part(torch: ModuleType) -> dict[Any, Callable[[Node], bool]]:
    """Operators of the table that PyTorch's exporter takes, except in such calls."""
    aten = torch.ops.aten
    ranges = (aten.arange.start, aten.arange.start_step)
    shifts = (
        aten.__rshift__.Scalar,
        aten.__lshift__.Scalar,
        aten.bitwise_right_shift.Tensor_Scalar,
        aten.bitwise_left_shift.Tensor_Scalar,
        aten.bitwise_right_shift.Tensor,
        aten.bitwise_left_shift.Tensor,
    )

    def is_truth(node: Node) -> bool:
        return node.args[0].meta["val"].dtype == torch.bool

    def is_unsigned(node: Node) -> bool:
        """Whether the operand is of bytes: ONNX's Neg has signed numbers alone."""
        return node.args[0].meta["val"].dtype == torch.uint8

    def has_no_dimensions(node: Node) -> bool:
        return not (node.args[1:2] and node.args[1]) and not node.kwargs.get("dim")

    return {
        aten.neg.default: is_unsigned,
        **dict.fromkeys(shifts, is_unsigned),
        **dict.fromkeys((aten.max.dim, aten.min.dim), is_truth),
        **dict.fromkeys((aten.amax.default, aten.amin.default), has_no_dimensions),
        aten.clamp.default: lambda node: has_uneven_bounds(node.args),
        **dict.fromkeys(ranges, lambda node: has_fractions(node.args)),
    }
