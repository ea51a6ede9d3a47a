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
class Signature:
    """Inputs and outputs of a model, in calling order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
