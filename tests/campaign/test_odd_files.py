"""A quick selection of odd files; the whole is ``python -m tests.campaign.odd_files``."""

import pytest

from tests.campaign.graphs.judge import PASSED, REFUSED
from tests.campaign.odd_files import KINDS, run
from tests.selection import thorough

QUICK = ("names", "alike_names", "results_of_all_kinds", "local_functions", "nan_reductions")


@pytest.mark.parametrize("kind", [*QUICK[:-1], *thorough(QUICK[-1:])])
def test_odd_files(kind):
    assert [how.kind for *_, how in run([0], [kind])] == [PASSED]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(QUICK)))
def test_more_odd_files(kind):
    for *_, how in run([1, 2], [kind]):
        assert how.kind in (PASSED, REFUSED), how.reason
