"""Chains over rows: one loop where steps meet in rows alone, and the numbers of NumPy always."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import topi
from hetero_tvm.schedules.cpu.programs.program import emit
from tests.schedules.cpu.programs.test_reduction import run_all
from tests.schedules.cpu.running import MACHINES
from tests.schedules.cpu.test_generic import array, plain


def normalized(x):
    mean = topi.sum(x, 1, keepdims=True) / 345.0
    centred = topi.subtract(x, mean)
    square = topi.sum(topi.multiply(centred, centred), 1, keepdims=True) / 345.0
    return topi.divide(centred, topi.sqrt(square + 1e-5))


def mixed(x):
    """Rows, and what all rows have in common: no chain of rows."""
    return topi.subtract(topi.subtract(x, topi.max(x, 1, keepdims=True)), topi.max(x, 0, keepdims=True))


def crossed(x):
    """Each row minus the largest value of the column of its number."""
    return topi.subtract(x, topi.expand_dims(topi.max(x, 0), 1))


CASES = {
    "log_softmax": (topi.nn.log_softmax, (40, 345), 1),
    "log_softmax_long": (topi.nn.log_softmax, (6, 5001), 1),
    "softmax_batched": (lambda x: topi.nn.softmax(x, 2), (11, 7, 83), 1),
    "normalized": (normalized, (40, 345), 1),
    "mixed": (mixed, (40, 345), None),
    "crossed": (crossed, (300, 300), None),
    "few_rows": (topi.nn.log_softmax, (2, 9001), None),
}


def truth(name, x):
    x = x.astype("float64")
    if name == "softmax_batched":
        e = np.exp(x - x.max(2, keepdims=True))
        return e / e.sum(2, keepdims=True)
    if "softmax" in name or name == "few_rows":
        return (
            x - x.max(-1, keepdims=True) - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))
        )
    if name == "normalized":
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    if name == "mixed":
        return x - x.max(1, keepdims=True) - x.max(0, keepdims=True)
    return x - x.max(0)[:, None]


@pytest.mark.thorough
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_numbers(machine):
    functions = {name: plain(compute, [shape]) for name, (compute, shape, _) in CASES.items()}
    generator = np.random.default_rng(0)
    arrays = {name: [array(shape, "float32", generator)] for name, (_, shape, _) in CASES.items()}
    for name, result in run_all(functions, arrays, machine).items():
        np.testing.assert_allclose(result, truth(name, arrays[name][0]), rtol=3e-6, atol=3e-6, err_msg=name)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2]])
def test_threads_are_woken_once(name):
    compute, shape, launches = CASES[name]
    assert str(emit(plain(compute, [shape]), MACHINES["avx2"])).count("T.parallel") == launches
