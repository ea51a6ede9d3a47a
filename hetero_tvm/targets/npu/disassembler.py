"""Binary to text: one directive or instruction per line, readable by the assembler."""

from __future__ import annotations

import json

from hetero_tvm.targets.npu.spec import SCRATCHPADS
from hetero_tvm.targets.npu.stream import Stream


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
