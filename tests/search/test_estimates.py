"""Every space of every target: what ranks its points at first, and where its default stands."""

import math
import random

import numpy as np
import pytest
from scipy.stats import spearmanr

from hetero_tvm.search import points
from hetero_tvm.search.cost_model import SpaceModel, described
from tests.schedules import representatives

MOST = 1000
"""Points that are drawn from a larger space."""


def drawn(space, op, machine):
    """Descriptions of all points, or of some from everywhere: large spaces begin with many of one kind."""
    knobs = space.knobs(op, machine)
    sizes = [len(knob.choices) for knob in knobs]
    total = math.prod(sizes)
    found = {}
    for at in range(total) if total <= MOST else random.Random(0).sample(range(total), MOST):
        point = {}
        for knob, size in zip(knobs, sizes, strict=True):
            at, choice = divmod(at, size)
            point[knob.name] = knob.choices[choice]
        point = space.canonical(op, point, machine)
        found.setdefault(points.point_key(point), point)
    return [described(space, op, point, machine, knobs) for point in found.values()]


def check(space, op, machine):
    found = drawn(space, op, machine)
    estimates = np.array([one.estimate for one in found])
    where = f"{space.name} {op.label} on {machine.mcpu}"
    assert np.isfinite(estimates).all() and (estimates > 0).all(), where
    assert len({len(one.features) for one in found}) == 1, where
    default = space.canonical(op, space.default(op, machine), machine)
    own = described(space, op, default, machine).estimate
    assert np.mean(estimates < own * 0.9999) < 0.1, f"{where}: the default is not in the top tenth"
    if len(set(estimates)) > 1:
        prior = SpaceModel().score(found)
        assert spearmanr(prior, -estimates)[0] > 0.99, where


@pytest.mark.parametrize("name", dict.fromkeys(space.name for space, *_ in representatives.cpu()))
def test_spaces_of_the_cpu(name):
    for space, op, machine in representatives.cpu():
        if space.name == name:
            assert space.refuses(op, machine) is None
            check(space, op, machine)


def test_every_space_of_the_cpu_has_representatives():
    names = {space.name for space in representatives.CPU_SPACES}
    assert {space.name for space, *_ in representatives.cpu()} == names


@pytest.mark.thorough
def test_spaces_of_gpus_and_npus():
    found = representatives.others()
    assert {"cuda.matmul", "cuda.attention", "npu.matmul", "npu.attention"} <= {s.name for s, *_ in found}
    for space, op, machine in found:
        check(space, op, machine)
