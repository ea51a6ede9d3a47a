"""Declaration of an instruction: typed fields, from which encoding, text and limits follow.

An encoded instruction is packed little-endian: one byte opcode, one byte length in 4-byte words,
two bytes operator tag, then the fields in order, zero padding to a whole word.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.machines.npu.spec import NPUSpec

Values = dict[str, Any]
Numbers = Sequence[int]
HEAD = struct.Struct("<BBH")
RANK = 4
"""Dimensions of every strided region; shorter ones are padded with outer extents of 1."""
MAX_EXTENT = 1 << 24
MAX_ADDRESS = 1 << 48
_KINDS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "f32": "f"}
_BITS = {"u8": 8, "u16": 16, "u32": 32, "u64": 64, "i32": 32}


class StreamError(HeteroTVMError):
    """A command stream or one of its instructions is malformed."""


@dataclass(frozen=True)
class Field:
    """Operand of an instruction."""

    name: str
    kind: str
    """Type: u8, u16, u32, u64, i32 or f32."""
    doc: str
    count: int = 1
    names: tuple[str, ...] = ()
    """Words for the values 0, 1, ...: an enumeration."""
    default: Any = None
    """Value where none is given; None: it must be given."""
    fill: int | None = None
    """Value of missing outer dimensions of an array; None for scalars."""
    least: int | None = None
    greatest: int | None = None
    """Limits beside those of the type; they keep every product of the checks within 64 bits."""

    @property
    def bytes(self) -> int:
        return struct.calcsize("<" + _KINDS[self.kind]) * self.count

    def encode(self, value: Any) -> tuple[Any, ...]:
        """The value as struct arguments.  Raises :class:`StreamError`."""
        if self.names:
            if value not in self.names:
                raise StreamError(f"{self.name} must be one of {', '.join(self.names)}, got {value!r}")
            return (self.names.index(value),)
        if self.count == 1:
            return (self._scalar(value),)
        values = tuple(value)
        if len(values) > self.count:
            raise StreamError(f"{self.name} takes up to {self.count} values, got {len(values)}")
        return (self.fill,) * (self.count - len(values)) + tuple(self._scalar(v) for v in values)

    def plan(self) -> tuple[Any, ...]:
        """(name, default, index of words, count, fill, least, greatest) for a fast encoder.  Limits that
        the encoding enforces by itself are None.
        """
        words = {word: i for i, word in enumerate(self.names)} if self.names else None
        limited = self.least is not None or self.greatest is not None
        low, high = self.limits if limited else (None, None)
        return self.name, self.default, words, self.count, self.fill, low, high

    def _scalar(self, value: Any) -> Any:
        if self.kind == "f32":
            return float(value)
        if value != int(value):
            raise StreamError(f"{self.name} must be a whole number, got {value!r}")
        value = int(value)
        low, high = self.limits
        if not low <= value <= high:
            raise StreamError(f"{self.name} must be from {low} to {high}, got {value}")
        return value

    @property
    def limits(self) -> tuple[int, int]:
        """Least and greatest integer (or index of a word)."""
        if self.names:
            return 0, len(self.names) - 1
        bits = _BITS[self.kind]
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if self.kind == "i32" else (0, (1 << bits) - 1)
        return (low if self.least is None else self.least), self.greatest or high

    def decode(self, raw: tuple[Any, ...]) -> Any:
        """Value of struct results.  Raises :class:`StreamError`."""
        if self.kind != "f32":
            low, high = self.limits
            for value in raw:
                if low <= value <= high:
                    continue
                if self.names:
                    words = ", ".join(self.names)
                    raise StreamError(f"{self.name} is number {value}, of 0 to {high} ({words})")
                raise StreamError(f"{self.name} is {value}, allowed are {low} to {high}")
        if self.names:
            return self.names[raw[0]]
        return raw if self.count > 1 else raw[0]

    def to_text(self, value: Any) -> str:
        if self.count > 1:
            return ",".join(self._text(v) for v in value)
        return self._text(value)

    def _text(self, value: Any) -> str:
        if self.kind == "f32":
            return "nan" if math.isnan(value) else f"{value:.9g}"
        return str(value)

    def from_text(self, text: str) -> Any:
        """Inverse of :meth:`to_text`; integers may also be hexadecimal."""
        if self.names:
            return text
        try:
            if self.count > 1:
                return tuple(int(part, 0) for part in text.split(","))
            return float(text) if self.kind == "f32" else int(text, 0)
        except ValueError:
            raise StreamError(f"{self.name}={text!r} is not a {self.kind}") from None


@dataclass(frozen=True)
class Access:
    """Footprint of one operand: runs of ``run`` bytes at ``base + sum(i * strides)``."""

    memory: str
    """``dram`` or the name of a scratchpad."""
    base: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    run: int
    write: bool
    slot: int = 0
    """Slot that ``base`` counts from, for ``dram``."""

    def interval(self) -> tuple[int, int]:
        """First byte and one past the last, whatever lies between."""
        offsets = [(n - 1) * s for n, s in zip(self.extents, self.strides, strict=True)]
        low = self.base + sum(o for o in offsets if o < 0)
        return low, self.base + sum(o for o in offsets if o > 0) + self.run


class Memories(Protocol):
    """Memories of a machine that executes instructions, one after the other."""

    def read(
        self,
        memory: str,
        slot: int,
        base: int,
        extents: Sequence[int],
        strides: Sequence[int],
        dtype: DTypeLike,
    ) -> np.ndarray:
        """A copy of a strided region (``base`` and ``strides`` in bytes)."""
        ...

    def write(self, memory: str, slot: int, base: int, strides: Numbers, values: np.ndarray) -> None:
        """Overwrite a strided region."""
        ...


@dataclass(frozen=True)
class Cost:
    """Work of one instruction, by what it occupies."""

    unit: float = 0.0
    """Cycles of the unit itself: multiplier blocks, lanes, or the path between two scratchpads."""
    dram_bytes: int = 0
    l1: float = 0.0
    """Cycles of all L1 banks."""
    ub: float = 0.0
    """Cycles of all banks of the unified buffer."""

    def cycles(self, spec: NPUSpec) -> float:
        """Duration when nothing else uses the machine: the busiest resource decides."""
        return max(self.unit, self.dram_bytes / spec.dram_bytes_per_cycle, self.l1, self.ub)


@dataclass(frozen=True)
class Instruction:
    """Declaration of an instruction."""

    name: str
    opcode: int
    queue: str
    """Queue that executes it; ``source`` and ``target`` for flags, ``all`` for barriers."""
    doc: str
    fields: tuple[Field, ...]
    check: Callable[[Values, NPUSpec], Iterable[str]]
    """Faults of the values on a machine, beyond the limits of single fields."""
    cost: Callable[[Values, NPUSpec], Cost]
    """Work on a machine, without the issue and the DRAM latency."""
    accesses: Callable[[Values], list[Access]]
    """Footprints of the operands."""
    execute: Callable[[Values, Memories], None] | None
    """NumPy semantics on a :class:`~hetero_tvm.targets.npu.isa.reference.Machine`; None: no data."""

    def __post_init__(self) -> None:
        body = "".join(f"{f.count}{_KINDS[f.kind]}" for f in self.fields)
        used = HEAD.size + struct.calcsize("<" + body)
        words = -(-used // 4)
        object.__setattr__(self, "_body", struct.Struct(f"<BBH{body}{4 * words - used}x"))
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "_plan", [f.plan() for f in self.fields])

    @property
    def size(self) -> int:
        """Encoded bytes."""
        return 4 * self.words  # type: ignore[attr-defined]

    def offsets(self) -> dict[str, int]:
        """Byte offset of every field within the encoded instruction, for patching."""
        result, at = {}, HEAD.size
        for f in self.fields:
            result[f.name] = at
            at += f.bytes
        return result

    def complete(self, values: Mapping[str, Any]) -> Values:
        """The values with defaults and outer dimensions filled in.  Raises :class:`StreamError`."""
        return self.decode(self.encode(values))[1]

    def encode(self, values: Mapping[str, Any], tag: int = 0) -> bytes:
        """Encoded instruction.  Raises :class:`StreamError` for missing, unknown or out-of-range fields."""
        try:
            return self._encode(values, tag)
        except (struct.error, KeyError, TypeError, ValueError, OverflowError) as error:
            self._explain(values, tag)
            raise StreamError(f"{self.name}: {error}") from error

    def _encode(self, values: Mapping[str, Any], tag: int) -> bytes:
        """Encode fast, for streams of hundreds of thousands: any fault raises something."""
        arguments = [self.opcode, self.words, tag]  # type: ignore[attr-defined]
        given = 0
        for name, default, words, count, fill, low, high in self._plan:  # type: ignore[attr-defined]
            if name in values:
                value = values[name]
                given += 1
            elif default is None:
                raise KeyError(name)
            else:
                value = default
            if words is not None:
                arguments.append(words[value])
            elif count == 1:
                if low is not None and not low <= value <= high:
                    raise ValueError(name)
                arguments.append(value)
            else:
                missing = count - len(value)
                if missing < 0 or (low is not None and not (low <= min(value) and max(value) <= high)):
                    raise ValueError(name)
                arguments += [fill] * missing
                arguments += value
        if given != len(values):
            raise KeyError(values)
        return self._body.pack(*arguments)  # type: ignore[attr-defined]

    def _explain(self, values: Mapping[str, Any], tag: int) -> None:
        """Raise :class:`StreamError` with the fault of the values."""
        if unknown := set(values) - {f.name for f in self.fields}:
            raise StreamError(f"{self.name} has no field {', '.join(sorted(unknown))}")
        for f in self.fields:
            value = values.get(f.name, f.default)
            if value is None:
                raise StreamError(f"{self.name} needs {f.name}: {f.doc}")
            try:
                f.encode(value)
            except (TypeError, ValueError) as error:
                raise StreamError(f"{self.name}: {f.name} cannot be {value!r}: {error}") from error
        if not 0 <= tag < 1 << 16:
            raise StreamError(f"{self.name}: tag must be from 0 to 65535, got {tag}")

    def decode(self, data: bytes | memoryview) -> tuple[int, Values]:
        """Tag and values of an encoded instruction.  Raises :class:`StreamError`."""
        if len(data) != self.size:
            raise StreamError(f"{self.name} has {self.size} bytes, got {len(data)}")
        opcode, words, tag, *raw = self._body.unpack(data)  # type: ignore[attr-defined]
        if opcode != self.opcode or words != self.words:  # type: ignore[attr-defined]
            raise StreamError(f"{self.name} is opcode {self.opcode} with {self.size} bytes")
        used = HEAD.size + sum(f.bytes for f in self.fields)
        if any(data[used:]):
            raise StreamError(f"{self.name}: padding is not zero")
        values, at = {}, 0
        for f in self.fields:
            values[f.name] = f.decode(tuple(raw[at : at + f.count]))
            at += f.count
        return tag, values

    def to_text(self, values: Values, tag: int = 0) -> str:
        """``mmad #7 dtype=f16 m=128 ...``; the tag only when it is not 0."""
        parts = [self.name, *([f"#{tag}"] if tag else [])]
        return " ".join([*parts, *(f"{f.name}={f.to_text(values[f.name])}" for f in self.fields)])


def u8(name: str, doc: str, names: tuple[str, ...] = (), default: Any = None) -> Field:
    return Field(name, "u8", doc, names=names, default=default)


def u16(name: str, doc: str, default: Any = None) -> Field:
    return Field(name, "u16", doc, default=default)


def u32(name: str, doc: str, default: Any = None) -> Field:
    return Field(name, "u32", doc, default=default)


def size(name: str, doc: str, greatest: int = MAX_EXTENT) -> Field:
    """A number of elements or rows, at least 1."""
    return Field(name, "u32", doc, least=1, greatest=greatest)


def u64(name: str, doc: str, default: Any = None) -> Field:
    return Field(name, "u64", doc, default=default, greatest=MAX_ADDRESS)


def i32(name: str, doc: str, default: Any = None) -> Field:
    return Field(name, "i32", doc, default=default)


def f32(name: str, doc: str, default: Any = None) -> Field:
    return Field(name, "f32", doc, default=default)


def extents(doc: str = "elements per dimension, outermost first") -> Field:
    return Field("extents", "u32", doc, count=RANK, fill=1, least=1, greatest=MAX_EXTENT)


def strides(name: str, doc: str = "bytes per step of each dimension") -> Field:
    return Field(name, "i32", doc, count=RANK, fill=0, default=(0,) * RANK)


def pads(name: str, doc: str) -> Field:
    return Field(name, "u32", doc, count=RANK, fill=0, default=(0,) * RANK, greatest=MAX_EXTENT)
