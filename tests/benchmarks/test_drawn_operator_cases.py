"""Tests of the drawn operators: each is a whole file, and the same whenever it is asked for."""

import numpy as np
import onnx
import pytest

import benchmarks.drawn_contraction_cases  # noqa: F401  more of KINDS
import benchmarks.drawn_move_cases  # noqa: F401  more of KINDS
from benchmarks.drawn_operator_cases import KINDS, drawn_cases
from benchmarks.operator_cases import build

CASES = drawn_cases(1, 2)


def test_every_kind_has_a_case_of_every_number():
    assert len(CASES) == 2 * len(KINDS)


@pytest.mark.parametrize("name", drawn_cases(1, 1))
def test_a_name_says_all_of_a_case(name):
    net, again = build(name, CASES), build(name, CASES)
    onnx.checker.check_model(net.model(), full_check=True)
    assert net.nodes == again.nodes
    assert net.values.keys() == again.values.keys()
    assert all(np.array_equal(net.values[key], again.values[key]) for key in net.values)
