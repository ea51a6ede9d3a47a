"""Dimensions that inputs share by name, and those that are sums of others.

A decoder's file says ``past_key_values.0.key: [batch, 2, past, 16]`` for every layer, and of its mask
``[batch, past + sequence]``, or only ``[batch, total]``.  So a shape may be given for the name of a dimension
instead of an input's, and what is a sum follows from the rest.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hetero_tvm.errors import ShapeError, did_you_mean
from hetero_tvm.frontend.signature import Span

Declared = Mapping[str, "Sequence[int | str | None] | None"]
"""Dimensions of inputs in the model file: sizes, names of open ones, None for open ones without a name."""
_NAME = re.compile(r"[A-Za-z_]")


@dataclass(frozen=True)
class Sum:
    """A dimension that is a sum of others.

    Attributes
    ----------
    names : of dimensions that stay open.
    plus : what is added to them.
    """

    names: tuple[str, ...]
    plus: int = 0

    def at(self, sizes: Mapping[str, int]) -> int:
        """Size of the dimension, from those of the others."""
        return self.plus + sum(sizes[name] for name in self.names)

    def __str__(self) -> str:
        return " + ".join([*self.names, *([str(self.plus)] if self.plus else [])])


Dimension = int | str | Span | Sum
"""A size, a sum of dimensions in words, a range of sizes, or a sum."""
Shapes = Mapping[str, Sequence[Dimension]]


def symbol_of(name: str) -> str:
    """The symbol of a dimension's name."""
    return re.sub(r"\W", "_", name)


def named(
    given: Shapes, declared: Declared, *, batch: int | None = None, sequence: int | None = None
) -> dict[str, tuple[int | Span | Sum, ...]]:
    """Shapes by input: those ``given``, and of every other input of which the given dimensions tell all.

    ``past=0..64`` where no input is called ``past`` is for all dimensions of this name.  A dimension whose
    name is a sum (``past + sequence``) follows, and so does one that is called *total* beside one called
    *past*, where nothing else is given for it.

    Parameters
    ----------
    batch, sequence : sizes of dimensions with such names.

    Raises
    ------
    ShapeError : a name that is neither an input nor a dimension, a sum of unknown ones, a dimension that is
        given and cannot be used, or given twice; all are listed.
    """
    known = {name for dims in declared.values() for name in dims or () if isinstance(name, str) and name}
    asked: dict[str, int | Span] = {}
    shapes: dict[str, Sequence[Dimension]] = {}
    problems = []
    for name, dims in given.items():
        problems += [f"{name}: {dim} is no size of a dimension" for dim in dims if _is_small(dim)]
        if name in declared or len(dims) != 1 or not known:
            shapes[name] = dims
        elif name not in known:
            guess = did_you_mean(name, [*known, *declared])
            problems.append(f"{name} is neither an input nor a dimension" + (f": {guess}" if guess else ""))
        elif isinstance(dims[0], int | Span):
            asked[name] = dims[0]
        else:
            problems.append(f"{name}: {dims[0]!r} is no size and no range")
    by_dimension = dict(asked)
    for name, dims in shapes.items():  # what is given for an input holds for all dimensions of its names
        for there, dim in zip(declared.get(name) or (), dims, strict=False):
            if not (isinstance(there, str) and there and isinstance(dim, int | Span)):
                continue
            if there in asked and asked[there] != dim:
                problems.append(f"{name}: {there} is {dim} here, and {asked[there]} by its name")
            by_dimension.setdefault(there, dim)
    for name in sorted(known - set(by_dimension)):
        if (size := _by_role(name, batch, sequence)) is not None:
            by_dimension[name] = size
    sums = {name: total for name in known if (total := _total(name, by_dimension, known)) is not None}
    unknown: dict[str, list[str]] = {}
    for name, own in declared.items():
        if name in shapes or not own or not any(isinstance(dim, str) for dim in own):
            continue
        values = [sums.get(dim, by_dimension.get(dim)) if isinstance(dim, str) else dim for dim in own]
        if all(value is not None for value in values):
            shapes[name] = [value for value in values if value is not None]
        for dim in own:
            missing = [str(other) for other, value in zip(own, values, strict=True) if value is None]
            if dim in asked and missing:
                unknown.setdefault(str(dim), []).append(f"{name} needs {', '.join(missing)} too")
    used = {dim for name in shapes for dim in declared.get(name) or ()}
    problems += [
        f"{name} is given, and {'; '.join(needs)}" for name, needs in unknown.items() if name not in used
    ]
    found: dict[str, tuple[int | Span | Sum, ...]] = {}
    for name, dims in shapes.items():
        own = declared.get(name) or ()
        row: list[int | Span | Sum] = []
        for axis, dim in enumerate(dims):
            there = own[axis] if axis < len(own) else None
            if isinstance(dim, str) and dim.strip() == there and there in by_dimension:
                row.append(by_dimension[there])
            elif isinstance(dim, str):
                total = _sum(dim, by_dimension) if _NAME.search(dim) else None
                if total is None:
                    problems.append(f"{name}: {dim!r} is no sum of dimensions that are given")
                row.append(total if total is not None else 1)
            elif isinstance(dim, Span) and isinstance(there, str) and "+" in there:
                row.append(sums.get(there, dim))
            else:
                row.append(dim)
        found[name] = tuple(row)
    open_names = {
        symbol_of(there)
        for name, row_found in found.items()
        for there, dim in zip(declared.get(name) or (), row_found, strict=False)
        if isinstance(there, str) and isinstance(dim, Span)
    }
    for name, row_found in found.items():
        for dim in row_found:
            if isinstance(dim, Sum) and (lost := [part for part in dim.names if part not in open_names]):
                problems.append(f"{name}: {dim} needs {', '.join(lost)}, which no input has that is known")
    if problems:
        raise ShapeError(
            "The given shapes do not fit the model.",
            problems=list(dict.fromkeys(problems)),
            hint=f"its dimensions: {', '.join(sorted(known)) or 'none has a name'}",
        )
    return found


def _is_small(dim: Dimension) -> bool:
    """Whether it is a number below 1: only a range may begin with 0."""
    return isinstance(dim, int) and dim < 1


def _by_role(name: str, batch: int | None, sequence: int | None) -> int | None:
    """Size of a dimension by its name, of those that are given by role."""
    lowered = name.lower()
    if "+" in name or "past" in lowered or "total" in lowered:
        return None
    return batch if "batch" in lowered else sequence if "seq" in lowered else None


def parts_of_total(name: str, known: Collection[str]) -> tuple[str, str] | None:
    """Names of the past's and the new tokens' dimension whose sum dimension ``name`` is: one that is called
    *total* beside one called *past* and one called *sequence*; None for any other."""
    others = [other for other in known if other != name and "+" not in other and "total" not in other.lower()]
    past = [other for other in others if "past" in other.lower()]
    new = [other for other in others if "seq" in other.lower() and other not in past]
    is_total = "total" in name.lower() and len(past) == len(new) == 1
    return (past[0], new[0]) if is_total else None


def _sum(text: str, sizes: Mapping[str, int | Span]) -> Sum | int | None:
    """The sum that ``text`` is of dimensions with these sizes; None where it is none."""
    parts = [part.strip() for part in text.split("+")]
    names, plus = [], 0
    for part in parts:
        value = int(part) if part.isdecimal() else sizes.get(part)
        if value is None:
            return None
        if isinstance(value, int):
            plus += value
        else:
            names.append(symbol_of(part))
    return Sum(tuple(names), plus) if names else plus


def _total(name: str, sizes: Mapping[str, int | Span], known: set[str]) -> Sum | int | None:
    """The sum that a dimension is by its name: one that it spells, or that of past and new tokens."""
    if "+" in name:
        return _sum(name, sizes)
    if name in sizes or (parts := parts_of_total(name, known)) is None:
        return None
    return _sum(" + ".join(parts), sizes)
