"""Axes that are divided by constants: pixels repeated and rearranged, reshapes of permutations."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import te, tirx, topi
from hetero_tvm.schedules.cpu.programs.program import emit
from hetero_tvm.schedules.cpu.programs.splits import with_split_axes
from hetero_tvm.schedules.nests.growth import nodes_of
from hetero_tvm.schedules.nests.nest import Nest
from tests.schedules.cpu.programs.test_reduction import run_all
from tests.schedules.cpu.running import MACHINES
from tests.schedules.cpu.test_generic import array, plain
from tests.selection import named


def repeated(x):
    n, c, h, w = (int(e) for e in x.shape)
    return te.compute((n, c, 2 * h, 3 * w), lambda b, i, y, z: x[b, i, te.indexdiv(y, 2), te.indexdiv(z, 3)])


CASES = {
    "repeated": (repeated, (2, 5, 9, 21), lambda x: x.repeat(2, 2).repeat(3, 3)),
    "depth_to_space": (
        lambda x: topi.reshape(topi.transpose(x, [0, 3, 4, 1, 5, 2]), (1, 4, 34, 42)), (1, 2, 2, 4, 17, 21),
        lambda x: x.transpose(0, 3, 4, 1, 5, 2).reshape(1, 4, 34, 42),
    ),
    "heads": (
        lambda x: topi.reshape(topi.transpose(x, [0, 2, 1, 3]), (2, 9, 60)), (2, 5, 9, 12),
        lambda x: x.transpose(0, 2, 1, 3).reshape(2, 9, 60),
    ),
    "flat": (
        lambda x: topi.reshape(topi.transpose(x, [1, 0, 2]), (9 * 5 * 16,)), (5, 9, 16),
        lambda x: x.transpose(1, 0, 2).reshape(-1),
    ),
    "divided": (lambda x: topi.reshape(topi.transpose(x), (6, 35)), (14, 15), lambda x: x.T.reshape(6, 35)),
    "patches": (
        lambda x: topi.concatenate(
            [topi.full((1, 9), "float32", 1.0), topi.transpose(topi.reshape(x, (9, 98)))], 0
        ),
        (9, 7, 14),
        lambda x: np.concatenate([np.ones((1, 9)), x.reshape(9, 98).T]),
    ),
    "within_a_sum": (
        lambda x: topi.sum(topi.reshape(x, (4, 6, 35)), 1), (84, 10), lambda x: x.reshape(4, 6, 35).sum(1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("machine", named(MACHINES, {"avx2"}))
def test_the_numbers(machine):
    functions = {name: plain(compute, [shape]) for name, (compute, shape, _) in CASES.items()}
    functions = {name: f for name, f in functions.items() if emit(f, machine) is not None}
    assert {"repeated", "depth_to_space", "heads", "flat", "patches"} <= set(functions)
    generator = np.random.default_rng(0)
    arrays = {name: [array(CASES[name][1], "float32", generator)] for name in functions}
    for name, result in run_all(functions, arrays, machine).items():
        np.testing.assert_allclose(
            result, CASES[name][2](arrays[name][0]), rtol=2e-6, atol=2e-6, err_msg=name
        )


@pytest.mark.thorough
def test_a_large_value_is_not_simplified_as_a_whole():
    """Selections within selections: simplified, seven steps take hours."""
    x, y, out = (tirx.decl_buffer((size,), "int32", name) for size, name in ((35, "x"), (35, "y"), (70, "o")))
    v = tirx.Var("v", "int32")
    a, b = x[tirx.floordiv(v, 2)], y[tirx.floordiv(v, 2)]
    for _ in range(7):
        rest = tirx.truncmod(a, tirx.Select(b > 0, b, tirx.const(1, "int32")))
        a, b = tirx.Select(b > 0, b, a), tirx.Select(b > 0, rest, b)
    found = with_split_axes(Nest(((v, 70),), (), out, (v,), a, None))
    assert [extent for _, extent in found.axes] == [35, 2]
    assert nodes_of(found.value) <= nodes_of(a)
    assert "//" not in str(found.value)
