"""Quick selection of the changed node tests: one of each kind of change."""

import pytest

from tests.campaign.graphs.judge import PASSED
from tests.campaign.suite_changes.changes import CHANGES
from tests.campaign.suite_changes.command import subjects, tasks
from tests.campaign.suite_changes.judge import judge


@pytest.mark.thorough
def test_every_kind_of_change_has_tasks():
    found = tasks(1, list(CHANGES), "test_softmax_axis_0")
    assert {change for _, change, _ in found} >= {"axes", "dtypes", "sizes", "openings", "neighbours"}


@pytest.mark.thorough
def test_the_test_itself_passes():
    assert judge(subjects()["test_gemm_all_attributes"]).kind == PASSED
