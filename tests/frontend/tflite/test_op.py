"""Layouts, quantisers and bounds of one operator."""

import numpy as np
import pytest

from hetero_tvm.frontend.nodes import Nodes, Untranslatable
from hetero_tvm.frontend.tflite.load import Graph, Operator, Tensor
from hetero_tvm.frontend.tflite.op import Op, channels_first, channels_last


def op(values, *, result=None, known=None):
    image = Tensor("x", (1, 4, 6, 3), (1, 4, 6, 3), "float32")
    vector = Tensor("c", (3,), (3,), "float32")
    tensors = (image, vector, result or image)
    return Op(
        Operator("ADD", (0, 1), (2,), None), Graph(tensors, (), (0,), (2,)), values, known or {}, Nodes()
    )


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_the_two_orders_undo_each_other(rank):
    first, last = channels_first(rank), channels_last(rank)
    assert [first[axis] for axis in last] == list(range(rank)) and first[1] == rank - 1


def test_an_image_is_turned_once_and_its_constants_at_once():
    values, known = {0: {True: "x"}}, {1: np.arange(3, dtype="float32")}
    one = op(values, known=known)
    assert one.first and one.raw(0, first=True) == "x"
    assert one.raw(0) == one.raw(0) and len(one._nodes.nodes) == 1
    one.raw(1, first=True)
    assert [list(tensor.dims) for tensor in one._nodes.constants] == [[3, 1, 1]]


def test_an_operand_at_run_time_of_another_rank_keeps_images_as_they_are():
    assert not op({0: {True: "x"}, 1: {False: "y"}}).first


def test_bounds_that_eight_bits_keep_are_not_written():
    step = 6 / 255
    kept = Tensor("y", (1,), (1,), "int8", None, np.array([step], np.float32), np.array([-128]))
    assert op({}, result=kept).bounded("x", 0.0, 6.0) == "x"
    wide = Tensor("y", (1,), (1,), "int8", None, np.array([0.1], np.float32), np.array([0]))
    assert op({}, result=wide).bounded("x", 0.0, 6.0) != "x"


def test_what_is_missing_is_said():
    with pytest.raises(Untranslatable, match="comes at run time"):
        op({}).constant(1)
    with pytest.raises(Untranslatable, match="operand 5 is missing"):
        op({}).tensor(5)
    with pytest.raises(Untranslatable, match="has no value"):
        op({}).raw(0)
