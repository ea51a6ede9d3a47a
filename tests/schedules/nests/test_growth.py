"""Chains whose every step reads the one before several times: written once, not copied."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import te, topi
from hetero_tvm.schedules.cpu import generic
from tests.schedules.cpu.running import MACHINES, compiled


def chain(x, steps):
    """Running maxima, as a search in steps of 1, 2, 4, ... places writes them."""
    for n in range(steps):
        before = topi.nn.pad(topi.strided_slice(x, [0, 0], [4, 96 - 2**n]), [0, 2**n], [0, 0], -9.0)
        x = topi.where(topi.greater_equal(x, before), x, before)
    return x


@pytest.mark.parametrize("steps", [1, 6])
def test_running_maxima_by_steps(steps):
    x = te.placeholder((4, 96), "float32")
    function = te.create_prim_func([x, chain(x, steps)])
    scheduled = generic.schedule(function, MACHINES["avx2"])
    assert len(str(scheduled)) < 60_000
    (run,) = compiled([(scheduled, (4, 96))])
    values = np.random.default_rng(0).standard_normal((4, 96)).astype("float32")
    expected = values.copy()
    for n in range(steps):
        expected[:, 2**n :] = np.maximum(expected[:, 2**n :], expected[:, : -(2**n)])
    np.testing.assert_array_equal(run(values), expected)
