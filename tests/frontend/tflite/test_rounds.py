"""Loops are counted from their counters alone."""

import numpy as np

from hetero_tvm.frontend.tflite.load import Graph, Operator, Tensor
from hetero_tvm.frontend.tflite.rounds import evaluated, folded, rounds


def graph(constant, kinds):
    """Calls of two operands over (state, constant)."""
    tensors = [Tensor("s", (), (), "int32"), Tensor("c", (), (), "int32", np.int32(constant))]
    tensors += [Tensor(f"r{i}", (), (), "int32") for i in range(len(kinds))]
    calls = [Operator(kind, (i + 1 if i else 0, 1), (i + 2,), None) for i, kind in enumerate(kinds)]
    return Graph(tuple(tensors), tuple(calls), (0,), (len(kinds) + 1,))


def test_a_counter_is_counted():
    assert rounds(graph(7, ["LESS"]), graph(2, ["ADD"]), [np.array(0, np.int32)], 100) == 4
    assert rounds(graph(7, ["LESS"]), graph(2, ["ADD"]), [np.array(9, np.int32)], 100) == 0


def test_what_hangs_on_data_or_never_ends_is_not_counted():
    assert rounds(graph(7, ["LESS"]), graph(2, ["ADD"]), [None], 100) is None
    assert rounds(graph(7, ["LESS"]), graph(0, ["ADD"]), [np.array(0, np.int32)], 100) is None
    assert rounds(graph(7, ["LESS"]), graph(2, ["EXP"]), [np.array(0, np.int32)], 100) is None


def test_only_a_few_whole_numbers_are_folded():
    add = Operator("ADD", (0, 1), (2,), None)
    assert folded(add, [np.array([1, 2]), np.array([3])]).tolist() == [4, 5]
    assert folded(add, [np.ones(2), np.ones(2)]) is None
    assert folded(add, [np.zeros(65, int), np.zeros(65, int)]) is None
    assert folded(Operator("RESHAPE", (0, 1), (2,), None), [np.arange(3), np.array([2, 2])]) is None
    assert evaluated(graph(2, ["MUL", "ADD"]), [np.array(5)])[0] == 12
