"""Packed weights of ONNX files: which ones are read, in what storage."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.frontend.onnx.bodies.packed import packed_columns
from hetero_tvm.frontend.stored import StoredModel
from hetero_tvm.ops.decoding.storage import Storage


def model(stored=True, levels=(0,), **attributes):
    """Products with weights [8, 64]."""
    given = {"bits": 4, "block_size": 32, **attributes}
    per_block = given["block_size"] * given["bits"] // 8
    blocks = 64 // given["block_size"]
    arrays = {
        "q": np.arange(8 * blocks * per_block, dtype=np.uint8).reshape(8, blocks, per_block),
        "s": np.linspace(0.1, 0.2, 8 * blocks, dtype=np.float32),
    }
    nodes = [
        helper.make_node(
            "MatMulNBits",
            ["x", *arrays],
            [f"y{n}"],
            domain="com.microsoft",
            K=64,
            N=8,
            accuracy_level=level,
            **given,
        )  # fmt: skip
        for n, level in enumerate(levels)
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])], []
    )
    if stored:
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return StoredModel(helper.make_model(graph), {})


def values(columns, source):
    """Weights [64, 8] of the first product, and what they are stored as."""
    stored = {t.name: numpy_helper.to_array(t) for t in source.proto.graph.initializer}
    data, bits = stored["q"].reshape(8, -1), source.proto.graph.node[0].attribute
    bits = next(a.i for a in bits if a.name == "bits")
    q = data if bits == 8 else np.stack([data & 15, data >> 4], -1).reshape(8, 64)
    scale = np.repeat(stored["s"].reshape(8, -1), 64 // (stored["s"].size // 8), 1)
    w = (q.astype(np.float32) - np.float32(1 << (bits - 1))) * scale
    return w.T, columns.find(w.T)


@pytest.mark.parametrize(("bits", "block", "group"), [(4, 32, 32), (8, 64, 64), (4, 16, 0), (2, 32, 0)])
def test_forms(bits, block, group):
    source = model(bits=bits, block_size=block)
    columns = packed_columns(source)
    if not group:
        assert columns is None
        return
    weights, found = values(columns, source)
    assert found.storage == Storage({4: "int4", 8: "int8"}[bits], group, False, "float32")
    np.testing.assert_array_equal(found.dequantized().T, weights)


def test_rounding_is_allowed_where_all_allow_it():
    for levels, allowed in (((0,), False), ((4,), True), ((4, 0), False), ((3, 4), False)):
        assert packed_columns(model(levels=levels)).may_round is allowed


def test_weights_that_come_at_run_time_are_none():
    assert packed_columns(model(stored=False)) is None
    assert packed_columns(None) is None
    assert packed_columns(StoredModel(onnx.ModelProto(), {})) is None
