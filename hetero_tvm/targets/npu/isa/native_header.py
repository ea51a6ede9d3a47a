"""Generator of ``targets/npu/cpp/device/isa_table.h``: the declarations of the instruction set for C++.

``python -m hetero_tvm.targets.npu.isa.native_header`` after a change of a declaration.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator
from pathlib import Path

from hetero_tvm.machines.npu.numbers import DTYPES
from hetero_tvm.machines.npu.spec import BANK_BYTES, SCRATCHPADS
from hetero_tvm.targets.npu.isa import instructions as isa
from hetero_tvm.targets.npu.isa.encoding import HEAD, Field, Instruction
from hetero_tvm.targets.npu.isa.stream import MAX_INSTRUCTIONS, MAX_SLOTS, MAX_TAGS, SLOT_KINDS
from hetero_tvm.targets.npu.isa.vector import INTEGER_OPS, SUM_LANES, TRANSCENDENTAL

_TYPES = {
    "u8": "uint8_t",
    "u16": "uint16_t",
    "u32": "uint32_t",
    "u64": "uint64_t",
    "i32": "int32_t",
    "f32": "float",
}
_QUEUE_RULE = {"source": -1, "target": -2, "all": -3}


def path() -> Path:
    """Path of the header in the package."""
    root = importlib.resources.files("hetero_tvm")
    return Path(str(root.joinpath("targets/npu/cpp/device/isa_table.h")))


def render() -> str:
    """The text of the header."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "// Written by hetero_tvm/targets/npu/isa/native_header.py from the declarations beside it."
    yield "#pragma once"
    yield "#include <cstddef>"
    yield "#include <cstdint>"
    yield "#include <cstring>"
    yield ""
    yield "namespace hnpu {"
    yield ""
    limits = {"kBankBytes": BANK_BYTES, "kSumLanes": SUM_LANES, "kHeadBytes": HEAD.size}
    limits |= {"kMaxSlots": MAX_SLOTS, "kMaxTags": MAX_TAGS, "kMaxInstructions": MAX_INSTRUCTIONS}
    for name, value in limits.items():
        yield f"constexpr int {name} = {value};"
    yield _enum("Dtype", DTYPES)
    yield _enum("Queue", isa.QUEUES)
    yield _enum("SlotKind", SLOT_KINDS)
    yield _strings("kQueueNames", isa.QUEUES)
    yield _strings("kScratchpadNames", SCRATCHPADS)
    yield ""
    yield "enum class Kind : uint8_t { u8, u16, u32, u64, i32, f32 };"
    yield "struct FieldInfo {"
    yield "  const char* name; uint16_t offset; Kind kind; uint8_t count; int64_t least, greatest;"
    yield "  const char* const* words; uint8_t word_count;"
    yield "};"
    yield "struct InstructionInfo {"
    yield "  const char* name; uint8_t opcode; uint16_t size, used; int8_t queue;"
    yield "  const FieldInfo* fields; uint8_t field_count;"
    yield "};"
    yield "constexpr int kQueueOfSource = -1, kQueueOfTarget = -2, kQueueAll = -3;"
    for instruction in isa.INSTRUCTIONS:
        yield from _instruction(instruction)
    yield ""
    yield "constexpr InstructionInfo kInstructions[] = {"
    for i in isa.INSTRUCTIONS:
        used = HEAD.size + sum(f.bytes for f in i.fields)
        queue = _QUEUE_RULE.get(i.queue, isa.QUEUES.index(i.queue) if i.queue in isa.QUEUES else 0)
        fields = f"{_type(i)}::kFields, {len(i.fields)}" if i.fields else "nullptr, 0"
        yield f'    {{"{i.name}", 0x{i.opcode:02x}, {i.size}, {used}, {queue}, {fields}}},'
    yield "};"
    yield ""
    yield "}  // namespace hnpu"


def _instruction(instruction: Instruction) -> Iterator[str]:
    name, offsets = _type(instruction), instruction.offsets()
    yield ""
    yield f"struct {name} {{"
    yield f"  static constexpr uint8_t kOpcode = 0x{instruction.opcode:02x};"
    for f in instruction.fields:
        if f.names:
            yield f"  {_enum(_camel(f.name), f.names)}"
    for f in instruction.fields:
        count = f"[{f.count}]" if f.count > 1 else ""
        yield f"  {_member_type(f)} {f.name}{count};"
    yield f"  explicit {name}(const uint8_t* p) {{" + ("" if instruction.fields else " (void)p; }")
    for f in instruction.fields:
        yield f"    memcpy(&{f.name}, p + {offsets[f.name]}, {f.bytes});"
    if instruction.fields:
        yield "  }"
    yield from _op_flags(instruction)
    if instruction.fields:
        for f in instruction.fields:
            if f.names:
                yield f"  {_strings('kWordsOf' + _camel(f.name), f.names, inline=True)}"
        yield "  static constexpr FieldInfo kFields[] = {"
        for f in instruction.fields:
            words = f"kWordsOf{_camel(f.name)}, {len(f.names)}" if f.names else "nullptr, 0"
            low, high = (0, 0) if f.kind == "f32" else f.limits
            kind = f"Kind::{f.kind}, {f.count}, {low}, {high}"
            yield f'      {{"{f.name}", {offsets[f.name]}, {kind}, {words}}},'
        yield "  };"
    yield "};"


def _op_flags(instruction: Instruction) -> Iterator[str]:
    """Masks over the words of ``op``: which are slow, which may stay integer."""
    for f in instruction.fields:
        if f.name == "op":
            for name, ops in (("kTranscendental", TRANSCENDENTAL), ("kInteger", INTEGER_OPS)):
                mask = sum(1 << i for i, word in enumerate(f.names) if word in ops)
                yield f"  static constexpr uint32_t {name} = 0x{mask:x};"


def _member_type(f: Field) -> str:
    return _camel(f.name) if f.names else _TYPES[f.kind]


def _enum(name: str, words: tuple[str, ...]) -> str:
    return f"enum class {name} : uint8_t {{ {', '.join('k_' + w for w in words)} }};"


def _strings(name: str, words: tuple[str, ...], inline: bool = False) -> str:
    listed = ", ".join(f'"{w}"' for w in words)
    return f"{'static ' if inline else ''}constexpr const char* {name}[] = {{{listed}}};"


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _type(instruction: Instruction) -> str:
    return _camel(instruction.name)


if __name__ == "__main__":
    path().write_text(render(), encoding="utf-8")
