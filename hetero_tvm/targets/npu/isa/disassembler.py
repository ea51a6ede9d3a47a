"""Disassembler, binary to text: one directive or instruction per line, readable by the assembler."""

from __future__ import annotations

import json
import struct

from hetero_tvm.machines.npu.spec import SCRATCHPADS
from hetero_tvm.targets.npu.isa.encoding import StreamError
from hetero_tvm.targets.npu.isa.stream import SIGNATURE, TOTAL_OFFSET, Stream

_ELF = b"\x7fELF"


def disassemble_file(data: bytes, offsets: bool = False) -> str:
    """The text of a stream, or of all streams in an exported library, one after the other with a comment
    before each.

    Raises :class:`StreamError` with the offset and the reason when one is malformed, or none is there.
    """
    if not data.startswith(_ELF):
        return disassemble(data, offsets)
    parts, at = [], data.find(SIGNATURE)
    while at >= 0:
        total = struct.unpack_from("<Q", data[at : at + 96].ljust(96, b"\0"), TOTAL_OFFSET)[0]
        try:
            text = disassemble(data[at : at + total], offsets)
        except StreamError as error:
            raise StreamError(f"the stream at offset {at} of the library: {error.message}") from None
        parts.append(f"; stream {len(parts)}: {total} bytes at offset {at} of the library\n{text}")
        at = data.find(SIGNATURE, at + total)
    if not parts:
        raise StreamError("the library holds no command stream: it was not built for an NPU")
    return "\n".join(parts)


def disassemble(data: bytes, offsets: bool = False) -> str:
    """The text of a stream; with ``offsets``, each instruction ends with ``; index @offset``.

    Raises :class:`StreamError` with the offset and the reason when it is malformed.
    """
    stream = Stream.from_bytes(data)
    lines = [f".need {memory} {stream.needs[memory]}" for memory in SCRATCHPADS]
    lines.append(f".events {stream.events}")
    lines += [f".slot {slot.kind} {slot.bytes} {json.dumps(slot.name)}" for slot in stream.slots]
    lines += [f".tag {json.dumps(name)}" for name in stream.tags[1:]]
    base = stream.code_offset
    for index, (at, instruction, tag, values) in enumerate(stream.decode()):
        line = instruction.to_text(values, tag)
        lines.append(f"{line}  ; {index} @{base + at}" if offsets else line)
    return "\n".join(lines) + "\n"
