"""Text to binary: the inverse of the disassembler.

Directives: ``.slot KIND BYTES "NAME"``, ``.tag "NAME"`` (numbered from 1), ``.need MEMORY BYTES``,
``.events COUNT``.  ``;`` begins a comment.  Fields that are left out take their defaults.
"""

from __future__ import annotations

import json
from typing import Any

from hetero_tvm.targets.npu import isa
from hetero_tvm.targets.npu.encoding import StreamError
from hetero_tvm.targets.npu.spec import SCRATCHPADS
from hetero_tvm.targets.npu.stream import Builder


def assemble(text: str) -> bytes:
    """Raises :class:`StreamError` that lists every wrong line with its number."""
    builder = Builder()
    needs: dict[str, int] = {}
    events: int | None = None
    wrong = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            events = _line(line.strip(), builder, needs, events)
        except (StreamError, ValueError) as error:
            wrong.append(f"line {number}: {getattr(error, 'message', error)}")
    if wrong:
        raise StreamError("the text is not a program", problems=wrong)
    return builder.finish(needs or None, events).to_bytes()


def _line(line: str, builder: Builder, needs: dict[str, int], events: int | None) -> int | None:
    if not line or line.startswith(";"):
        return events
    word, _, rest = line.partition(" ")
    if word == ".slot":
        kind, size, name = rest.split(" ", 2)
        builder.slot(_string(name), int(size, 0), kind)
    elif word == ".tag":
        builder.add_tag(_string(rest))
    elif word == ".need":
        memory, size = rest.split()
        if memory not in SCRATCHPADS:
            raise StreamError(f"there is no scratchpad {memory!r}")
        needs[memory] = int(size, 0)
    elif word == ".events":
        return int(rest, 0)
    else:
        _instruction(word, rest.partition(";")[0].split(), builder)
    return events


def _instruction(name: str, words: list[str], builder: Builder) -> None:
    if name not in isa.BY_NAME:
        raise StreamError(f"there is no instruction {name!r}")
    builder.tag = 0
    fields = {f.name: f for f in isa.BY_NAME[name].fields}
    values: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if word.startswith("#"):
            builder.tag = int(word[1:], 0)
        elif not equals or key not in fields:
            raise StreamError(f"{name} has no field {key!r}")
        elif key in values:
            raise StreamError(f"{name}: {key} is given twice")
        else:
            values[key] = fields[key].from_text(value)
    builder.emit(name, **values)


def _string(text: str) -> str:
    value = json.loads(text)
    if not isinstance(value, str):
        raise StreamError(f"{text} is not a quoted name")
    return value
