"""Command streams: round trips, and the reasons why malformed ones are refused."""

import pytest

from hetero_tvm.targets.npu.isa.assembler import assemble
from hetero_tvm.targets.npu.isa.disassembler import disassemble
from hetero_tvm.targets.npu.isa.encoding import StreamError
from hetero_tvm.targets.npu.isa.stream import Slot, Stream, seal
from tests.targets.npu.matmul import matmul


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
