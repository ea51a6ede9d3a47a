"""Patching: instructions of one site that differ by addresses only are encoded once, then patched.

A long kernel has some hundred thousand instructions and some ten shapes per site: encoding every one from its
fields takes about half of the time in which a large kernel is compiled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

_SHIFT = 1 << 12
"""Bytes by which a base is moved to see which fields follow it."""
_FORMS = {"u32": struct.Struct("<I"), "u64": struct.Struct("<Q")}

Values = Callable[[tuple[int, ...]], tuple[dict[str, Any], list[tuple[int, ...]]]]
"""Function of the bases that gives the fields of an instruction and the operands' spans: ``Site.values``."""
Follows = tuple[int | None, int]
"""A number as (operand whose base it follows, distance from that base), or as (None, the number itself)."""


class Patched:
    """Encoder of instructions like ``instr`` at other bases, of which every address is a sum with a base.

    Parameters
    ----------
    fields : struct format and value of every address, by its position in the encoding.
    begins : first byte of every operand's span.
    """

    def __init__(self, instr: Any, fields: dict[int, tuple[Any, Follows]], begins: list[Follows]):
        self._make = type(instr)
        self._code, self._queue = instr.code, instr.queue
        self._fields = [(form.pack_into, at, *follows) for at, (form, follows) in fields.items()]
        # Accumulators are read and written: the same span twice.
        self._accesses = []
        for n, (where, low, high, *rest) in enumerate(instr.accesses):
            operand, more = begins[n if n < len(begins) else 0]
            self._accesses.append((where, operand, more, high - low, tuple(rest)))

        fixed = None, (None, 0)
        self._entries = [
            (entry, *(fixed if entry is None else fields.get(entry[at], fixed))[1])
            for entry, at in ((instr.reference, 2), (instr.in_l1, 1), (instr.in_ub, 1))
        ]
        self._in_l0 = [(entry, *fields.get(entry[1], fixed)[1]) for entry in instr.in_l0]

    def __call__(self, bases: tuple[int, ...]) -> Any:
        code = bytearray(self._code)
        for pack_into, at, operand, more in self._fields:
            pack_into(code, at, bases[operand] + more)
        accesses = []
        for where, operand, more, size, rest in self._accesses:
            low = more if operand is None else bases[operand] + more
            accesses.append((where, low, low + size, *rest))
        entries = [
            entry if operand is None else (*entry[:3], bases[operand] + more)
            for entry, operand, more in self._entries
        ]
        in_l0 = tuple(
            entry if operand is None else (*entry[:2], bases[operand] + more)
            for entry, operand, more in self._in_l0
        )
        return self._make(bytes(code), self._queue, tuple(accesses), *entries, in_l0)


def patched(instr: Any, bases: tuple[int, ...], values: Values, instruction: Any) -> Patched | None:
    """Encoder of instructions like ``instr``, which was made at ``bases``; None where a field is not a base
    plus a number."""
    plain, spans = values(bases)
    offsets = instruction.offsets()
    kinds = {field.name: field.kind for field in instruction.fields}
    fields: dict[int, tuple[Any, Follows]] = {}
    begins: list[Follows] = [(None, span[0]) for span in spans]
    for operand, base in enumerate(bases):
        other, other_spans = values((*bases[:operand], base + _SHIFT, *bases[operand + 1 :]))
        for name in plain.keys() | other.keys():
            if plain.get(name) == other.get(name):
                continue
            at = offsets[name]
            if kinds[name] not in _FORMS or at in fields or other[name] != plain[name] + _SHIFT:
                return None
            fields[at] = _FORMS[kinds[name]], (operand, plain[name] - base)
        for n, (span, there) in enumerate(zip(spans, other_spans, strict=True)):
            if span == there:
                continue
            if there != (span[0] + _SHIFT, span[1] + _SHIFT, *span[2:]) or begins[n][0] is not None:
                return None
            begins[n] = operand, span[0] - base
    return Patched(instr, fields, begins)
