"""Lifting of TensorIR: one function for all sizes from the same function at several."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, structural_equal, tirx, tvm, tvm_ffi
from hetero_tvm.relax_passes.storage.written_over import PLACES
from hetero_tvm.schedules.extents import Extent, Sizes, Unfit
from hetero_tvm.schedules.fitting import fit
from hetero_tvm.schedules.symbolic import rebased, shape_variables

_MOST_SHARE = 64
"""Extent of the smaller of two grids whose ratio is recognised, as the patches of a table of positions."""


Bounded = Mapping[int, Sequence[int]] | None
"""Shapes of parameters, by number, that are constants of the largest size."""


def lift_function(functions: Sequence[PrimFunc], sizes: Sequence[Sizes], bounded: Bounded = None) -> PrimFunc:
    """A PrimFunc that is each of ``functions`` at the size it belongs to.

    Parameters
    ----------
    functions : the same kernel at the sizes of :mod:`hetero_tvm.schedules.symbolic`.
    bounded : shapes of parameters, by number, that are constants of the largest size.

    Raises
    ------
    Unfit : the functions differ in more than numbers, or no parameter tells a symbol that is needed.
    """
    return lift([form_of(function) for function in functions], sizes, bounded)


class Form(NamedTuple):
    """A function taken apart: it without a contract, its numbers in order, and it with all of them 0."""

    function: PrimFunc
    numbers: list[tuple[int, str]]
    floats: list[float]
    skeleton: PrimFunc


def form_of(function: PrimFunc) -> Form:
    """A function, taken apart."""
    function = without_contract(function)
    numbers: list[tuple[int, str]] = []
    floats: list[float] = []
    zeros: dict[str, Expr] = {}

    def whole(number: tirx.IntImm) -> Expr:
        dtype = str(number.ty.dtype)
        numbers.append((int(number.value), dtype))
        if dtype not in zeros:
            zeros[dtype] = tirx.IntImm(dtype, 0)
        return zeros[dtype]

    def real(number: tirx.FloatImm) -> Expr:
        floats.append(float(number.value))
        return tirx.FloatImm(number.ty.dtype, 0.0)

    # After its children, of which a number has none: what replaces it is not looked at again.
    callbacks = [(tirx.IntImm, whole), (tirx.FloatImm, real)]
    skeleton = tvm_ffi.structural_map(function, callbacks, order="post")
    return Form(function, numbers, floats, skeleton)


class _Fitted(NamedTuple):
    """Forms that differ by no more than sizes: one of them, and the numbers, floats and extents of the
    parameters of all."""

    first: Form
    numbers: list[int | Extent]
    ratios: list[_Ratio | None]
    extents: list[list[int | Extent]]


def fitted(forms: Sequence[Form], sizes: Sequence[Sizes], bounded: Bounded = None) -> _Fitted:
    """Numbers that the sizes decide, of functions that are alike.

    Raises
    ------
    Unfit : they differ in more than numbers, or in numbers that no size tells.
    """
    forms = _with_equal_texts(forms, sizes)
    if any(not structural_equal(forms[0].skeleton, form.skeleton) for form in forms[1:]):
        raise Unfit("the loops depend on the sizes")
    numbers = [
        fit([value for value, _ in each], sizes) for each in zip(*(f.numbers for f in forms), strict=True)
    ]
    functions = [form.function for form in forms]
    extents = _extents(functions, sizes, bounded or {})  # of a bounded parameter they are numbers
    open_extents = [e for each in extents for e in each if isinstance(e, Extent)]
    several = [[e.at(at) for at in sizes] for e in dict.fromkeys(open_extents)]
    ratios = [_ratio(each, sizes, several) for each in zip(*(form.floats for form in forms), strict=True)]
    return _Fitted(forms[0], numbers, ratios, extents)


def lift(forms: Sequence[Form], sizes: Sequence[Sizes], bounded: Bounded = None) -> PrimFunc:
    """:func:`lift_function` of functions that are taken apart already."""
    first, numbers, ratios, extents = fitted(forms, sizes, bounded)
    own = rebased([extent for each in extents for extent in each if isinstance(extent, Extent)])
    shapes = [[own.of(e) if isinstance(e, Extent) else e for e in each] for each in extents]
    told = (extent.symbol for each in shapes for extent in each if isinstance(extent, Extent))
    variables = shape_variables(dict.fromkeys(name for name in told if name is not None))
    narrow = {name: tirx.Cast("int32", variable) for name, variable in variables.items()}

    def whole(found: int | Extent) -> Expr:
        if isinstance(found, int):
            return tirx.const(found, "int64")
        return own.of(found).expression(variables, "int64")

    def written(found: int | Extent, dtype: str) -> Expr | None:
        if isinstance(found, int):
            return None
        if dtype not in ("int32", "int64"):
            raise Unfit(f"a number of type {dtype} depends on the sizes")
        return own.of(found).expression(variables if dtype == "int64" else narrow, dtype)

    # All of them first: an exception inside of a map would come out as another one.
    counts = iter([r and (whole(r.over), whole(r.under), r.function) for r in ratios])
    expressions = iter([written(f, dtype) for f, (_, dtype) in zip(numbers, first.numbers, strict=True)])

    def replaced(number: tirx.IntImm) -> Expr:
        found = next(expressions)
        return number if found is None else found

    def counted(number: tirx.FloatImm) -> Expr:
        found = next(counts)
        if found is None:
            return number
        dtype = str(number.ty.dtype)
        *parts, function = found
        over, under = (tirx.Cast(dtype, part) for part in parts)
        ratio = over if isinstance(parts[1], tirx.IntImm) and parts[1].value == 1 else over / under
        return ratio if function is None else getattr(tirx, function)(ratio)

    # Whole numbers first: what stands for a float has some of its own.
    made = tvm_ffi.structural_map(first.function, (tirx.IntImm, replaced), order="post")
    made = tvm_ffi.structural_map(made, (tirx.FloatImm, counted), order="post")
    return _with_shapes(made, shapes, variables)


def _extents(
    functions: Sequence[PrimFunc], sizes: Sequence[Sizes], bounded: Mapping[int, Sequence[int]]
) -> list[list[int | Extent]]:
    """Extents of each parameter."""
    shapes = [[[int(e) for e in p.shape] for p in each.params] for each in functions]
    return [
        list(bounded[n])
        if n in bounded
        else [fit(values, sizes) for values in zip(*(each[n] for each in shapes), strict=True)]
        for n in range(len(functions[0].params))
    ]


def with_operands(
    function: PrimFunc, place: int, operands: Sequence[tuple[tuple[int, ...], str]]
) -> PrimFunc:
    """The function with more parameters from ``place`` on, which only tell sizes."""
    more = [tirx.decl_buffer(shape, dtype, f"told{n}") for n, (shape, dtype) in enumerate(operands)]
    params = [*function.params[:place], *more, *function.params[place:]]
    return tirx.PrimFunc(params, function.body, function.ret_type, function.attrs)


def _with_equal_texts(forms: Sequence[Form], sizes: Sequence[Sizes]) -> list[Form]:
    """The functions with sizes in messages as expressions, where they differ by no more."""
    texts = [_texts(form.function) for form in forms]
    if all(found == texts[0] for found in texts) or len({len(found) for found in texts}) > 1:
        return list(forms)
    common = [_common_text(each, sizes) for each in zip(*texts, strict=True)]

    def renamed(function: PrimFunc) -> PrimFunc:
        following = iter(common)

        def fresh(check: tirx.AssertStmt) -> tirx.AssertStmt:
            parts = [tvm.ir.StringImm(next(following)) for _ in check.message_parts]
            return tirx.AssertStmt(check.condition, check.error_kind, parts)

        return tvm_ffi.structural_map(function, (tirx.AssertStmt, fresh), order="post")

    return [form_of(renamed(form.function)) for form in forms]


def _texts(function: PrimFunc) -> list[str]:
    """Parts of the messages of a function's checks, in order."""
    found: list[str] = []

    def note(check: tirx.AssertStmt) -> tirx.AssertStmt:
        found.extend(str(part.value) for part in check.message_parts)
        return check

    tvm_ffi.structural_map(function, (tirx.AssertStmt, note), order="post")
    return found


def _common_text(texts: Sequence[str], sizes: Sequence[Sizes]) -> str:
    """One message for all sizes.  :class:`Unfit` where more than numbers differ."""
    parts = [re.split(r"(\d+)", text) for text in texts]
    if len({(len(part), *part[::2]) for part in parts}) > 1:
        raise Unfit("its messages differ")
    text = list(parts[0])
    for n in range(1, len(text), 2):
        found = fit([int(part[n]) for part in parts], sizes)
        text[n] = f"({found})" if isinstance(found, Extent) and len(found.terms) > 1 else str(found)
    return "".join(text)


def without_contract(function: PrimFunc) -> PrimFunc:
    """The function without attributes that tell sizes."""
    for name in ("hetero.op", "global_symbol", "estimated_flops", PLACES):
        if function.attrs and name in function.attrs:
            function = function.without_attr(name)
    return function


class _Ratio(NamedTuple):
    """A float as a ratio of two extents, or of one and a number, or as a function of one."""

    over: int | Extent
    under: int | Extent
    function: str | None = None


_INVERSES: dict[str, Callable[[float], float]] = {"sqrt": lambda root: root * root, "log": math.exp}
"""Functions of lengths that products of vectors are scaled by -> what undoes them."""
_MOST_UNDONE = 100.0
"""Numbers above are no functions of lengths."""


def _ratio(
    values: Sequence[float], sizes: Sequence[Sizes], extents: Sequence[Sequence[int]]
) -> _Ratio | None:
    """The ratio that a differing float is: a count that a mean divides by; two grids, of which one has few
    elements, or is one of the ``extents`` of the kernel's operands; a function of a length."""
    if all(value == values[0] or value != value for value in values):
        return None
    if (found := _plain_ratio(values, sizes, extents)) is not None:
        return found
    for function, inverse in _INVERSES.items() if 0 < min(values) <= max(values) < _MOST_UNDONE else ():
        if (found := _plain_ratio(list(map(inverse, values)), sizes, ())) is not None:
            return found._replace(function=function)
    raise Unfit(f"a number is {', '.join(map(str, values))}, which counts nothing")


def _plain_ratio(
    values: Sequence[float], sizes: Sequence[Sizes], extents: Sequence[Sequence[int]]
) -> _Ratio | None:
    for number in range(1, _MOST_SHARE + 1):
        if (over := _whole([value * number for value in values], sizes)) is not None:
            return _Ratio(over, number)
        if (under := _whole([number / (value or math.nan) for value in values], sizes)) is not None:
            return _Ratio(number, under)
    for each in extents:
        over = _whole([value * extent for value, extent in zip(values, each, strict=True)], sizes)
        if over is not None:
            return _Ratio(over, fit(each, sizes))
    return None


def _whole(values: Sequence[float], sizes: Sequence[Sizes]) -> Extent | None:
    """The extent that has these values, but for rounding; None where there is none."""
    if all(math.isfinite(value) and abs(value - round(value)) <= 1e-6 * abs(value) for value in values):
        with contextlib.suppress(Unfit):
            found = fit([round(value) for value in values], sizes)
            return found if isinstance(found, Extent) else None
    return None


def _with_shapes(
    function: PrimFunc, shapes: Sequence[Sequence[int | Extent]], variables: Mapping[str, Expr]
) -> PrimFunc:
    """The function with parameters of int64 extents, from which a call binds the variables."""
    fresh = [
        [e.expression(variables, "int64") if isinstance(e, Extent) else tirx.const(e, "int64") for e in each]
        for each in shapes
    ]
    done: list[tuple[Buffer, Buffer]] = []

    def reshaped(buffer: Buffer) -> Buffer:
        for old, new in done:
            if old.same_as(buffer):
                return new
        new = buffer
        for parameter, extents in zip(function.params, fresh, strict=True):
            if parameter.same_as(buffer):
                new = tirx.decl_buffer(
                    extents,
                    str(buffer.dtype),
                    buffer.name,
                    data=buffer.data,
                    strides=buffer.strides,
                    elem_offset=buffer.elem_offset,
                    data_alignment=buffer.data_alignment,
                    offset_factor=buffer.offset_factor,
                )
        done.append((buffer, new))
        return new

    made = tvm_ffi.structural_map(function, (tirx.Buffer, reshaped), order="pre")
    return tirx.PrimFunc(
        made.params, made.body, made.ret_type, made.attrs
    )  # its type is that of the first size
