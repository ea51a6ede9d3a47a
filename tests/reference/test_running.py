"""Outputs in float32 and float64, and tensors inside the model."""

import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from hetero_tvm import zoo
from hetero_tvm.errors import InputError, UsageError
from hetero_tvm.frontend import import_model
from hetero_tvm.reference import compare, intermediate, run_reference, sample_inputs, tensors_of_nodes
from hetero_tvm.reference.running import run_as_given
from tests.selection import named

TINY = [name for name in zoo.names() if name.endswith("-tiny")]


@pytest.mark.parametrize("name", named(TINY, {"minilm-l6-tiny", "llama-160m-tiny", "resnet50-tiny"}))
def test_float64_agrees_with_onnxruntime(name):
    pytest.importorskip("onnxruntime")
    model = import_model(f"zoo:{name}")
    reference = run_reference(model, sample_inputs(model))
    assert reference.float32_engine.startswith("onnxruntime")
    for single, double in zip(reference.float32, reference.float64, strict=True):
        assert single.dtype == np.float32 and double.dtype == np.float64
        error = np.abs(single - double).max() / np.abs(double).max()
        assert 0 < error < 3e-6  # zero would mean that double was computed in single precision


@pytest.mark.parametrize("name", ["bert-base-tiny", "mobilenetv2-tiny"])
def test_without_onnxruntime(name, monkeypatch):
    model = import_model(f"zoo:{name}")
    inputs = sample_inputs(model)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    reference = run_reference(model, inputs)
    assert "reference evaluator" in reference.float32_engine
    assert all(y.dtype == np.float32 for y in reference.float32)
    assert compare(reference.float32, reference).ok


def test_wrong_inputs_are_all_named():
    model = import_model("zoo:minilm-l6-tiny")
    inputs = sample_inputs(model)
    inputs["input_ids"] = inputs["input_ids"].astype(np.int32)
    inputs["extra"] = inputs.pop("attention_mask")
    with pytest.raises(InputError) as caught:
        run_reference(model, inputs)
    assert caught.value.problems == (
        "there is no input 'extra'",
        "input_ids: int64[1, 12] expected, got int32[1, 12]",
        "input 'attention_mask' is missing",
    )


def test_tensors_inside_the_model():
    model = import_model("zoo:minilm-l6-tiny")
    inputs = sample_inputs(model)
    softmax = tensors_of_nodes(model)["/encoder/layer.1/attention/self/Softmax"]
    assert softmax == ("/encoder/layer.1/attention/self/Softmax_output_0",)
    found = intermediate(model, inputs, [*softmax, "last_hidden_state", "input_ids"])
    assert found[softmax[0]].dtype == np.float64
    np.testing.assert_allclose(found[softmax[0]].sum(-1), 1, rtol=1e-12)
    # peaked, as trained attention is, and nothing on the padded position
    assert found[softmax[0]].max() > 0.2 and found[softmax[0]][..., -1].max() == 0
    assert np.array_equal(found["last_hidden_state"], run_reference(model, inputs).float64[0])
    assert np.array_equal(found["input_ids"], inputs["input_ids"])


def test_unknown_tensors_are_named():
    model = import_model("zoo:minilm-l6-tiny")
    with pytest.raises(UsageError, match="no tensor 'nothing'"):
        intermediate(model, sample_inputs(model), ["nothing"])


def test_the_judge_rounds_nothing_that_the_file_only_allows_to_be_rounded():
    """``accuracy_level`` 4 lets ONNX Runtime round x to 8 bits, which would be off by half a per cent."""
    pytest.importorskip("onnxruntime")
    random = np.random.default_rng(0)
    weights = {
        "q": random.integers(0, 256, (48, 4, 16)).astype(np.uint8),
        "scales": random.uniform(0.01, 0.1, 48 * 4).astype(np.float32),
    }
    node = helper.make_node(
        "MatMulNBits", ["x", *weights], ["y"], domain="com.microsoft", K=128, N=48, bits=4, block_size=32,
        accuracy_level=4,
    )  # fmt: skip
    ends = [
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["m", e])]
        for n, e in (("x", 128), ("y", 48))
    ]
    graph = helper.make_graph([node], "g", *ends, [numpy_helper.from_array(a, n) for n, a in weights.items()])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = import_model(helper.make_model(graph, opset_imports=opsets, ir_version=8), shapes={"x": (5, 128)})
    x = random.standard_normal((5, 128)).astype(np.float32)
    values = np.stack([weights["q"] & 15, weights["q"] >> 4], -1).reshape(48, 4, 32).astype(np.float64) - 8
    exact = x @ (values * weights["scales"].reshape(48, 4, 1)).reshape(48, 128).T
    (found,) = run_as_given(model, {"x": x})
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
