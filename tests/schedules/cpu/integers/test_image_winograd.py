"""8-bit convolutions by Winograd's method: integers as the integer kernels have them, at every shape."""

import numpy as np
import pytest

from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.schedules.cpu.integers import image_winograd
from hetero_tvm.schedules.cpu.integers.quant_conv2d import WINOGRAD, QuantConv2dSpace
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from tests.schedules.cpu.integers.test_quant_conv2d import check
from tests.schedules.cpu.test_dots import machine


def conv(x_dtype, out, batch, channels, height, width, filters, padding, fill, **more):
    """A 3x3 convolution."""
    y_zero = 0 if out == "float32" else 3
    return QuantConv2d(x_dtype, out, y_zero, False, batch, channels, height, width, filters, (3, 3), (1, 1),
                       padding, (1, 1), fill, **more)  # fmt: skip


OPERATORS = [
    conv("uint8", "uint8", 2, 5, 6, 19, 7, (1, 1, 0, 2), -20),
    conv(
        "int8",
        "int8",
        1,
        17,
        14,
        14,
        9,
        (1, 1, 1, 1),
        7,
        residual="int8",
        final="uint8",
        final_bounds=(5, 250),
    ),
    conv("uint8", "float32", 1, 64, 13, 28, 6, (0, 2, 2, 0), -128),
    conv("int8", "uint8", 3, 4, 3, 3, 5, (0, 0, 0, 0), 0, bounds=(3, 200)),
    conv("uint8", "int8", 1, 8, 1, 1, 4, (1, 1, 1, 1), 127),
]
POINTS = [{"method": WINOGRAD, "tile": tile, "grid": grid, "unroll": 2}
          for tile, grid in (((4, 1, 2), (1, 1)), ((3, 2, 1), (4, 2)), ((1, 1, 1), (2, 4)))]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("extreme", [False, True])
def test_integers_are_those_of_the_contract(extreme):
    assert all(image_winograd.applies(op) for op in OPERATORS)
    check([(op, POINTS[:2]) for op in OPERATORS], machine(8, "avx2"), extreme)


@pytest.mark.exhaustive
@pytest.mark.parametrize("lanes", [4, 16])
def test_other_vectors(lanes):
    check([(op, POINTS) for op in OPERATORS], machine(lanes))


def test_it_applies_where_rounding_does_not_count():
    assert not image_winograd.applies(conv("int8", "int32", 1, 4, 8, 8, 4, (1, 1, 1, 1), 0))
    assert not image_winograd.applies(QuantConv2d("int8", "int8", channels=4, filters=4, height=4, width=4))
    assert not image_winograd.applies(conv("int8", "int8", 1, 4, 8, 8, 4, (1, 1, 1, 1), 0, groups=2))


def test_it_is_chosen_where_integers_are_multiplied_slowly():
    op = conv("uint8", "uint8", 1, 128, 28, 28, 128, (1, 1, 1, 1), -128)
    space = QuantConv2dSpace()
    assert space.default(op, machine(8, "avx2"))["method"] == WINOGRAD
    assert space.default(op, machine(16, "avx512bw", "avx512_vnni"))["method"] != WINOGRAD


def test_packed_filters_end_in_their_sums():
    op = conv("uint8", "uint8", 1, 2, 8, 8, 3, (1, 1, 1, 1), -5)
    w = np.random.default_rng(0).integers(-128, 128, (3, 2, 3, 3)).astype("int8")
    packed = image_winograd.pack(op, w, 2)
    assert packed.shape == image_winograd.weight_shape(op, 2) == (2, 73, 2)
    assert packed[:, -1].reshape(-1).tolist() == [*(-5 * w.reshape(3, -1).astype(int).sum(1)), 0]
    # The point at infinity of both sides is the filter's last tap.
    last = packed[0, 70:72].view(np.float32)
    np.testing.assert_array_equal(last, w[:2, :, 2, 2].T)


def test_more_work_takes_longer():
    here, tile = machine(8, "avx2"), RegisterTile(4, 2)
    small, large = (conv("int8", "int8", 1, c, 28, 28, 64, (1, 1, 1, 1), 0) for c in (32, 64))
    assert 1.5 < image_winograd.cycles(large, tile, (1, 1), here) / image_winograd.cycles(
        small, tile, (1, 1), here
    )


def test_tiles_beyond_l3_are_divided_into_blocks_that_l2_holds():
    """Each group of filters fetches them anew: in two blocks the call took four times as long."""
    here, tile = machine(8, "avx2"), RegisterTile(6, 2)
    images = [conv("int8", "int8", 1, 64, size, size, 64, (1, 1, 1, 1), 0) for size in (64, 192)]
    few, many = ([image_winograd.cycles(op, tile, (n, 1), here) for op in images] for n in (2, 24))
    assert few[0] < 1.2 * many[0] and few[1] > 1.5 * many[1]
