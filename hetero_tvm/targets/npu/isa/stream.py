"""The command stream: a versioned, checksummed container of instructions and what they refer to.

All numbers are little-endian::

    header   96 bytes, see _HEADER
    slots    one _SLOT each: DRAM buffers, bound to addresses at submission
    tags     u32 each: offset of the operator's name in the text; tag 0 is always ""
    text     NUL-terminated UTF-8, padded with NUL to 8 bytes
    code     encoded instructions back to back

The CRC-32 (IEEE, as in zlib) covers the whole file with its own four bytes taken as zero.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hetero_tvm.machines.npu.spec import SCRATCHPADS
from hetero_tvm.targets.npu.isa import instructions as isa
from hetero_tvm.targets.npu.isa.encoding import Instruction, StreamError, Values

MAGIC = b"HNPU"
# magic, ISA version, header bytes, crc, reserved, total, instructions, slots, tags, text bytes,
# code bytes, needs of l1 l0a l0b l0c ub, events, 6 reserved words
_HEADER = struct.Struct("<4sHHIIQIIIIQ5II6I")
_SLOT = struct.Struct("<QII")
_CRC_OFFSET = 8
TOTAL_OFFSET = 16
SIGNATURE = struct.pack("<4sHH", MAGIC, isa.ISA_VERSION, _HEADER.size)
"""First bytes of every stream of this version."""
SLOT_KINDS = ("input", "output", "constant", "scratch")
MAX_SLOTS = MAX_TAGS = 1 << 16
MAX_INSTRUCTIONS = 1 << 24


@dataclass(frozen=True)
class Slot:
    """A DRAM buffer of the program: its base address is bound at submission (the relocation)."""

    name: str
    bytes: int
    kind: str
    """``input`` and ``constant`` are written by the host before, ``output`` is read after,
    ``scratch`` is neither."""


@dataclass
class Stream:
    """A program: instructions, and the slots and tags that they refer to."""

    slots: list[Slot] = field(default_factory=list)
    tags: list[str] = field(default_factory=lambda: [""])
    """Operator names; instructions carry the index."""
    code: bytes = b""
    instructions: int = 0
    needs: Mapping[str, int] = field(default_factory=dict)
    """Bytes that the code uses of every scratchpad."""
    events: int = 0
    """Number of event ids that the code uses: the highest plus one."""
    code_offset: int = 0
    """Offset of the code in the file that this was read from; 0 when it was not."""

    def to_bytes(self) -> bytes:
        """The stream as a file.  Raises :class:`StreamError` when a count is beyond the format."""
        if len(self.slots) > MAX_SLOTS or len(self.tags) > MAX_TAGS or self.instructions > MAX_INSTRUCTIONS:
            raise StreamError(
                f"too large: {len(self.slots)} slots, {len(self.tags)} tags, {self.instructions} "
                f"instructions (limits {MAX_SLOTS}, {MAX_TAGS}, {MAX_INSTRUCTIONS})"
            )
        text, where = bytearray(), {}
        for name in [*self.tags, *(slot.name for slot in self.slots)]:
            if name not in where:
                where[name] = len(text)
                text += _encoded(name)
        text += b"\0" * (-len(text) % 8)
        slots = b"".join(
            _SLOT.pack(slot.bytes, where[slot.name], SLOT_KINDS.index(slot.kind)) for slot in self.slots
        )
        tags = struct.pack(f"<{len(self.tags)}I", *(where[name] for name in self.tags))
        total = _HEADER.size + len(slots) + len(tags) + len(text) + len(self.code)
        header = _HEADER.pack(
            MAGIC,
            isa.ISA_VERSION,
            _HEADER.size,
            0,
            0,
            total,
            self.instructions,
            len(self.slots),
            len(self.tags),
            len(text),
            len(self.code),
            *(self.needs.get(m, 0) for m in SCRATCHPADS),
            self.events,
            *(0,) * 6,
        )
        return seal(header + slots + tags + bytes(text) + self.code)

    @classmethod
    def from_bytes(cls, data: bytes) -> Stream:
        """The stream of a file; checks the container, not the instructions (see :meth:`decode`).

        Raises :class:`StreamError` with the offset and the reason.
        """
        if len(data) < _HEADER.size:
            raise StreamError(f"offset 0: {len(data)} bytes are less than a header ({_HEADER.size})")
        head = _HEADER.unpack_from(data)
        magic, version, header_bytes, crc, reserved, total, count, n_slots, n_tags, n_text, n_code = head[:11]
        if magic != MAGIC:
            raise StreamError(f"offset 0: not a command stream (starts with {magic!r})")
        if crc != checksum(data):
            found = checksum(data)
            raise StreamError(f"offset {_CRC_OFFSET}: damaged: CRC {found:08x}, the stream says {crc:08x}")
        if version != isa.ISA_VERSION:
            raise StreamError(f"offset 4: version {version}, this is version {isa.ISA_VERSION}")
        if header_bytes != _HEADER.size or reserved or any(head[17:]):
            raise StreamError("offset 6: the header is not of this version")
        expected = _HEADER.size + n_slots * _SLOT.size + 4 * n_tags + n_text + n_code
        if not total == len(data) == expected:
            raise StreamError(f"offset 16: {len(data)} bytes; the header says {total}, sections {expected}")
        if n_slots > MAX_SLOTS or not 0 < n_tags <= MAX_TAGS or count > MAX_INSTRUCTIONS:
            raise StreamError(f"offset 24: {n_slots} slots, {n_tags} tags, {count} instructions: refused")
        at_tags = _HEADER.size + n_slots * _SLOT.size
        at_text = at_tags + 4 * n_tags
        text = data[at_text : at_text + n_text]
        if n_text == 0 or n_text % 8 or text[-1]:
            raise StreamError(f"offset {at_text}: the text is not NUL-terminated and padded to 8 bytes")

        def name(offset: int, at: int) -> str:
            if offset >= n_text:
                raise StreamError(f"offset {at}: name at {offset}, the text has {n_text} bytes")
            try:
                return text[offset : text.index(0, offset)].decode()
            except UnicodeDecodeError:
                raise StreamError(f"offset {at}: the name is not UTF-8") from None

        slots = []
        for i in range(n_slots):
            at = _HEADER.size + i * _SLOT.size
            size, offset, kind = _SLOT.unpack_from(data, at)
            if kind >= len(SLOT_KINDS):
                raise StreamError(f"offset {at}: slot {i} is of unknown kind {kind}")
            slots.append(Slot(name(offset, at), size, SLOT_KINDS[kind]))
        offsets = struct.unpack_from(f"<{n_tags}I", data, at_tags)
        tags = [name(offset, at_tags + 4 * i) for i, offset in enumerate(offsets)]
        if tags[0]:
            raise StreamError(f"offset {at_tags}: tag 0 must be the empty name")
        needs = dict(zip(SCRATCHPADS, head[11:16], strict=True))
        at_code = at_text + n_text
        return cls(slots, tags, data[at_code:], count, needs, head[16], at_code)

    def decode(self) -> Iterator[tuple[int, Instruction, int, Values]]:
        """Tuples (offset in the code, declaration, tag, values), one per instruction.

        Raises :class:`StreamError` with the index, the offset in the file and the reason.
        """
        base, at, index = self.code_offset, 0, 0
        code = memoryview(self.code)
        while at < len(code):
            try:
                instruction, tag, values = isa.decode(code, at)
                if tag >= len(self.tags):
                    raise StreamError(f"tag {tag}, there are {len(self.tags)}")
            except StreamError as error:
                raise StreamError(f"instruction {index} at offset {base + at}: {error.message}") from None
            yield at, instruction, tag, values
            at, index = at + instruction.size, index + 1
        if index != self.instructions:
            raise StreamError(f"offset 24: {self.instructions} instructions announced, there are {index}")


class Builder:
    """Writes a stream instruction by instruction.

    >>> b = Builder()
    >>> x = b.slot("x", 4096, "input")
    >>> b.tag = b.add_tag("/encoder/layer.0/matmul")
    >>> b.emit("load", elem=2, dst_mem="l1", src_slot=x, src=0, dst=0, extents=(2048,), ...)
    >>> data = b.finish(needs={"l1": 4096}).to_bytes()
    """

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.tags = [""]
        self.tag = 0
        """Tag of every instruction that is emitted from now on."""
        self._ids = {"": 0}
        self._code: list[bytes] = []

    def slot(self, name: str, size: int, kind: str) -> int:
        """Declare a DRAM buffer of ``size`` bytes; returns the index for ``src_slot``, ``dst_slot``."""
        if kind not in SLOT_KINDS:
            raise StreamError(f"slot {name!r}: kind must be one of {', '.join(SLOT_KINDS)}, got {kind!r}")
        self.slots.append(Slot(name, size, kind))
        return len(self.slots) - 1

    def add_tag(self, name: str) -> int:
        """The id of an operator name."""
        if name not in self._ids:
            self._ids[name] = len(self.tags)
            self.tags.append(name)
        return self._ids[name]

    def emit(self, name: str, **values: Any) -> None:
        """Append one instruction.  Raises :class:`StreamError` for bad fields."""
        self._code.append(isa.BY_NAME[name].encode(values, self.tag))

    def finish(self, needs: Mapping[str, int] | None = None, events: int | None = None) -> Stream:
        """``needs`` (bytes used per scratchpad) and ``events`` are computed when not given."""
        stream = Stream(list(self.slots), list(self.tags), b"".join(self._code), len(self._code))
        if needs is None or events is None:
            found, used = footprint(stream)
            needs = found if needs is None else needs
            events = used if events is None else events
        return Stream(stream.slots, stream.tags, stream.code, stream.instructions, dict(needs), events)


def _encoded(name: str) -> bytes:
    """NUL-terminated UTF-8."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise StreamError(f"the name {name!r} has no place in a stream: it is not UTF-8 without NUL")
    return encoded + b"\0"


def footprint(stream: Stream) -> tuple[dict[str, int], int]:
    """Bytes that the code uses of every scratchpad, and its number of event ids."""
    needs, events = dict.fromkeys(SCRATCHPADS, 0), 0
    for _, instruction, _, values in stream.decode():
        events = max(events, values.get("event", -1) + 1)
        for access in instruction.accesses(values):
            if access.memory != "dram":
                needs[access.memory] = max(needs[access.memory], access.interval()[1])
    return needs, events


def checksum(data: bytes) -> int:
    """CRC-32 of a stream, its own field taken as zero."""
    crc = zlib.crc32(b"\0\0\0\0", zlib.crc32(data[:_CRC_OFFSET]))
    return zlib.crc32(data[_CRC_OFFSET + 4 :], crc)


def seal(data: bytes) -> bytes:
    """The stream with its checksum put right."""
    return data[:_CRC_OFFSET] + struct.pack("<I", checksum(data)) + data[_CRC_OFFSET + 4 :]
