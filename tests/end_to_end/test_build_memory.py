"""Memory of a build, as a multiple of the weights; every kind of file: ``tests/campaign/build_memory/``."""

import pytest

from tests.campaign.build_memory.roads import BAR, measure

KINDS = ["external", "single", "constants", "functions", "branches", "loop", "pt2", "pt2_bfloat16"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_a_build_needs_little_more_than_its_weights(kind, tmp_path):
    row = measure(kind, 150_000_000, tmp_path)
    assert row["full"] - row["base"] <= BAR * row["floats"]
