"""Boxes with fewer axes and their tiles, against an enumeration of the elements that are touched."""

import itertools
import math

from hetero_tvm.schedules.npu.tensor_program.stages import Binary, Load, Map
from hetero_tvm.schedules.npu.tensor_program.tiling import RANK, Tiling, loads_of, simplified, tile_of


def touched(extents, accesses):
    """Elements that accesses touch together, at every point of a box."""
    points = itertools.product(*map(range, extents))
    return sorted(
        tuple(a.base + sum(i * s for i, s in zip(point, a.strides, strict=True)) for a in accesses)
        for point in points
    )


def stage(extents, out, *reads, **more):
    loads = [Load(n, base, strides) for n, (base, strides) in enumerate(reads)]
    value = loads[0] if len(loads) == 1 else Binary("add", *loads)
    return Map(extents, Load(len(loads), *out), value, **more)


STAGES = [
    stage((2, 1, 3, 4), (0, (12, 0, 4, 1)), (5, (12, 0, 4, 1))),
    stage((3, 4), (0, (1, 3)), (0, (4, 1))),
    stage((2, 3, 4), (0, (12, 4, 1)), (0, (12, 4, 1)), (0, (0, 4, 1))),
    stage((1, 1), (7, (0, 0)), (3, (0, 0))),
    stage((2, 5, 3), (0, (1, 0, 0)), (0, (15, 3, 1)), reduce="sum", reduced=2),
    stage((1, 6), (0, (0, 0)), (0, (6, 1)), reduce="max", reduced=1),
]


def test_a_simplified_stage_touches_the_same_elements():
    for before in STAGES:
        after = simplified(before)
        accesses = [[s.out, *loads_of(s.value)] for s in (before, after)]
        assert touched(before.extents, accesses[0]) == touched(after.extents, accesses[1])
        assert len(after.extents) <= len(before.extents)
        sums = [math.prod(s.extents[len(s.extents) - s.reduced :]) for s in (before, after)]
        assert sums[0] == sums[1]


def test_axes_that_every_access_walks_as_one_are_one():
    assert simplified(STAGES[0]).extents == (24,)
    assert simplified(STAGES[1]).extents == (4, 3)
    assert simplified(STAGES[2]).extents == (2, 12)
    assert simplified(STAGES[3]).extents == (1,)
    assert simplified(STAGES[4]).extents == (2, 15)


def test_tiles_cover_the_box_once():
    access = Load(0, 11, (35, 7, 1))
    tiling = Tiling((5, 5, 7), (2, 3, 7))
    starts, elements = [], []
    for at in itertools.product(*map(range, tiling.counts)):
        sizes = tuple(map(int, tiling.sizes(at)))
        starts.append(tiling.start(access, at))
        elements += [e for (e,) in touched(sizes, [Load(0, starts[-1], access.strides)])]
    assert len(set(starts)) == len(starts)
    assert [(e,) for e in sorted(elements)] == touched(tiling.extents, [access])


def test_a_tile_has_room_and_few_axes():
    extents = (6, 50, 40, 30, 20, 10)
    accesses = [
        Load(0, 0, (0, 1, 50, 2000, 60000, 1200000)),
        Load(1, 0, (12000000, 240000, 6000, 200, 10, 1)),
    ]

    def taken(tile):
        return 4 * math.prod(tile)

    tile = tile_of(extents, accesses, taken, 16 << 10, 1 << 20)
    assert taken(tile) <= 16 << 10 and sum(n > 1 for n in tile) <= RANK
    assert tile[1] == 50 and tile[5] == 10  # what the accesses have contiguous
    assert tile_of(extents, accesses, taken, 3, 1 << 20) is None
