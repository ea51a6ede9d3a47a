"""The instruction set: the table of all instructions, and what is true of any of them."""

from __future__ import annotations

from typing import Any

from hetero_tvm.machines.npu.machine import ISA_VERSION as ISA_VERSION
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.isa import copy as isa_copy
from hetero_tvm.targets.npu.isa import matrix as isa_matrix
from hetero_tvm.targets.npu.isa import synchronization as isa_sync
from hetero_tvm.targets.npu.isa import vector as isa_vector
from hetero_tvm.targets.npu.isa.encoding import HEAD, Instruction, StreamError, Values
from hetero_tvm.targets.npu.isa.synchronization import QUEUES as QUEUES

INSTRUCTIONS = (
    *isa_sync.INSTRUCTIONS,
    *isa_copy.INSTRUCTIONS,
    *isa_matrix.INSTRUCTIONS,
    *isa_vector.INSTRUCTIONS,
)
BY_NAME = {instruction.name: instruction for instruction in INSTRUCTIONS}
BY_OPCODE = {instruction.opcode: instruction for instruction in INSTRUCTIONS}


def encode(name: str, tag: int = 0, **values: Any) -> bytes:
    """One instruction as bytes: ``encode("mmad", dtype="f16", m=128, ...)``.

    Arrays may be shorter than four: missing outer dimensions have extent 1, stride 0, padding 0.
    Raises :class:`StreamError`.
    """
    return BY_NAME[name].encode(values, tag)


def decode(data: bytes | memoryview, offset: int = 0) -> tuple[Instruction, int, Values]:
    """The instruction at ``offset``: (declaration, tag, values).  Raises :class:`StreamError`."""
    if len(data) - offset < HEAD.size:
        raise StreamError(f"the code ends within an instruction at offset {offset}")
    opcode, words, _ = HEAD.unpack_from(data, offset)
    if opcode not in BY_OPCODE:
        raise StreamError(f"there is no opcode 0x{opcode:02x}")
    instruction = BY_OPCODE[opcode]
    if words != instruction.size // 4:
        raise StreamError(f"{instruction.name} has {instruction.size} bytes, its length says {4 * words}")
    if len(data) - offset < instruction.size:
        raise StreamError(f"the code ends within {instruction.name}")
    return (instruction, *instruction.decode(data[offset : offset + instruction.size]))


def problems(instruction: Instruction, values: Values, spec: NPUSpec) -> list[str]:
    """Reasons why ``spec`` cannot execute the instruction: limits, alignment, scratchpad sizes.  DRAM slots
    are not known here.
    """
    found = list(instruction.check(values, spec))
    if not found:
        for access in instruction.accesses(values):
            low, high = access.interval()
            if access.memory == "dram":
                if low < 0:
                    found.append(f"reaches {-low} bytes before its DRAM slot")
            elif low < 0 or high > spec.scratchpad(access.memory):
                size = spec.scratchpad(access.memory)
                found.append(f"bytes {low} to {high} are out of range: {access.memory} has {size}")
    return found
