"""Names, shapes and dtypes of a model's ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of one input or output.

    ``dtype`` is a NumPy dtype name (or ``bfloat16``); a dimension is a number, or the name of
    one that is known only at run time.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def static(self) -> bool:
        """Whether every dimension is a number."""
        return all(isinstance(size, int) for size in self.shape)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorSpec:
        return cls(str(data["name"]), tuple(data["shape"]), str(data["dtype"]))


@dataclass(frozen=True)
class Symbol:
    """A dimension that is known when a model is called: its name, and the sizes that it may have."""

    name: str
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.name} = {self.low}..{self.high}"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "low": self.low, "high": self.high}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Symbol:
        return cls(str(data["name"]), int(data["low"]), int(data["high"]))


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a model, in calling order, and the symbols that their shapes name."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: tuple[Symbol, ...] = ()

    def misfits(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Reasons why inputs of these ``shapes``, by name and of the right ranks, do not fit the symbols."""
        ranges = {symbol.name: symbol for symbol in self.symbols}
        problems: list[str] = []
        taken: dict[str, tuple[str, int, int]] = {}
        for spec in self.inputs:
            for axis, (name, size) in enumerate(zip(spec.shape, shapes.get(spec.name, ()), strict=False)):
                symbol = ranges.get(name) if isinstance(name, str) else None
                if symbol is None:
                    continue
                if not symbol.low <= size <= symbol.high:
                    problems.append(
                        f"{spec.name}: dimension {axis} ({name}) is {size}, "
                        f"outside {symbol.low}..{symbol.high}"
                    )
                first = taken.setdefault(symbol.name, (spec.name, axis, size))
                if first[2] != size:
                    problems.append(
                        f"{spec.name}: dimension {axis} ({name}) is {size}, "
                        f"and dimension {first[1]} of {first[0]} is {first[2]}: they must be equal"
                    )
        return problems

    def __str__(self) -> str:
        ends = f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        return f"{ends} for {', '.join(map(str, self.symbols))}" if self.symbols else ends
