"""A quick selection of blocks of networks; the whole is ``python -m tests.campaign.blocks``."""

import pytest

from tests.campaign.blocks.block import KINDS
from tests.campaign.blocks.command import made, verdict
from tests.campaign.graphs.judge import BROKEN, WRONG


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind", ["attention", "greatest", "near_attention", "near_ranks", "regions", "roles", "whole_numbers"]
)
def test_blocks(kind):
    told, *_ = verdict(made(kind, 2), 2000)
    assert told.kind not in (BROKEN, WRONG), told.reason


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_more_blocks(kind):
    for seed in (1, 2, 3):
        told, *_ = verdict(made(kind, seed), 1000 * seed)
        assert told.kind not in (BROKEN, WRONG), told.reason
