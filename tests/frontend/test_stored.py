"""Models with their large weights apart."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.frontend import import_model
from hetero_tvm.frontend.onnx.graph.detach import detached
from hetero_tvm.frontend.onnx.load import load_stored
from hetero_tvm.frontend.stored import is_stub
from hetero_tvm.host import mapped
from hetero_tvm.reference import run_reference

WIDTH = 800  # 1.3 MB of float16


def model(kind="initializer", dtype=np.float32) -> onnx.ModelProto:
    """y = x @ large + small."""
    rng = np.random.default_rng(0)
    large = numpy_helper.from_array((rng.standard_normal((WIDTH, WIDTH)) / 28).astype(dtype), "large")
    small = numpy_helper.from_array(rng.standard_normal(WIDTH).astype(dtype), "small")
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("MatMul", ["x", "large"], ["z"]),
        helper.make_node("Add", ["z", "small"], ["y"]),
    ]
    weights = [small]
    if kind == "node":
        nodes.insert(0, helper.make_node("Constant", [], ["large"], value=large))
    else:
        weights.append(large)
    ends = [helper.make_tensor_value_info(name, element, [3, WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_large_weights_leave_the_protobuf_and_come_back():
    source = model()
    stored = detached(source)
    assert set(stored.arrays) == {"large"} and mapped.is_mapped(stored.arrays["large"])
    assert [t.name for t in stored.proto.graph.initializer if is_stub(t)] == ["large"]
    assert stored.proto.ByteSize() < 10_000 and source.ByteSize() > mapped.LARGE
    assert stored.whole() == source


@pytest.mark.parametrize("kind", ["initializer", "node"])
@pytest.mark.parametrize("way", ["memory", "single", "external"])
def test_all_ways_give_the_same_numbers(kind, way, tmp_path):
    source = model(kind)
    given = source
    if way != "memory":
        given = tmp_path / "m.onnx"
        options = {"save_as_external_data": True, "convert_attribute": True} if way == "external" else {}
        onnx.save(onnx.ModelProto.FromString(source.SerializeToString()), str(given), **options)
    x = np.random.default_rng(1).standard_normal((3, WIDTH)).astype(np.float32)
    found = run_reference(import_model(given), {"x": x})
    (truth,) = onnx.reference.ReferenceEvaluator(source).run(None, {"x": x})
    np.testing.assert_allclose(found.float32[0], truth, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.float64[0], truth, rtol=1e-4, atol=1e-5)


def test_the_users_file_may_change_after_the_import(tmp_path):
    path = tmp_path / "m.onnx"
    source = model()
    onnx.save(onnx.ModelProto.FromString(source.SerializeToString()), str(path), save_as_external_data=True)
    stored = load_stored(path)
    for file in tmp_path.iterdir():
        file.write_bytes(b"")
    assert stored.whole().graph.initializer[1].raw_data == source.graph.initializer[1].raw_data


def test_a_name_that_is_used_twice_stays_for_the_import_to_refuse():
    from hetero_tvm.errors import ModelError

    source = model()
    source.graph.initializer.append(source.graph.initializer[1])
    with pytest.raises(ModelError, match="used twice"):
        import_model(source)


def test_half_precision():
    imported = import_model(model(dtype=np.float16))
    assert imported.stored == "float16"
    (weight,) = imported.clean.arrays.values()
    assert weight.dtype == np.float32 and mapped.is_mapped(weight)


def test_the_type_of_a_stub_is_kept():
    stored = detached(model(dtype=np.float16))
    (stub,) = [t for t in stored.proto.graph.initializer if is_stub(t)]
    assert stub.data_type == TensorProto.FLOAT16 and list(stub.dims) == [WIDTH, WIDTH]
