"""Operators on 8-bit tensors: equal to ONNX's own evaluator, up to one step where a half is rounded."""

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.frontend import import_model
from tests.frontend.onnx.helpers import run_tvm


def model_of(kind, x, constants, shape, dtype, **attributes):
    """One node of ``x`` and constants (None where an input is left out); the order of inputs is ONNX's."""
    names = ["x" if c is x else "" if c is None else f"c{n}" for n, c in enumerate(constants)]
    weights = [
        numpy_helper.from_array(np.asarray(c), f"c{n}")
        for n, c in enumerate(constants)
        if c is not None and c is not x
    ]
    graph = helper.make_graph(
        [helper.make_node(kind, names, ["y"], "node", **attributes)],
        "quantized",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def numbers(dtype, *shape, seed=0):
    limits = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(limits.min, limits.max + 1, shape).astype(dtype)


def check(model, x, most=0):
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    (found,) = run_tvm(import_model(model), {"x": x})
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert np.abs(found.astype(np.int64) - expected.astype(np.int64)).max() <= most
    assert expected.std() > 1  # else the test shows nothing


def f32(*values):
    return np.array(values if len(values) > 1 else values[0], np.float32)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("vectors", [False, True])
def test_products(dtype, vectors):
    """One scale for all columns of W, or one each."""
    x, w = numbers(dtype, 5, 7), numbers(np.int8, 7, 3)
    scale = f32(0.01, 0.02, 0.03) if vectors else f32(0.02)
    zero = np.array([1, -2, 0] if vectors else 3, np.int8)
    constants = [x, f32(0.05), np.array(4, dtype), w, scale, zero, f32(0.9), np.array(7, dtype)]
    check(model_of("QLinearMatMul", x, constants, (5, 3), dtype), x, most=1)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("biased", [False, True])
def test_convolutions(dtype, biased):
    x, w = numbers(dtype, 2, 4, 6, 5), numbers(np.int8, 6, 2, 3, 2)
    bias = np.arange(-3000, 3000, 1000, dtype=np.int32) if biased else None
    constants = [x, f32(0.05), np.array(4, dtype), w, f32(0.02), np.array(0, np.int8)]
    constants += [f32(0.9), np.array(7, dtype), bias]
    attributes = {"strides": [2, 1], "pads": [1, 0, 1, 1], "group": 2}
    check(model_of("QLinearConv", x, constants, (2, 6, 3, 5), dtype, **attributes), x, most=1)


@pytest.mark.parametrize("zeros", [(None, None), (np.uint8(9), None), (np.uint8(9), np.int8(2))])
def test_convolutions_of_integers_are_exact(zeros):
    x, w = numbers(np.uint8, 1, 3, 5, 5), numbers(np.int8, 4, 3, 3, 3)
    zeros = [None if z is None else np.asarray(z) for z in zeros]
    check(model_of("ConvInteger", x, [x, w, *zeros], (1, 4, 5, 5), np.int32, pads=[1, 1, 1, 1]), x)
