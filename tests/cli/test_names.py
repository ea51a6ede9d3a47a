"""The names in helps and completions are those that there are."""

import pytest

from hetero_tvm.cli import names
from hetero_tvm.targets.registry import parse_target

pytest.importorskip("tvm")


def test_fusions_are_those_of_the_targets():
    known = {rule.name for text in ("cpu", "npu", "cuda:sm_80") for rule in parse_target(text).fusions}
    assert set(names.FUSIONS) <= known


@pytest.mark.parametrize("name", names.TARGETS)
def test_targets_are_targets(name):
    assert parse_target(name).kind == name.partition(":")[0]
