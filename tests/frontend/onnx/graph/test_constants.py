"""Constants apart from the graph: types, sizes, damage, and what subgraphs read."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_onnx
from hetero_tvm.frontend.onnx.graph.constants import (
    VALUE_BYTES,
    ConstantPool,
    constant_value,
    dense,
    names_used,
    node_inputs,
    subgraphs,
    tensor_problem,
    to_array,
)
from tests.frontend.onnx.helpers import run_onnxruntime, text_model


def test_arrays_and_tensors_replace_each_other():
    pool = ConstantPool()
    pool.add_array("a", np.arange(6).reshape(2, 3))
    pool.add_tensor(numpy_helper.from_array(np.ones(4, np.float16), "a"))
    assert list(pool) == ["a"] and pool.type_of("a") == (TensorProto.FLOAT16, (4,))
    assert pool.array("a").dtype == np.float16 and pool.nbytes("a") == 8
    pool.add_array("a", np.zeros((), np.int32))
    assert pool.type_of("a") == (TensorProto.INT32, ()) and "b" not in pool
    assert numpy_helper.to_array(pool.tensor("a")).shape == ()


def test_shapes_and_dtypes_of_constants_and_of_typed_tensors():
    pool = ConstantPool()
    pool.add_array("c", np.zeros((2, 0), np.int8))
    types = {"x": (TensorProto.FLOAT, (3, 4)), "open": (1, (3, None)), "any": (1, None)}
    assert pool.shape("c", types) == (2, 0) and pool.dtype("c", types) == "int8"
    assert pool.shape("x", types) == (3, 4) and pool.dtype("x", types) == "float32"
    assert all(pool.shape(name, types) is None for name in ("open", "any", "unknown"))


def test_large_constants_are_attached_as_inputs():
    pool = ConstantPool()
    pool.add_array("small", np.zeros(VALUE_BYTES // 4, np.float32))
    pool.add_array("large", np.zeros(VALUE_BYTES // 4 + 1, np.float32))
    pool.add_array("unused", np.zeros(1))
    graph = text_model("g (float[1] x) => (float[1] y) { a = Add(x, small) y = Add(a, large) }").graph
    pool.attach(graph)
    assert [t.name for t in graph.initializer] == ["small"]
    assert [v.name for v in graph.input] == ["x", "large"]


def test_subgraphs_read_from_outside():
    graph = text_model(
        "g (bool c, float[1] x) => (float[1] y) { z = Exp(x) y = If(c) "
        "<then_branch = a () => (float[1] p) { q = Sin(z) p = Add(q, w) }, "
        "else_branch = b () => (float[1] p) { p = Neg(x) }> }"
    ).graph
    conditional = graph.node[1]
    assert [g.name for a in conditional.attribute for g in subgraphs(a)] == ["a", "b"]
    assert node_inputs(conditional) == {"c", "z", "w", "x"}
    assert names_used(graph) == {"c", "z", "w", "x", "y"}


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.array(1.5, np.float32),
        np.zeros((0, 4), np.float16),
        np.array([True, False]),
        np.array([1, -2], ml_dtypes.bfloat16),
        np.array([1 + 2j], np.complex64),
        np.array(["a", "bc"], object),
        np.array([1, 2, 3], ml_dtypes.int4),
    ],
    ids=lambda a: a.dtype.name,
)
def test_every_type_is_read(array):
    tensor = numpy_helper.from_array(array, "t")
    assert tensor_problem(tensor) is None
    assert to_array(tensor).tolist() == array.tolist()


def bits(kind, values):
    """A tensor with its elements in ``int32_data``."""
    return TensorProto(name="t", data_type=kind, dims=[2], int32_data=values)


def test_integers_in_wider_fields_wrap_around():
    """As in ONNX Runtime."""
    assert to_array(bits(TensorProto.INT8, [1, 300])).tolist() == [1, 44]
    assert to_array(bits(TensorProto.UINT16, [1, -1])).tolist() == [1, 65535]
    assert to_array(bits(TensorProto.FLOAT16, [0x3C00, 0xBC00])).tolist() == [1, -1]


def damaged(**changes):
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [2], np.zeros(2, np.float32).tobytes(), raw=True)
    for name, value in changes.items():
        if name == "dims":
            del tensor.dims[:]
            tensor.dims.extend(value)
        else:
            setattr(tensor, name, value)
    return tensor


@pytest.mark.parametrize(
    "tensor, words",
    [
        (damaged(dims=[3]), "shape \\[3\\] needs 12 bytes, it has 8"),
        (damaged(dims=[1 << 40, 1 << 40]), "it has 8"),
        (damaged(dims=[-2]), "has the shape \\[-2\\]"),
        (damaged(data_type=999), "data type 999 is unknown"),
        (damaged(data_type=0), "data type 0 is unknown"),
        (TensorProto(name="t", data_type=1, dims=[2], segment={"begin": 0, "end": 2}), "stored in segments"),
        (damaged(data_location=TensorProto.EXTERNAL), "external file"),
        (TensorProto(name="t", data_type=1, dims=[2], float_data=[1.0]), "needs 2 values, it has 1"),
        (bits(TensorProto.FLOAT16, [0x3C00, 0x13C00]), "holds 80896, which is more than the 16 bits"),
        (bits(TensorProto.BFLOAT16, [-1, 0x3F80]), "holds -1, which is more than the 16 bits of BFLOAT16"),
        (bits(TensorProto.FLOAT8E4M3FN, [0x38, 0x138]), "holds 312, which is more than the 8 bits"),
    ],
)
def test_damage_is_named(tensor, words):
    with pytest.raises(ModelError, match=f"Tensor 't' is damaged: .*{words}"):
        to_array(tensor)


def sparse(values, indices, dims):
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.array(values, np.float32), "w"),
        numpy_helper.from_array(np.array(indices, np.int64), "w_at"),
        dims,
    )


@pytest.mark.parametrize("indices", [[1, 5, 7], [[0, 1], [1, 2], [2, 1]]], ids=["flat", "by axis"])
def test_sparse_tensors_are_written_out(indices):
    weights = sparse([1, 2, 3], indices, [4, 3])
    wanted = np.zeros((4, 3), np.float32)
    wanted[0, 1], wanted[1, 2], wanted[2, 1] = 1, 2, 3
    np.testing.assert_array_equal(dense(weights), wanted)
    source = text_model("g (float[2, 4] x) => (float[2, 3] y) { y = MatMul(x, w) }")
    source.graph.sparse_initializer.append(weights)
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    cleaned = import_onnx(source).onnx_model
    np.testing.assert_allclose(run_onnxruntime(cleaned, {"x": x})[0], x @ wanted, rtol=1e-6)
    node = helper.make_node("Constant", [], ["w"], sparse_value=weights)
    np.testing.assert_array_equal(constant_value(node)[0], wanted)


@pytest.mark.parametrize(
    "weights, problem",
    [
        (sparse([1], [12], [4, 3]), "out of range"),
        (sparse([1], [-1], [4, 3]), "out of range"),
        (sparse([1, 2], [1], [4, 3]), "indices of shape"),
        (sparse([1], [1], [1 << 20, 1 << 20]), "elements by 1 values"),
        (sparse([1], [1], [-4, 3]), "shape"),
    ],
    ids=["beyond", "below", "count", "bomb", "negative"],
)
def test_damaged_sparse_tensors(weights, problem):
    source = text_model("g (float[2, 4] x) => (float[2, 3] y) { y = MatMul(x, w) }")
    source.graph.sparse_initializer.append(weights)
    with pytest.raises(ModelError, match=problem):
        import_onnx(source)
