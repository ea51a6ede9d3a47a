"""The geometry of windows, against positions of taps."""

import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.schedules.npu.images.windows import Window, WindowTile
from tests.schedules.npu.running import machine

OPS = [
    Conv2d(1, 8, 11, 13, 8, (3, 5), (2, 1), (1, 2, 1, 2), (1, 2), groups=8),
    Pool2d(1, 8, 11, 13, (3, 2), (2, 2), (1, 0, 1, 1), (6, 7), "max"),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_the_input_under_a_tile_holds_every_tap_of_its_outputs(op):
    window = Window(op)
    for rows in range(1, window.out[0] + 1):
        read = set()
        for i, j in window.taps():
            index = window.tap(None, i, j).index
            read |= {index(y, x, 0)[:2] for y in range(rows) for x in range(window.out[1])}
        high, wide = window.reach(0, rows), window.reach(1, window.out[1])
        assert max(y for y, _ in read) == high - 1 and max(x for _, x in read) == wide - 1
        assert min(read) == (0, 0)


@pytest.mark.parametrize("preset", ["edge", "mobile"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_tiles_fit_and_the_cheapest_come_first(op, preset):
    window, spec = Window(op), machine(preset).spec
    tiles = window.tiles(spec)
    assert all(window.tile_bytes(tile, 0, 0) <= spec.scratchpad("ub") for tile in tiles)
    assert all(tile.rows <= window.out[0] and tile.channels <= 8 for tile in tiles)
    costs = [window.cost(tile, spec) for tile in tiles]
    assert costs == sorted(costs)


def test_a_point_is_a_tile():
    tile = WindowTile(rows=3, channels=16)
    assert WindowTile.of({"tile": tile.choice()}) == tile
