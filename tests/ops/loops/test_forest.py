"""Forest: walks by hand, rows that lack a feature, and the TensorIR beside the reference."""

import numpy as np
import pytest

from hetero_tvm.ops.loops.forest import BOUND, CHILD, FEATURE, Forest
from tests.ops.helpers import run_workload


def tables(op, seed=0):
    """Operands: nodes that share their children, leaves at several levels, values that equal bounds."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((op.rows, op.features)).astype(np.float32).round(1)
    nodes = random.integers(-(2**31), 2**31, (op.nodes, 4)).astype(np.int32)
    steps = random.integers(0, 2**31, op.trees).astype(np.int32)
    weights = random.standard_normal((op.nodes, op.targets)).astype(np.float32)
    operands = op.admissible([x, nodes, steps, weights])
    bounds = operands[1][:, BOUND].copy().view(np.float32).round(1)
    operands[1][:, BOUND] = bounds.view(np.int32)
    if op.missing:
        operands[0][::2, ::2] = np.nan
    return operands


def walked(op, x, nodes, steps, weights):
    """One row and one tree after the other."""
    y = np.zeros((op.rows, op.targets))
    bounds = np.ascontiguousarray(nodes[:, BOUND]).view(np.float32)
    for row in range(op.rows):
        for tree in range(op.trees):
            node = tree
            while nodes[node, CHILD] != node:
                word = int(nodes[node, FEATURE])
                value = x[row, word // 2 if op.missing else word]
                yes = bool(word % 2) if op.missing and np.isnan(value) else bool(value <= bounds[node])
                node = int(nodes[node, CHILD]) + yes
            y[row] += weights[node]
    return y


@pytest.mark.parametrize("missing", [False, True])
def test_reference_and_workload(missing):
    op = Forest(7, 5, 4, 30, 2, 6, missing)
    operands = tables(op)
    wanted = walked(op, *operands)
    assert np.unique(wanted.round(3), axis=0).shape[0] > 3, "rows end at different leaves"
    np.testing.assert_allclose(op.reference(*operands), wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(run_workload(op, operands)[0], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "op", [Forest(2, 3, 4, 9, 1, 5, True), Forest(2, 3, 9, 9, 1, 0), Forest(2, 3, 3, 99, 1, 4)]
)
def test_admissible_operands_lead_to_leaves(op):
    _, nodes, steps, _ = tables(op)
    assert 0 <= nodes[:, FEATURE].min() <= nodes[:, FEATURE].max() < op.features << op.missing
    at = np.arange(op.trees)
    for step in range(op.depth):
        assert ((nodes[at, CHILD] == at) | (step < steps)).all()
        at = np.minimum(nodes[at, CHILD] + (nodes[at, CHILD] != at), op.nodes - 1)
    assert (nodes[at, CHILD] == at).all() and np.isnan(nodes[at, BOUND].copy().view(np.float32)).all()
