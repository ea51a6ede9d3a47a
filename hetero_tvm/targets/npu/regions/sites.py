"""Instruction sites of a kernel: from bases and extents of one tile to one encoded instruction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hetero_tvm.errors import BuildError
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.isa import instructions as isa
from hetero_tvm.targets.npu.regions.patching import patched

Numbers = tuple[int, ...]
FieldsAndSpans = tuple[dict[str, Any], list[Numbers]]
RANK = 4
_LEAST_ALIKE = 16
"""Number of instructions that differ by addresses only, from which on they are patched, not encoded."""
_ADDRESS_IN_L1 = {
    "load": ("dst", "<I"),
    "store": ("dst", "<Q"),
    "move": ("src", "<I"),
    "im2col": ("src", "<I"),
    "move_out": ("residuals", "<I"),
}
"""Field of the address in L1, and its struct format."""
_L0 = ("l0a", "l0b", "l0c")
_ADDRESS_IN_L0 = {
    "move": ("dst", "dst", ""),
    "im2col": ("dst", "dst", ""),
    "mmad": ("a", "b", "c"),
    "move_out": ("", "", "c"),
}
"""Fields of the addresses in L0A, L0B and L0C."""
_PARAMETER_IN_UB = {"load": ("dst", "<I"), "move_out": ("biases", "<I")}
"""Field of the address of a parameter in the unified buffer, and its struct format."""


@dataclass(frozen=True)
class Operand:
    """The static part of an access."""

    memory: str
    """``dram`` or the name of a scratchpad."""
    parameter: int | None
    """Index of the kernel's parameter; None for a buffer of the kernel's own."""
    dtype: str
    width: int
    """Bytes of an element."""
    strides: tuple[int, ...]
    """Bytes per step of every loop."""


class Instr:
    """An instruction without flags: its encoding, queue, and the byte intervals that it touches."""

    __slots__ = ("accesses", "code", "in_l0", "in_l1", "in_ub", "queue", "reference")

    def __init__(
        self,
        code: bytes,
        queue: int,
        accesses: tuple[tuple[Any, ...], ...],
        reference: tuple[int, int, int, int] | None,
        in_l1: tuple[int | None, int, str, int] | None,
        in_ub: tuple[int, int, str, int] | None = None,
        in_l0: tuple[tuple[str, int, int], ...] = (),
    ):
        self.code = code
        self.queue = queue
        self.accesses = accesses
        """Tuples (scratchpad or index of a parameter, first byte, one past the last, written), with the pitch
        and the bytes of runs behind where not all bytes between are touched."""
        self.reference = reference
        """Access to DRAM: (parameter, position of the slot field, of the address field, byte offset in the
        parameter)."""
        self.in_l1 = in_l1
        """Address in L1, one at most: (parameter, or None for the kernel's own part; position of the field;
        its struct format; byte offset in the parameter or that part)."""
        self.in_ub = in_ub
        """Address of a parameter in the unified buffer, as in ``in_l1``."""
        self.in_l0 = in_l0
        """Addresses in L0A, L0B and L0C: (scratchpad, position of the field, byte offset)."""


class _Merged(NamedTuple):
    """Loops of an instruction in as few dimensions as possible."""

    extents: tuple[int, ...]
    strides: list[tuple[int, ...]]
    """Strides of every operand."""
    spans: list[tuple[int, ...]]
    """Span of every operand; see :func:`_span`."""
    kept: int
    """Mask of the kept dimensions."""


class Site(ABC):
    """Encoder of the instructions that one loop nest of a kernel becomes."""

    def __init__(self, name: str, operands: Sequence[Operand], fixed: Mapping[str, Any], spec: NPUSpec):
        self.instruction = isa.BY_NAME[name]
        self.operands = list(operands)
        self.fixed = dict(fixed)
        self.spec = spec
        self.queue = isa.QUEUES.index(self.instruction.queue)
        self.offsets = self.instruction.offsets()
        self._shapes: dict[tuple[int, ...], _Merged] = {}
        self._alike: dict[Hashable, int | Callable[[tuple[int, ...]], Instr]] = {}
        """Table by extents and moving fields: number of such instructions, later a quick encoder of them."""

    def __call__(self, extents: tuple[int, ...], bases: tuple[int, ...], **moving: Any) -> Instr:
        """The instruction of one tile.

        Parameters
        ----------
        extents : of the loops.
        bases : first byte of every operand.
        moving : fields that differ from tile to tile.
        """
        key = (extents, *moving.values())
        known = self._alike.get(key, 0)
        if not isinstance(known, int):
            return known(bases)
        instr = self._encoded(extents, bases, moving)
        self._alike[key] = known + 1
        if known == _LEAST_ALIKE:
            quick = patched(instr, bases, lambda at: self.values(extents, at, moving), self.instruction)
            self._alike[key] = quick or (lambda at: self._encoded(extents, at, moving))
        return instr

    def _encoded(self, extents: tuple[int, ...], bases: tuple[int, ...], moving: dict[str, Any]) -> Instr:
        values, spans = self.values(extents, bases, moving)
        accesses, reference, in_l1, in_ub = [], None, None, None
        in_l0: list[tuple[str, int, int]] = []
        for n, (operand, (low, high, *runs)) in enumerate(zip(self.operands, spans, strict=True)):
            where = operand.memory if operand.parameter is None else operand.parameter
            accesses.append((where, low, high, n == 0, *runs))
            if operand.memory == "l1":
                field, form = _ADDRESS_IN_L1[self.instruction.name]
                in_l1 = (operand.parameter, self.offsets[field], form, values[field])
            if operand.memory in _L0:
                field = _ADDRESS_IN_L0[self.instruction.name][_L0.index(operand.memory)]
                in_l0.append((operand.memory, self.offsets[field], values[field]))
            if operand.memory == "ub" and operand.parameter is not None:
                field, form = _PARAMETER_IN_UB[self.instruction.name]
                in_ub = (operand.parameter, self.offsets[field], form, values[field])
            if operand.memory != "dram":
                continue
            field = "src" if self.instruction.name in ("load", "gather") else "dst"
            slot_at, address_at = self.offsets[f"{field}_slot"], self.offsets[field]
            reference = (operand.parameter, slot_at, address_at, values[field])
        if values.get("accumulate") == "yes" and self.instruction.name in ("mmad", "vreduce"):
            accesses.append((*accesses[0][:3], False, *accesses[0][4:]))
        code = self.instruction.encode(values)
        return Instr(code, self.queue, tuple(accesses), reference, in_l1, in_ub, tuple(in_l0))

    @abstractmethod
    def values(self, extents: Numbers, bases: Numbers, moving: dict[str, Any]) -> FieldsAndSpans:
        """Fields of the instruction, and the span of every operand (see :func:`_span`)."""

    def _merged(self, extents: tuple[int, ...], keep: Sequence[int] = ()) -> _Merged:
        """The loops with extents of 1 dropped and contiguous ones merged; those among ``keep`` are marked."""
        if extents in self._shapes:
            return self._shapes[extents]
        dims = [
            [n, [op.strides[i] for op in self.operands], i in keep]
            for i, n in enumerate(extents)
            if n != 1 or (i in keep and all(extents[j] == 1 for j in keep) and i == keep[-1])
        ]
        merged: list[Any] = []
        for n, strides, kept in dims:
            contiguous = merged and all(a == b * n for a, b in zip(merged[-1][1], strides, strict=True))
            if contiguous and merged[-1][2] == kept:
                merged[-1] = [merged[-1][0] * n, strides, kept]
            else:
                merged.append([n, strides, kept])
        if not merged:
            merged = [[1, [op.width for op in self.operands], False]]
        if len(merged) > RANK:
            raise BuildError(
                f"{self.instruction.name} over {extents} has {len(merged)} dimensions, the machine has {RANK}"
            )
        shape = tuple(n for n, _, _ in merged)
        strides = [tuple(s[o] for _, s, _ in merged) for o in range(len(self.operands))]
        spans = [_span(shape, s, op.width) for s, op in zip(strides, self.operands, strict=True)]
        mask = sum(1 << (RANK - len(merged) + i) for i, (_, _, kept) in enumerate(merged) if kept)
        self._shapes[extents] = _Merged(shape, strides, spans, mask)
        return self._shapes[extents]


def _span(extents: Sequence[int], strides: Sequence[int], width: int) -> tuple[int, ...]:
    """First byte and one past the last, from the base; then pitch and bytes of runs, if there are gaps."""
    reach = [(n - 1) * s for n, s in zip(extents, strides, strict=True)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + width
    steps = sorted((abs(s), n) for s, n in zip(strides, extents, strict=True) if s and n > 1)
    run = width
    while steps and steps[0][0] <= run:
        step, n = steps.pop(0)
        run += step * (n - 1)
    if steps and all(step % steps[0][0] == 0 for step, _ in steps):
        return low, high, steps[0][0], run
    return low, high


def _moved(span: tuple[int, ...], base: int) -> tuple[int, ...]:
    low, high, *runs = span
    return (low + base, high + base, *runs)


class CopySite(Site):
    """Site of load, store and move: a box from one memory to another, perhaps padded."""

    def values(self, extents: Numbers, bases: Numbers, moving: dict[str, Any]) -> FieldsAndSpans:
        pads = moving.get("pads")
        dst, src = self.operands
        if pads is None:
            shape, strides, spans, _ = self._merged(extents)
            low = high = ()
        else:
            keep = [i for i, n in enumerate(extents) if n != 1 or any(pads[i])] or [len(extents) - 1]
            shape = tuple(extents[i] for i in keep)
            strides = [tuple(op.strides[i] for i in keep) for op in self.operands]
            low, high = (tuple(pads[i][side] for i in keep) for side in (0, 1))
            spans = [_span(shape, s, op.width) for s, op in zip(strides, self.operands, strict=True)]
            inner = [n - a - b for n, a, b in zip(shape, low, high, strict=True)]
            shift = sum(a * s for a, s in zip(low, strides[1], strict=True))
            if min(inner, default=1) <= 0:
                shift, spans[1] = 0, (0, 0)
                bases = (bases[0], 0)
            else:
                spans[1] = _span(inner, strides[1], src.width)
            bases = (bases[0], bases[1] + shift)
        fields = {
            "elem": dst.width,
            "dst_mem": dst.memory,
            "extents": shape,
            "dst_strides": strides[0],
            "src_strides": strides[1],
            "dst": bases[0],
            "src": bases[1],
        }
        if pads is not None:
            fields |= {"pad_low": low, "pad_high": high, "fill": self.fixed.get("fill", 0)}
        return fields, [_moved(span, base) for base, span in zip(bases, spans, strict=True)]


class GatherSite(Site):
    """Site of gather: rows of a table in DRAM by indices."""

    def values(self, extents: Numbers, bases: Numbers, moving: dict[str, Any]) -> FieldsAndSpans:
        count, run = extents
        dst, table, _ = self.operands
        fields = {**self.fixed, **moving}
        pitch, row = fields["pitch"] * table.width, run * table.width
        first = fields["first"] * table.width
        values = {
            "dst_mem": dst.memory,
            "src": first,
            "src_pitch": pitch,
            "rows": fields["rows"],
            "row_bytes": row,
            "indices": bases[2],
            "count": count,
            "dst": bases[0],
            "dst_pitch": dst.strides[0] or row,
        }
        spans = [
            (bases[0], bases[0] + (count - 1) * values["dst_pitch"] + row),
            (first, first + (fields["rows"] - 1) * pitch + row),
            (bases[2], bases[2] + 4 * count),
        ]
        return values, spans


class MmadSite(Site):
    """Site of mmad: a product of two tiles; a strided inner loop means a transposed operand."""

    def values(self, extents: Numbers, bases: Numbers, moving: dict[str, Any]) -> FieldsAndSpans:
        m, n, k = extents
        c, a, b = self.operands
        first = moving["first"] if "first" in moving else self.fixed["first"]
        a_transposed = a.strides[2] != a.width
        b_transposed = b.strides[1] != b.width
        a_rows, a_row, a_pitch = (k, m, a.strides[2]) if a_transposed else (m, k, a.strides[0])
        b_rows, b_row, b_pitch = (n, k, b.strides[1]) if b_transposed else (k, n, b.strides[2])
        fields = {
            "dtype": a.dtype,
            "accumulate": "no" if first else "yes",
            "m": m,
            "n": n,
            "k": k,
            "a_transposed": "yes" if a_transposed else "no",
            "b_transposed": "yes" if b_transposed else "no",
            "a": bases[1],
            "a_pitch": a_pitch,
            "b": bases[2],
            "b_pitch": b_pitch,
            "c": bases[0],
            "c_pitch": c.strides[0],
        }
        spans = [
            (bases[0], bases[0] + (m - 1) * c.strides[0] + n * 4),
            (bases[1], bases[1] + (a_rows - 1) * a_pitch + a_row * a.width),
            (bases[2], bases[2] + (b_rows - 1) * b_pitch + b_row * b.width),
        ]
        return fields, spans


class MoveOutSite(Site):
    """Site of move_out: accumulators to the unified buffer, with bias, scale and residual."""

    def values(self, extents: Numbers, bases: Numbers, moving: dict[str, Any]) -> FieldsAndSpans:
        m, n = extents
        dst, c, *rest = self.operands
        fields = {
            **self.fixed,
            "src_dtype": c.dtype,
            "dst_dtype": dst.dtype,
            "m": m,
            "n": n,
            "c": bases[1],
            "c_pitch": c.strides[0],
            "dst": bases[0],
            "row_stride": dst.strides[0],
            "column_stride": dst.strides[1],
        }
        spans = [
            _moved(_span(extents, dst.strides, dst.width), bases[0]),
            (bases[1], bases[1] + (m - 1) * c.strides[0] + 4 * n),
        ]
        # An integer bias comes before the scales, any other one behind them.
        scaled = self.fixed.get("scale_mode") == "column"
        residual, base = (rest.pop(), bases[-1]) if fields.pop("residual", None) else (None, 0)
        names = ["bias", "scale"] if rest and rest[0].dtype == "i32" else ["scale"] * scaled + ["bias"]
        for name, vector, start in zip(names, rest, bases[2:], strict=False):
            if name == "bias":
                fields |= {"bias": vector.dtype, "biases": start}
            else:
                fields["scales"] = start
            spans.append((start, start + n * vector.width))
        if residual is not None:
            fields |= {
                "residual": residual.dtype,
                "residual_mem": residual.memory,
                "residuals": base,
                "residual_pitch": residual.strides[0],
            }
            spans.append(_moved(_span(extents, residual.strides, residual.width), base))
        return fields, spans


class Im2colSite(Site):
    """Site of im2col: rows of patches of an image in L1."""

    def values(self, extents: Numbers, bases: Numbers, moving: dict[str, Any]) -> FieldsAndSpans:
        m, k = extents
        dst, image = self.operands
        fields = {**self.fixed, **moving}
        size, origin = fields.pop("image_bytes"), bases[1] + fields.pop("origin", 0)
        pitch = dst.strides[0]
        fields |= {"elem": dst.width, "src": origin, "m": m, "k": k, "dst": bases[0], "dst_pitch": pitch}
        written = bases[0], bases[0] + (m - 1) * pitch + k * dst.width
        first, pixel = fields["k_start"] % fields["channels"], fields["pixel_pitch"]
        if first + k > fields["channels"]:
            first, k = 0, fields["channels"]
        begin, end = origin + first * image.width, origin + size - pixel + (first + k) * image.width
        gaps = k * image.width < pixel and fields["row_pitch"] % pixel == 0
        return fields, [written, (begin, end, pixel, k * image.width) if gaps else (begin, end)]


class VectorSite(Site):
    """Site of vunary, vbinary and vternary."""

    def __init__(self, name: str, operands: Sequence[Operand], fixed: Mapping[str, Any], spec: NPUSpec):
        super().__init__(name, operands, fixed, spec)
        immediates = list(self.fixed.pop("immediates", []))
        self.base_fields = {**self.fixed, "dst_dtype": operands[0].dtype}
        sources = {"vunary": ["src"], "vbinary": ["src0", "src1"], "vternary": ["src0", "src1", "src2"]}[name]
        if name == "vunary" and len(operands) == 1:
            immediates = [0]
        self.names = [source for n, source in enumerate(sources) if n not in immediates]
        for n, source in enumerate(sources):
            if n in immediates:
                self.base_fields[f"{source}_dtype"] = "imm"
        for source, operand in zip(self.names, operands[1:], strict=True):
            self.base_fields[f"{source}_dtype"] = operand.dtype

    def values(self, extents: Numbers, bases: Numbers, moving: dict[str, Any]) -> FieldsAndSpans:
        shape, strides, spans, _ = self._merged(extents)
        fields = {**self.base_fields, "extents": shape, "dst": bases[0], "dst_strides": strides[0]}
        for source, base, stride in zip(self.names, bases[1:], strides[1:], strict=True):
            fields[source] = base
            fields[f"{source}_strides"] = stride
        return fields, [_moved(span, base) for base, span in zip(bases, spans, strict=True)]


class ReduceSite(Site):
    """Site of vreduce."""

    def values(self, extents: Numbers, bases: Numbers, moving: dict[str, Any]) -> FieldsAndSpans:
        first = moving["first"] if "first" in moving else self.fixed["first"]
        shape, strides, spans, mask = self._merged(extents, self.fixed["axes"])
        dst, src = self.operands
        fields = {
            "op": self.fixed["op"],
            "dst_dtype": dst.dtype,
            "src_dtype": src.dtype,
            "axes": mask,
            "accumulate": "no" if first else "yes",
            "extents": shape,
            "dst": bases[0],
            "src": bases[1],
            "dst_strides": strides[0],
            "src_strides": strides[1],
        }
        return fields, [_moved(span, base) for base, span in zip(bases, spans, strict=True)]


_SITES: dict[str, type[Site]] = {
    "load": CopySite,
    "gather": GatherSite,
    "store": CopySite,
    "move": CopySite,
    "mmad": MmadSite,
    "move_out": MoveOutSite,
    "im2col": Im2colSite,
    "vunary": VectorSite,
    "vbinary": VectorSite,
    "vternary": VectorSite,
    "vreduce": ReduceSite,
}


def site_of(name: str, operands: Sequence[Operand], fixed: Mapping[str, Any], spec: NPUSpec) -> Site:
    """The site of an instruction.  Raises :class:`BuildError` for one that the machine does not have."""
    if name not in _SITES:
        raise BuildError(f"a kernel is annotated with the instruction {name!r}, which the NPU does not have")
    return _SITES[name](name, operands, fixed, spec)
