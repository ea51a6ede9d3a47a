"""Base of the contracts of fused operators.

A fused operator is a frozen dataclass: its fields are the attributes, and together they say all
that a design space needs to know (shapes included).  It is the only thing that graph passes emit
besides Relax's own operators, and the only thing that spaces and targets match.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc

_KINDS: dict[str, type[FusedOp]] = {}


@dataclass(frozen=True)
class Operand:
    """A tensor argument or result of a fused operator.

    ``constant`` says that the value is known when the model is compiled, so a design space may
    ask for it in a layout of its own (see :meth:`DesignSpace.pack`).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    constant: bool = False

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class FusedOp(ABC):
    """Contract of a fused operator: semantics, attributes, operands and cost."""

    kind: ClassVar[str] = ""
    rounds_between: ClassVar[str] = ""
    """Type that values between the steps of a call are rounded to, at a scale that a kernel chooses."""
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = ()
    """Fields that are not written at their defaults, so that records made before they existed stay valid."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.kind:
            _KINDS[cls.kind] = cls

    @property
    @abstractmethod
    def inputs(self) -> tuple[Operand, ...]:
        """Operands in the order of the call."""

    @property
    @abstractmethod
    def output(self) -> Operand:
        """The result; the last one when there are several."""

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """Results in the order of the call, in which they follow the operands."""
        return (self.output,)

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations of one call (a fused multiply-add counts two)."""

    @abstractmethod
    def reference(self, *arrays: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """Compute the results with NumPy, in the dtype of ``arrays`` (float64 for a reference).

        Gives an array; a tuple of arrays when there are several results.
        """

    def admissible(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Operands like ``arrays`` that keep what the contract promises kernels about them (zeros around an
        image, say), and by which results can be compared: what random values must pass through before a
        kernel is judged by them."""
        return list(arrays)

    @abstractmethod
    def workload(self) -> PrimFunc:
        """The operator as an unscheduled TensorIR function: inputs in order, then the outputs."""

    @property
    def label(self) -> str:
        """Short readable name, stable across runs; it names tasks and kernels."""
        return self.kind

    @property
    def nbytes(self) -> int:
        """Bytes that one call must at least move: every operand once."""
        return sum(operand.nbytes for operand in (*self.inputs, *self.outputs))

    @property
    def weight_bytes(self) -> int:
        """Bytes of constants that a call reads as a whole; rows of tables may lie in caches."""
        constants = sum(operand.nbytes for operand in self.inputs if operand.constant)
        return constants if constants <= self.nbytes else 0

    def to_json(self) -> str:
        """The contract as JSON; :func:`from_json` is its inverse."""
        omitted = {*self._OMITTED_AT_DEFAULT, "dtype"}
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        values = dataclasses.asdict(self).items()
        kept = {name: v for name, v in values if name not in omitted or v != defaults[name]}
        return json.dumps({"kind": self.kind, **kept}, sort_keys=True)


def suffix(dtype: str) -> tuple[str, ...]:
    """Parts that a dtype adds to a label: none for float32."""
    return () if dtype == "float32" else (dtype,)


def strided_view(array: np.ndarray, shape: tuple[int, ...], place: tuple[int, ...]) -> np.ndarray:
    """View of ``shape`` on ``array`` taken as flat memory: ``place`` is (offset, stride of each axis)."""
    flat = np.ascontiguousarray(array).reshape(-1)[place[0] :]
    return np.lib.stride_tricks.as_strided(flat, shape, [flat.itemsize * stride for stride in place[1:]])


def _freeze(value: Any) -> Any:
    return tuple(_freeze(item) for item in value) if isinstance(value, list) else value


def from_json(text: str) -> FusedOp:
    """Rebuild a fused operator from the text of :meth:`FusedOp.to_json`.

    ``ValueError``: the text is not that of an operator known here.
    """
    try:
        fields = json.loads(text)
        return _KINDS[fields.pop("kind")](**{name: _freeze(value) for name, value in fields.items()})
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no operator of this version: {text[:_SHOWN]}") from error


_SHOWN = 100
