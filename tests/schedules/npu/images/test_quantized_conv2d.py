"""8-bit convolutions: the same bits as NumPy."""

import pytest

from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.schedules.npu.images.quantized_conv2d import NpuQuantizedConv2dSpace
from tests.schedules.npu.running import assert_host_computes_the_same, assert_same_bits, machine

SPACE = NpuQuantizedConv2dSpace()
OPS = [
    QuantConv2d("uint8", "uint8", 3, True, 1, 6, 9, 11, 17, (3, 3), (2, 1), (1, 1, 0, 2), (1, 1), -20),
    QuantConv2d("int8", "int32", 0, False, 2, 5, 8, 8, 9, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 7),
    QuantConv2d("int8", "int8", 9, False, 1, 16, 7, 7, 24, (1, 1)),
    QuantConv2d("int8", "uint8", 9, False, 1, 3, 33, 33, 24, (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), -128),
]


@pytest.mark.parametrize("preset", ["edge", "mobile", "datacenter"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_the_bits_are_those_of_numpy(op, preset):
    assert_same_bits(SPACE, op, machine(preset))


def test_every_choice_gives_the_same_bits():
    choices = SPACE.knobs(OPS[0], machine())[0].choices
    assert len(choices) > 3
    for tiles in choices[:: max(1, len(choices) // 4)]:
        assert_same_bits(SPACE, OPS[0], machine(), {"tiles": tiles})


def test_groups_are_refused_with_a_reason():
    op = QuantConv2d("int8", "int32", 0, True, 1, 4, 5, 5, 8, (2, 2), groups=2)
    assert SPACE.refuses(op, machine()) == "2 groups: the matrix unit takes convolutions without groups"


@pytest.mark.parametrize("op", OPS[:2], ids=lambda op: op.label)
def test_the_host_computes_the_same(op):
    assert_host_computes_the_same(op)
