"""8-bit depthwise convolutions: the same bits as NumPy."""

import pytest

from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.schedules.npu.images.quantized_depthwise import NpuQuantizedDepthwiseSpace
from tests.schedules.npu.running import assert_same_bits, machine

SPACE = NpuQuantizedDepthwiseSpace()
OPS = [
    QuantConv2d("uint8", "uint8", 3, True, 2, 40, 9, 11, 40, (3, 3), (2, 1), (1, 1, 0, 2), (1, 1), -20, 40),
    QuantConv2d("int8", "int32", 0, True, 1, 3, 8, 8, 3, (5, 2), (1, 2), (2, 2, 2, 2), (2, 2), 7, 3),
    QuantConv2d("int8", "int8", -4, False, 1, 20, 6, 5, 20, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3, 20),
]


@pytest.mark.parametrize("preset", ["edge", "mobile", "datacenter"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_the_bits_are_those_of_numpy(op, preset):
    assert_same_bits(SPACE, op, machine(preset))


def test_any_tile_gives_the_same_bits():
    choices = SPACE.knobs(OPS[0], machine())[0].choices
    for tile in choices[:: max(1, len(choices) // 4)]:
        assert_same_bits(SPACE, OPS[0], machine(), {"tile": tile})


def test_other_convolutions_are_refused():
    op = QuantConv2d("int8", "int32", 0, True, 1, 3, 5, 5, 6, (2, 2), groups=3)
    assert "is for depthwise convolutions of 8 bits" in SPACE.refuses(op, machine())
