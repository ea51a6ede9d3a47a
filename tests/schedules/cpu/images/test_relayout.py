"""Changes of an image's layout: whole squares, rows that fill none, channels that fill no block, halos."""

import dataclasses

import pytest

from hetero_tvm.ops.pool2d import Relayout
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.images.relayout import RelayoutSpace
from tests.schedules.cpu.running import MACHINES, check_points
from tests.selection import named, thorough

SPACE = RelayoutSpace()


def forms(machine):
    block = f"NCHW{machine.lanes}c"
    return [
        ("NCHW", block),
        (block, "NCHW"),
        ("NCHW", block + "+1,2,0,1"),
        (block + "+1,2,0,1", "NCHW"),
        (block, block + "+1,1,1,1"),
        (block + "+1,1,1,1", block),
    ]


@pytest.mark.parametrize("machine", named(MACHINES, {"avx512"}))
def test_squares_and_what_is_beside_them(machine):
    for x, y in forms(machine):
        op = Relayout(1, machine.lanes + 3, 2, 2 * machine.lanes + 5, x, y)
        check_points(SPACE, op, [{}], machine, tolerance=0)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_images_of_any_size(machine, batch):
    for channels in (1, machine.lanes, 2 * machine.lanes + 3):
        for height, width in ((5, 3), (1, 1), (4, machine.lanes), (2, 3 * machine.lanes)):
            for x, y in forms(machine):
                op = Relayout(batch, channels, height, width, x, y)
                assert SPACE.refuses(op, machine) is None
                check_points(SPACE, op, [{}], machine, tolerance=0)


@pytest.mark.parametrize("machine", named(MACHINES, {"avx2", "avx512"}))
@pytest.mark.parametrize("halo", ["", "+1,2,0,1"])
def test_rows_of_channels(machine, halo):
    """An image as rows is one block of all channels; they must fill whole blocks."""
    channels, lanes = 3 * machine.lanes, machine.lanes
    rows, blocks = f"NCHW{channels}c", f"NCHW{lanes}c{halo}"
    for batch, height, width in ((1, 5, 3), (2, 1, 1), (3, 7, 2)):
        for x, y in ((rows, blocks), (blocks, rows)):
            op = Relayout(batch, channels, height, width, x, y)
            assert SPACE.refuses(op, machine) is None and op.to_rows == (y == rows) != op.from_rows
            check_points(SPACE, op, [{}], machine, tolerance=0)
    odd = Relayout(1, channels + 1, 4, 4, f"NCHW{channels + 1}c", blocks)
    assert "not between rows" in SPACE.refuses(odd, machine)


@pytest.mark.thorough
@pytest.mark.parametrize("threads", [5, *thorough([1, 2, 16])])
def test_all_threads_have_work(threads):
    """Images of few blocks are cut into pieces of rows or squares, no more than there are."""
    machine = dataclasses.replace(MACHINES["avx2"], threads=threads)
    for x, y in forms(machine):
        for channels in (3, machine.lanes):
            check_points(SPACE, Relayout(1, channels, 9, 21, x, y), [{}], machine, tolerance=0)
            check_points(SPACE, Relayout(1, channels, 1, 2, x, y), [{}], machine, tolerance=0)


def test_refusals():
    machine = MACHINES["avx2"]
    assert SPACE.refuses(Softmax((3,), 4), machine) == "not a change of layout"
    assert "not between plain" in SPACE.refuses(Relayout(1, 12, 2, 2, "NCHW4c", "NCHW8c"), machine)
    assert "halo" in SPACE.refuses(Relayout(1, 8, 2, 2, "NCHW+1,1,1,1", "NCHW8c"), machine)
