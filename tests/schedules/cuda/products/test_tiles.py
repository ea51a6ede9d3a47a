"""Tiles of products: limits of machines, and their order."""

import pytest

from hetero_tvm.machines.gpu import MODELS
from hetero_tvm.schedules.cuda.products.tiles import Problem, Tile, estimate, fits, tiles


def test_tiles_stay_within_every_machine():
    for machine in MODELS.values():
        for size, cores in ((2, True), (4, True), (1, True), (4, False)):
            problem = Problem(4096, 4096, 4096, size, cores)
            found = tiles(problem, machine)
            assert found and all(fits(tile, problem, machine) for tile in found)
            best = found[0]
            assert best.rows * best.columns >= 64 * 64  # large products want large tiles
            known = [estimate(problem, tile, machine) for tile in found if not tile.group]
            assert estimate(problem, best, machine) == min(known) and not best.group


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_warp_groups_are_for_one_architecture(arch):
    problem = Problem(1024, 1024, 1024, 2)
    assert not any(tile.group for tile in tiles(problem, MODELS[arch]))
    assert any(tile.group for tile in tiles(problem, MODELS["sm_90a"]))


def test_choices_stand_for_their_tiles():
    problem = Problem(1024, 1024, 1024, 2)
    found = tiles(problem, MODELS["sm_90a"])
    assert [Tile.of(tile.choice) for tile in found] == found
