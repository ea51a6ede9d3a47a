"""Joins, borders and mirrored edges: cut into copies without conditions, and the numbers of NumPy."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import topi
from hetero_tvm.schedules.cpu.programs import boxes
from hetero_tvm.schedules.cpu.programs.boxes import boxes_of
from hetero_tvm.schedules.cpu.programs.program import emit
from hetero_tvm.schedules.nests.program import nests_of
from tests.schedules.cpu.programs.test_reduction import run_all
from tests.schedules.cpu.running import MACHINES
from tests.schedules.cpu.test_generic import array, plain
from tests.selection import thorough


def mirrored(x):
    return topi.nn.mirror_pad(x, [0, 2, 3], [0, 1, 4], mode="REFLECT")


CASES = {
    "join_rows": (lambda x, y: topi.concatenate([x, y], 0), [(3, 40), (5, 40)], 2,
                  lambda x, y: np.concatenate([x, y], 0)),
    "join_columns": (lambda x, y, z: topi.concatenate([x, y, z], 1), [(9, 5), (9, 33), (9, 1)], 3,
                     lambda *a: np.concatenate(a, 1)),
    "join_many": (lambda *a: topi.concatenate(a, 1), [(9, 1)] * 70, 70, lambda *a: np.concatenate(a, 1)),
    "join_channels": (lambda x, y: topi.concatenate([x, y], 1), [(2, 8, 30, 40), (2, 3, 30, 40)], 2,
                      lambda x, y: np.concatenate([x, y], 1)),
    "join_vectors": (lambda x, y: topi.concatenate([x, y], 0), [(9000,), (7001,)], 2,
                     lambda x, y: np.concatenate([x, y])),
    "stack": (lambda x, y: topi.stack([x, y], 1), [(40, 90), (40, 90)], 2, lambda x, y: np.stack([x, y], 1)),
    "border": (lambda x: topi.nn.pad(x, [0, 1, 2], [0, 3, 4]), [(20, 25, 36)], 9,
               lambda x: np.pad(x, [(0, 0), (1, 3), (2, 4)])),
    "mirror": (mirrored, [(6, 30, 31)], 9,
               lambda x: np.pad(x, [(0, 0), (2, 1), (3, 4)], mode="reflect")),
    "transposed": (lambda x, y: topi.concatenate([x, topi.transpose(y)], 0), [(1, 70), (70, 33)], 2,
                   lambda x, y: np.concatenate([x, y.T], 0)),
    "integers": (lambda x, y: topi.concatenate([x, y], 1), [("int64", (30, 5)), ("int64", (30, 33))], 2,
                 lambda x, y: np.concatenate([x, y], 1)),
    "fused": (lambda x, y: topi.nn.relu(topi.concatenate([x, y], 1) * 2.0), [(70, 90), (70, 33)], 2,
              lambda x, y: np.maximum(np.concatenate([x, y], 1) * 2, 0)),
}  # fmt: skip


def operands():
    generator = np.random.default_rng(0)
    typed = {n: [s if isinstance(s[0], str) else ("float32", s) for s in CASES[n][1]] for n in CASES}
    return {n: [array(shape, dtype, generator) for dtype, shape in shapes] for n, shapes in typed.items()}


@pytest.mark.parametrize("isa", ["avx2", *thorough([isa for isa in MACHINES if isa != "avx2"])])
def test_the_numbers(isa):
    machine = MACHINES[isa]
    functions = {name: plain(*case[:2]) for name, case in CASES.items()}
    arrays = operands()
    for name, result in run_all(functions, arrays, machine).items():
        np.testing.assert_allclose(result, CASES[name][3](*arrays[name]), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_no_condition_is_left(name):
    function = plain(*CASES[name][:2])
    (nest,) = nests_of(function).nests
    assert len(boxes_of(nest)) == CASES[name][2]
    kernel = emit(function, MACHINES["avx2"])
    assert kernel is not None
    kernel = str(kernel)
    assert "if_then_else" not in kernel and "Select" not in kernel


def test_a_value_is_fenced_once_for_all_boxes(monkeypatch):
    """Once for each of a hundred joined parts took most of a build."""
    fenced = []
    monkeypatch.setattr(boxes, "wrapping", lambda value: (fenced.append(value), value)[1])
    name = max(CASES, key=lambda name: CASES[name][2])
    (nest,) = nests_of(plain(*CASES[name][:2])).nests
    assert len(boxes_of(nest)) > 1
    assert len(fenced) == 1


def test_conditions_on_data_are_left_to_the_schedule():
    function = plain(lambda c, x: topi.where(c, x, x * 2.0), [("bool", (6, 40)), (6, 40)])
    assert emit(function, MACHINES["avx2"]) is None
