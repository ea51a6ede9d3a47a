"""Command streams: encoding and text round trips, and what a malformed one is told."""

import subprocess
import sys

import numpy as np
import pytest

from hetero_tvm.targets.npu.__main__ import main
from hetero_tvm.targets.npu.isa import instructions as isa
from hetero_tvm.targets.npu.isa.assembler import assemble
from hetero_tvm.targets.npu.isa.disassembler import disassemble
from hetero_tvm.targets.npu.isa.encoding import StreamError
from hetero_tvm.targets.npu.isa.stream import Builder, Slot, Stream, seal
from tests.targets.npu.matmul import matmul


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


def test_a_program_survives():
    stream = matmul(64, 64, 64, (32, 32, 32))
    data = stream.to_bytes()
    read = Stream.from_bytes(data)
    assert (read.slots, read.tags, read.code) == (stream.slots, stream.tags, stream.code)
    assert (read.needs, read.events) == (stream.needs, stream.events)
    assert read.to_bytes() == data == assemble(disassemble(data))
    assert data[read.code_offset :] == stream.code
    assert Stream([Slot("größe", 1, "input")], ["", "größe"]).to_bytes() == assemble(
        '.need l1 0\n.events 0\n; a comment\n.slot input 1 "größe"\n.tag "größe"\n'
    )


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


def broken(data, at, value):
    return seal(data[:at] + value + data[at + len(value) :])


def test_malformed_streams_say_offset_and_reason():
    data = matmul(32, 32, 32, (32, 32, 32)).to_bytes()
    code = Stream.from_bytes(data).code_offset
    move = code + next(at for at, i, _, _ in Stream.from_bytes(data).decode() if i.name == "move")
    for bad, reason in [
        (b"", "offset 0: 0 bytes are less than a header"),
        (b"ELF" + data[3:], "offset 0: not a command stream"),
        (data[:-1] + b"\x01", "offset 8: damaged"),
        (broken(data, 4, b"\x09\0"), "offset 4: version 9, this is version 2"),
        (seal(data + b"\0\0\0\0"), "offset 16: "),
        (broken(data, 96 + 12, b"\x07"), "offset 96: slot 0 is of unknown kind 7"),
        (broken(data, 96 + 8, b"\xff\xff"), "offset 96: name at 65535, the text has"),
        (broken(data, code, b"\xee"), f"instruction 0 at offset {code}: there is no opcode 0xee"),
        (broken(data, code + 1, b"\x02"), f"0 at offset {code}: load has 104 bytes, its length says 8"),
        (broken(data, code + 2, b"\x05\0"), "tag 5, there are 2"),
        (broken(data, code + 5, b"\x09"), "dst_mem is number 9, of 0 to 1 .l1, ub."),
        (broken(data, 24, b"\x03"), "offset 24: 3 instructions announced"),
        (broken(data, move + 99, b"\x03"), f"instruction 4 at offset {move}: move: padding is not zero"),
    ]:
        with pytest.raises(StreamError, match=reason):
            disassemble(bad)


def test_every_wrong_line_of_a_text_is_named():
    with pytest.raises(StreamError) as error:
        assemble('.slot input x "a"\nbarrier\nfly high=1\nset_flag source=move\nbarrier level=2\n.need l9 5')
    text = str(error.value)
    for part in (
        "line 1: ",
        "line 3: there is no instruction 'fly'",
        "line 4: set_flag needs target",
        "line 5: barrier has no field 'level'",
        "line 6: there is no scratchpad 'l9'",
    ):
        assert part in text
    for wrong, reason in [
        ('.slot input -5 "x"', "-5 is not a number of 64 bits"),
        (".slot input 1 x", "'x' is not a name in double quotes"),
        (".slot input", "'' is not a name"),
        ('.tag "a" b', "is not a name"),
        (".need l1 0x100000000", "4294967296 is not a number of 32 bits"),
        (".need l1", "'' is not a whole number"),
        (".events -1", "-1 is not a number of 32 bits"),
        ("barrier #5", "line 1: barrier: there is no .tag 5"),
        ('.tag "a\\u0000b"', "no place in a stream"),
        ('.tag "\\ud800"', "no place in a stream"),
    ]:
        with pytest.raises(StreamError, match=reason):
            assemble(wrong)


def test_comments_may_follow_anything():
    plain = '.need l1 8\n.events 2\n.slot input 8 "a ; b"\n.tag "t"\nbarrier #1\n'
    assert assemble(plain.replace("\n", " ; why\n")) == assemble(plain)


def test_the_command(tmp_path, capsys):
    stream, text = tmp_path / "a.hnpu", tmp_path / "a.txt"
    stream.write_bytes(matmul(32, 32, 32, (32, 32, 32)).to_bytes())
    assert main(["disasm", str(stream), "--offsets"]) == 0
    out = capsys.readouterr().out
    assert "mmad #1 dtype=f16" in out and "  ; 0 @" in out
    text.write_text(out)
    assert main(["asm", str(text), "-o", str(tmp_path / "b.hnpu")]) == 0
    assert (tmp_path / "b.hnpu").read_bytes() == stream.read_bytes()
    stream.write_bytes(stream.read_bytes()[:-4])
    assert main(["disasm", str(stream)]) == 1 and "offset 8" in capsys.readouterr().err
    assert main(["disasm", str(tmp_path / "none")]) == 1 and "No such file" in capsys.readouterr().err


def test_the_command_needs_no_compiler():
    code = "import sys, hetero_tvm.targets.npu.__main__ as m; sys.exit('tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
