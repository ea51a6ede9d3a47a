"""Instructions: encoding and text round trips, and the reasons why bad fields are refused."""

import numpy as np
import pytest

from hetero_tvm.targets.npu.isa import instructions as isa
from hetero_tvm.targets.npu.isa.assembler import assemble
from hetero_tvm.targets.npu.isa.disassembler import disassemble
from hetero_tvm.targets.npu.isa.encoding import StreamError
from hetero_tvm.targets.npu.isa.stream import Builder


def random_values(rng, instruction):
    values = {}
    for f in instruction.fields:
        if f.kind == "f32":
            picked = rng.choice([1.0, -0.0, 0.1, 1e-38, 3.4e38, np.inf, rng.normal()])
            values[f.name] = float(np.float32(picked))
        elif f.names:
            values[f.name] = str(rng.choice(f.names))
        else:
            low, high = f.limits
            picked = [int(rng.choice([low, high, int(rng.integers(low, high))])) for _ in range(f.count)]
            values[f.name] = tuple(picked) if f.count > 1 else picked[0]
    return values


@pytest.mark.parametrize("instruction", isa.INSTRUCTIONS, ids=lambda i: i.name)
def test_every_instruction_survives_binary_and_text(instruction):
    rng = np.random.default_rng(instruction.opcode)
    for _ in range(20):
        values, tag = random_values(rng, instruction), int(rng.integers(0, 1 << 16))
        code = instruction.encode(values, tag)
        assert len(code) == instruction.size == 4 * code[1] and code[0] == instruction.opcode
        assert isa.decode(code) == (instruction, tag, values)
        builder = Builder()
        builder.tag = builder.add_tag("op")
        builder.emit(instruction.name, **values)
        data = builder.finish({}, 0).to_bytes()
        assert assemble(disassemble(data)) == data
        assert assemble(disassemble(data, offsets=True)) == data


def test_fields_lie_where_offsets_say():
    instruction = isa.BY_NAME["load"]
    values = {"elem": 2, "dst_mem": "l1", "src": 7, "dst": 9, "extents": (5,)}
    code = bytearray(instruction.encode(values))
    at = instruction.offsets()["src"]
    code[at : at + 8] = (123456789012).to_bytes(8, "little")
    assert instruction.decode(bytes(code))[1]["src"] == 123456789012


def test_bad_fields():
    load = {"elem": 2, "dst_mem": "l1", "src": 0, "dst": 0}
    for name, fields, reason in [
        ("mmad", {"dtype": "f32"}, "dtype must be one of f16, bf16, i8, got 'f32'"),
        ("mmad", {"dtype": "f16", "rows": 1}, "mmad has no field rows"),
        ("mmad", {"dtype": "f16"}, "mmad needs m: rows of C"),
        ("set_flag", {"source": "matrix", "target": "vector", "event": -1}, "event must be from 0 to 65535"),
        ("load", load | {"extents": (1,) * 5}, "up to 4 values, got 5"),
        ("load", load | {"extents": (0,)}, "extents must be from 1"),
        ("load", load | {"extents": (1.5,)}, "extents must be a whole number, got 1.5"),
        ("load", load | {"extents": (1,), "src": 1 << 49}, "src must be from 0 to 281474976710656"),
        (
            "vunary",
            {"op": "exp", "dst_dtype": "f16", "src_dtype": "f16", "mul": 1e39, "dst": 0, "extents": (1,)},
            "vunary: float too large",
        ),
    ]:
        with pytest.raises(StreamError, match=reason):
            isa.encode(name, **fields)
