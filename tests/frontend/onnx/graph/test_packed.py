"""Packed weights of ONNX files: which ones are read, in what storage."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.frontend.onnx.graph.packed import packed_columns
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


def dequantized(dtype, block, zero, k=64, n=6, form="columns"):
    """A DequantizeLinear of a constant [k, n], and its value; or of [n, k], and of one scale for all."""
    random = np.random.default_rng(0)
    bits = 4 if "4" in dtype else 8
    low = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    shape = (-(-k // block), n) if block else (n,) if form != "one" else ()
    values = random.integers(low, low + (1 << bits), (k, n))
    zeros = random.integers(low, low + (1 << bits), shape) if zero else np.zeros(shape, int)
    scales = random.uniform(0.1, 1, shape).astype(np.float32)
    kind = getattr(TensorProto, dtype.upper())
    turned = (lambda a: a.T) if form == "rows" else lambda a: a

    def tensor(name, values):
        return helper.make_tensor(name, kind, values.shape, values.ravel())

    stored = [
        tensor("q", turned(values)),
        numpy_helper.from_array(np.ascontiguousarray(turned(scales)), "s"),
    ]
    if zero:
        stored.append(tensor("z", turned(zeros)))
    along = int(form == "rows")
    more = {"axis": along, "block_size": block} if block else {"axis": 1 - along}
    node = helper.make_node("DequantizeLinear", [t.name for t in stored], ["w"], **more)
    graph = helper.make_graph([node], "g", [], [], stored)
    spread = (lambda a: np.repeat(a, block, 0)[:k]) if block else (lambda a: np.asarray(a)[None])
    exact = (values - spread(zeros)).astype(np.float32) * spread(scales)
    return StoredModel(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), {}), exact


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    ("dtype", "block", "group"),
    [("int4", 32, 32), ("uint4", 64, 64), ("int8", 0, 128), ("uint8", 0, 128), ("int8", 256, 128)],
)
def test_what_is_dequantized(dtype, block, group, zero):
    source, exact = dequantized(dtype, block, zero, k=300 if block == 256 else 64)
    found = packed_columns(source).find(exact)
    assert (found.storage.group, found.storage.bits) == (group, 4 if "4" in dtype else 8)
    assert found.storage.zero_points is (zero or dtype.startswith("u"))
    np.testing.assert_array_equal(found.dequantized().T, exact)
    assert not packed_columns(source).may_round


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    ("dtype", "block", "form"),
    [
        ("int8", 0, "rows"),
        ("uint4", 32, "rows"),
        ("int4", 64, "rows"),
        ("int8", 0, "one"),
        ("uint8", 0, "one"),
    ],
)
def test_weights_by_row_and_of_one_scale(dtype, block, form, zero):
    source, exact = dequantized(dtype, block, zero, form=form)
    columns = packed_columns(source)
    found = columns.find(exact)
    np.testing.assert_array_equal(found.dequantized().T, exact)
    if form == "one":  # a product may take it either way round
        np.testing.assert_array_equal(columns.find(exact.T.copy()).dequantized(), exact)


def test_dequantized_forms_that_kernels_do_not_know():
    for dtype, block in (("int4", 16), ("int16", 0)):
        assert packed_columns(dequantized(dtype, block, False)[0]) is None
