"""Choices of the matrix product, and bounds that its estimate must keep."""

import pytest

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cpu.products.matmul_estimate import (
    estimate,
    k_block_choices,
    row_block_choices,
    tile_choices,
)
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from tests.schedules.cpu.running import MACHINES

AVX2 = MACHINES["avx2"]
SHAPES = [(1, 768, 768), (13, 100, 64), (128, 3072, 768), (1000, 1000, 4096)]


def test_which_reductions_may_be_cut():
    assert k_block_choices(Matmul((64,), 32, 1024), AVX2) == [1, 2, 4]
    assert k_block_choices(Matmul((64,), 32, 511), AVX2) == [1]
    assert k_block_choices(Matmul((4,), 32, 1024), AVX2) == [1], "one block of rows is not cut"


def test_every_block_of_rows_has_a_register_tile():
    assert row_block_choices(Matmul((64,), 32, 8), AVX2) == [1, 2, 4, 8]
    assert row_block_choices(Matmul((16,), 32, 8), AVX2) == [1, 2, 4]
    assert row_block_choices(Matmul((3,), 32, 8), AVX2) == [1]


def test_tiles_are_no_larger_than_the_result_and_hold_all_parts():
    assert tile_choices(Matmul((1,), 8, 4), AVX2) == (RegisterTile(1, 1),)
    tiles = tile_choices(Matmul((64,), 128, 64), AVX2, parts=2)
    assert tiles and all(tile.vectors % 2 == 0 for tile in tiles)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_no_estimate_beats_the_arithmetic_peak(machine, m, n, k):
    op = Matmul((m,), n, k)
    peak = m * n * k / machine.lanes / machine.fma_units / machine.threads
    for tile in tile_choices(op, machine):
        for blocks in row_block_choices(op, machine):
            assert estimate(op, tile, blocks, machine) >= peak


def test_one_row_is_bound_by_the_way_of_the_weights():
    """So more threads help only as far as they share the weights out."""
    op, tile = Matmul((1,), 768, 768), RegisterTile(1, 4)
    one, two = (estimate(op, tile, 1, CpuModel("x", threads=threads)) for threads in (1, 2))
    assert one == pytest.approx(768 * 768 * 4 / 8)
    assert two == pytest.approx(one / 2)


def test_a_large_tile_is_estimated_faster_than_a_thin_one():
    op = Matmul((128,), 768, 768)
    assert estimate(op, RegisterTile(6, 2), 2, AVX2) < estimate(op, RegisterTile(1, 1), 2, AVX2)
