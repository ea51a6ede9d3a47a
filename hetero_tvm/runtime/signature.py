"""Names, shapes and dtypes of a model's ends."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

STEP = "step"
"""Function of a library that keeps states where they lie."""

_ONNX_NAMES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of one input or output.

    ``dtype`` is a NumPy dtype name (or ``bfloat16``); a dimension is a number, or the name of
    one that is known only at run time.  ``counts`` has (axis, position of an output) for each axis of an
    output that is padded: how many of its elements count, that other output tells.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    counts: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        counted = {axis for axis, _ in self.counts}
        sizes = (f"0..{size}" if axis in counted else str(size) for axis, size in enumerate(self.shape))
        return f"{self.name}: {self.dtype}[{', '.join(sizes)}]"

    @property
    def type(self) -> str:
        """The dtype as ONNX writes it: ``tensor(float)``, ``tensor(int64)``."""
        return f"tensor({_ONNX_NAMES.get(self.dtype, self.dtype)})"

    @property
    def static(self) -> bool:
        """Whether every dimension is a number."""
        return all(isinstance(size, int) for size in self.shape)

    def to_json(self) -> dict[str, Any]:
        plain = {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}
        return {**plain, "counts": [list(pair) for pair in self.counts]} if self.counts else plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorSpec:
        counts = tuple((int(axis), int(place)) for axis, place in data.get("counts", ()))
        return cls(str(data["name"]), tuple(data["shape"]), str(data["dtype"]), counts)


@dataclass(frozen=True)
class Symbol:
    """A dimension that is known when a model is called: its name, and the sizes that it may have.

    These are the multiples of ``step`` from ``low`` to ``high``, which are multiples themselves.
    """

    name: str
    low: int
    high: int
    step: int = 1

    def __str__(self) -> str:
        return f"{self.name} = {self.span}"

    @property
    def span(self) -> str:
        """The sizes as they are given: ``8..256``, ``64..512:8``."""
        return f"{self.low}..{self.high}" + (f":{self.step}" if self.step > 1 else "")

    @property
    def sizes(self) -> range:
        """Sizes that the dimension may have."""
        return range(self.low, self.high + 1, self.step)

    def nearest(self, size: int) -> int:
        """The size in range that is next to ``size``; below it, where it lies between two."""
        return min(max(size - size % self.step, self.low), self.high)

    def misfit(self, size: int) -> str:
        """Reason why the dimension may not have a size."""
        if self.low <= size <= self.high:
            return f"not a multiple of {self.step}"
        return f"outside {self.span}"

    def to_json(self) -> dict[str, Any]:
        plain = {"name": self.name, "low": self.low, "high": self.high}
        return {**plain, "step": self.step} if self.step > 1 else plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Symbol:
        return cls(str(data["name"]), int(data["low"]), int(data["high"]), int(data.get("step", 1)))


def size_of(dimension: int | str, sizes: Mapping[str, int]) -> int:
    """Size of a dimension as a signature writes it: a number, a symbol, or a polynomial (``2*past + 1``) of
    symbols and whole quotients (``((samples + 3)//4) - 1``).

    Raises
    ------
    KeyError : it names a symbol that ``sizes`` lacks.
    """
    if isinstance(dimension, int):
        return dimension
    if dimension in sizes:
        return sizes[dimension]
    if (parts := quotient_parts(dimension)) is not None:
        return size_of(parts[0], sizes) // parts[1]
    terms = terms_of(dimension)
    if terms == ((1, (dimension,)),):
        raise KeyError(dimension)
    return sum(factor * math.prod(size_of(name, sizes) for name in names) for factor, names in terms)


@functools.cache
def quotient_parts(name: str) -> tuple[str, int] | None:
    """Numerator and divisor of a whole quotient: ``(n//4)``, ``((n + 3)//4)``; None for a symbol."""
    if not name.startswith("(") or len(_split(name, "*", " + ", " - ")) > 1:
        return None
    inside, _, divisor = name[1:-1].rpartition("//")
    return (inside[1:-1] if inside.startswith("(") else inside), int(divisor)


@functools.cache
def terms_of(dimension: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Factor and names of each term of a polynomial; read once, as libraries ask at every call."""
    found = []
    sign = 1
    for part in _split(dimension, " + ", " - "):
        if part in (" + ", " - "):
            sign = 1 if part == " + " else -1
            continue
        sign *= -1 if part.startswith("-") else 1
        factors = [factor for factor in _split(part.removeprefix("-"), "*") if factor != "*"]
        numbers = [int(factor) for factor in factors if factor.isdecimal()]
        found.append((sign * math.prod(numbers), tuple(f for f in factors if not f.isdecimal())))
    return tuple(found)


def _split(text: str, *separators: str) -> list[str]:
    """Parts of a text between separators outside of parentheses, and these separators."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        separator = next((s for s in separators if depth == 0 and text.startswith(s, at)), None)
        if separator is None:
            at += 1
            continue
        parts += [text[start:at], separator]
        start = at = at + len(separator)
    return [*parts, text[start:]]


@dataclass(frozen=True)
class Step:
    """Description of a library's step: its inputs are those that are no such states, the buffers, the sizes.

    Attributes
    ----------
    room : elements that the buffer of a state has along the axis that grows, by name of the input; 0 of a
        state of one size, which is its buffer.
    outputs : results that lie in buffers afterwards; the others are the step's own.
    sizes : symbols that operands of their own tell.
    """

    room: Mapping[str, int]
    outputs: tuple[str, ...]
    sizes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values."""
        return {"room": dict(self.room), "outputs": list(self.outputs), "sizes": list(self.sizes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Step:
        """The description that :meth:`to_json` wrote; KeyError, TypeError or ValueError for anything else."""
        room = {str(name): operator.index(count) for name, count in data["room"].items()}
        if not all(0 <= count < 1 << 40 for count in room.values()):
            raise ValueError(f"room {room}")
        return cls(room, tuple(map(str, data["outputs"])), tuple(map(str, data["sizes"])))


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a model, in calling order, and the symbols that their shapes name."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: tuple[Symbol, ...] = ()

    def __repr__(self) -> str:
        return f"<Signature {self}>"

    @property
    def counted(self) -> tuple[str, ...]:
        """Names of the outputs whose number of elements depends on values."""
        return tuple(spec.name for spec in self.outputs if spec.counts)

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """Outputs that a caller asked for: without those that only tell how much of others counts."""
        told = {place for spec in self.outputs for _, place in spec.counts}
        return tuple(spec for place, spec in enumerate(self.outputs) if place not in told)

    def trimmed(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Outputs cut to what counts, without the counts: one array for each of :attr:`results`."""
        told = {place for spec in self.outputs for _, place in spec.counts}
        if not told:
            return tuple(arrays)
        kept = []
        for place, (spec, array) in enumerate(zip(self.outputs, arrays, strict=True)):
            if place in told:
                continue
            cut = [slice(None)] * array.ndim
            for axis, count in spec.counts:
                cut[axis] = slice(int(arrays[count]))
            kept.append(array[tuple(cut)].copy() if spec.counts else array)
        return tuple(kept)

    def sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Sizes of the symbols that dimensions of inputs of these ``shapes`` are, by name."""
        names = {symbol.name for symbol in self.symbols}
        return {
            str(name): size
            for spec in self.inputs
            for name, size in zip(spec.shape, shapes.get(spec.name, ()), strict=False)
            if name in names
        }

    def misfits(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Reasons why inputs of these ``shapes``, by name and of the right ranks, do not fit the symbols."""
        ranges = {symbol.name: symbol for symbol in self.symbols}
        problems: list[str] = []
        sums: list[tuple[str, int, str, int]] = []
        taken: dict[str, tuple[str, int, int]] = {}
        for spec in self.inputs:
            for axis, (name, size) in enumerate(zip(spec.shape, shapes.get(spec.name, ()), strict=False)):
                symbol = ranges.get(name) if isinstance(name, str) else None
                if symbol is None:
                    if isinstance(name, str):
                        sums.append((spec.name, axis, name, size))
                    continue
                if size not in symbol.sizes:
                    problems.append(
                        f"{spec.name}: dimension {axis} ({name}) is {size}, {symbol.misfit(size)}"
                    )
                first = taken.setdefault(symbol.name, (spec.name, axis, size))
                if first[2] != size:
                    problems.append(
                        f"{spec.name}: dimension {axis} ({name}) is {size}, "
                        f"and dimension {first[1]} of {first[0]} is {first[2]}: they must be equal"
                    )
        known = {name: size for name, (_, _, size) in taken.items()}
        for input_name, axis, text, size in sums if not problems else ():
            try:
                wanted = size_of(text, known)
            except KeyError:  # a symbol that no dimension is alone: the virtual machine looks at it
                continue
            if wanted != size:
                problems.append(f"{input_name}: dimension {axis} ({text}) is {size}, and must be {wanted}")
        return problems

    def __str__(self) -> str:
        ends = f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        return f"{ends} for {', '.join(map(str, self.symbols))}" if self.symbols else ends
