"""Transpositions, alone and fused with what follows: the numbers of NumPy on machines of every width."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import topi
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.program import emit
from tests.schedules.cpu.programs.test_reduction import run_all
from tests.schedules.cpu.running import MACHINES
from tests.schedules.cpu.test_generic import array, plain
from tests.selection import named

SHAPES = {
    "square": ((64, 64), (1, 0)),
    "odd": ((67, 83), (1, 0)),
    "one_block": ((4, 4), (1, 0)),
    "narrow": ((5, 300), (1, 0)),
    "tall": ((1000, 6), (1, 0)),
    "large": ((300, 290), (1, 0)),
    "long": ((150, 333), (1, 0)),
    "long_whole": ((333, 64), (1, 0)),
    "long_batched": ((2, 40, 3, 141), (0, 3, 2, 1)),
    "batched": ((3, 17, 24), (0, 2, 1)),
    "channels_last": ((2, 9, 7, 8), (0, 2, 3, 1)),
    "channels_first": ((2, 7, 8, 9), (0, 3, 1, 2)),
    "reversed": ((6, 5, 7), (2, 1, 0)),
    "rotated": ((20, 5, 7), (1, 2, 0)),
    "five": ((4, 3, 5, 2, 6), (4, 2, 0, 3, 1)),
}


FAR = CpuModel("d", lanes=16, registers=32, threads=2, features=("amx_tile",))
"""A machine whose reads are far: odd rows are written by half lines, long ones are read along whole ones."""


@pytest.mark.parametrize("machine", named(MACHINES | {"far": FAR}, {"avx2", "far"}))
def test_permutations(machine):
    functions = {n: plain(lambda x, p=p: topi.transpose(x, p), [s]) for n, (s, p) in SHAPES.items()}
    functions = {n: f for n, f in functions.items() if emit(f, machine) is not None}
    assert len(functions) >= 10
    generator = np.random.default_rng(0)
    arrays = {n: [array(SHAPES[n][0], "float32", generator)] for n in functions}
    for name, result in run_all(functions, arrays, machine).items():
        np.testing.assert_array_equal(result, arrays[name][0].transpose(SHAPES[name][1]), err_msg=name)


def test_what_is_fused_with_a_transposition():
    shape, row = (45, 70), (45,)
    functions = {
        "scaled": plain(lambda x: topi.tanh(topi.transpose(x) * 0.5), [shape]),
        "added": plain(lambda x, y: topi.add(topi.transpose(x), y), [shape, row]),
        "two": plain(lambda x, y: topi.subtract(topi.transpose(x), topi.transpose(y)), [shape, shape]),
        "self": plain(lambda x: topi.add(x, topi.transpose(x)), [(33, 33)]),
    }
    generator = np.random.default_rng(1)
    x, z = (array(shape, "float32", generator) for _ in range(2))
    y, s = array(row, "float32", generator), array((33, 33), "float32", generator)
    arrays = {"scaled": [x], "added": [x, y], "two": [x, z], "self": [s]}
    truth = {"scaled": np.tanh(x.T * 0.5), "added": x.T + y, "two": x.T - z.T, "self": s + s.T}
    for machine in MACHINES.values():
        for name, result in run_all(functions, arrays, machine).items():
            np.testing.assert_allclose(result, truth[name], rtol=2e-6, atol=2e-6, err_msg=name)


def test_permutations_of_rows_are_left_to_the_schedule():
    function = plain(lambda x: topi.transpose(x, [0, 2, 1, 3]), [(2, 6, 5, 8)])
    assert emit(function, MACHINES["avx2"]) is None
