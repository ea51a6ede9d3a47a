"""A plan as data: read back as it was written, and what its numbers say."""

import dataclasses
import json

import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.memory import Buffer, Plan, Problem, plan

PLAN = Plan({"a": 0, "b": 5}, peak=9, lower_bound=8, optimal=False, method="greedy", seconds=0.25, capacity=9)


def test_json_round_trip():
    assert Plan.from_dict(json.loads(json.dumps(PLAN.to_dict()))) == PLAN
    found = plan(Problem([Buffer("a", 0, 2, 5), Buffer("b", 1, 3, 4)]), capacity=9)
    again = Plan.from_dict(found.to_dict())
    assert again.offsets == found.offsets and again.peak == 9 and again.fits


def test_damaged_plans_are_refused():
    for damaged in ({}, None, {**PLAN.to_dict(), "version": 99}, {**PLAN.to_dict(), "odd": 1}):
        with pytest.raises(UsageError, match="memory plan"):
            Plan.from_dict(damaged)


def test_capacity_and_gap():
    assert PLAN.fits and not PLAN.impossible and PLAN.gap == 1 / 8
    tight = dataclasses.replace(PLAN, capacity=8)
    assert not tight.fits and not tight.impossible
    assert dataclasses.replace(PLAN, capacity=7).impossible
    free = dataclasses.replace(PLAN, capacity=None)
    assert free.fits and not free.impossible
    assert dataclasses.replace(PLAN, peak=0, lower_bound=0).gap == 0
