"""Assembler, text to binary: the inverse of the disassembler.

Directives: ``.slot KIND BYTES "NAME"``, ``.tag "NAME"`` (numbered from 1), ``.need MEMORY BYTES``,
``.events COUNT``.  ``;`` begins a comment.  ``#N`` behind an instruction's name is its tag.  Fields that
are left out take their defaults.
"""

from __future__ import annotations

import json
from typing import Any

from hetero_tvm.machines.npu.spec import SCRATCHPADS
from hetero_tvm.targets.npu.isa import instructions as isa
from hetero_tvm.targets.npu.isa.encoding import StreamError
from hetero_tvm.targets.npu.isa.stream import Builder


def assemble(text: str) -> bytes:
    """Binary of a text.  Raises :class:`StreamError` that lists every wrong line with its number."""
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
        kind, size, name = (*rest.split(None, 2), "", "", "")[:3]
        builder.slot(_string(name), _count(size), kind)
    elif word == ".tag":
        builder.add_tag(_string(rest))
    elif word == ".need":
        memory, size = (*rest.partition(";")[0].split(None, 1), "", "")[:2]
        if memory not in SCRATCHPADS:
            raise StreamError(f"there is no scratchpad {memory!r}")
        needs[memory] = _count(size, 32)
    elif word == ".events":
        return _count(rest.partition(";")[0], 32)
    else:
        _instruction(word, rest.partition(";")[0].split(), builder)
    return events


def _count(text: str, bits: int = 64) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        raise StreamError(f"{text.strip()!r} is not a whole number") from None
    if not 0 <= value < 1 << bits:
        raise StreamError(f"{value} is not a number of {bits} bits")
    return value


def _instruction(name: str, words: list[str], builder: Builder) -> None:
    if name not in isa.BY_NAME:
        raise StreamError(f"there is no instruction {name!r}")
    builder.tag = 0
    fields = {f.name: f for f in isa.BY_NAME[name].fields}
    values: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if word.startswith("#"):
            builder.tag = _count(word[1:], 16)
            if builder.tag >= len(builder.tags):
                raise StreamError(f"{name}: there is no .tag {builder.tag} before this line")
        elif not equals or key not in fields:
            raise StreamError(f"{name} has no field {key!r}")
        elif key in values:
            raise StreamError(f"{name}: {key} is given twice")
        else:
            values[key] = fields[key].from_text(value)
    builder.emit(name, **values)


def _string(text: str) -> str:
    """A quoted name, and perhaps a comment behind it."""
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        value, end = None, 0
    rest = text[end:].strip()
    if not isinstance(value, str) or (rest and not rest.startswith(";")):
        raise StreamError(f"{text.strip()!r} is not a name in double quotes")
    return value
