"""Imported models compute what onnxruntime computes, under the right signature."""

import warnings

import onnx
import pytest

from hetero_tvm import zoo
from hetero_tvm.frontend import import_model, import_onnx
from hetero_tvm.frontend.signature import TensorSpec
from hetero_tvm.reference import compare, run_reference, sample_inputs
from tests.frontend.onnx.helpers import run_tvm, text_model

TINY = [name for name in zoo.names() if name.endswith("-tiny")]

#: The others are imported, built and compared in the tests of whole models.
DEFAULT = {"minilm-l6-tiny", "llama-160m-tiny", "mobilenetv2-tiny"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DEFAULT else pytest.mark.exhaustive) for name in TINY]
)
def test_tiny_models_match_the_reference(name):
    model = import_model(f"zoo:{name}")
    inputs = sample_inputs(model)
    accuracy = compare(run_tvm(model, inputs), run_reference(model, inputs))
    assert accuracy.ok, str(accuracy)


def test_signature_and_weights():
    model = import_model("zoo:minilm-l6-tiny", batch=2, sequence=9)
    assert model.name == "minilm-l6-tiny"
    assert model.signature.inputs[0] == TensorSpec("input_ids", (2, 9), "int64")
    assert model.signature.outputs == (TensorSpec("last_hidden_state", (2, 9, 48), "float32"),)
    assert str(model.signature.outputs[0]) == "last_hidden_state: float32[2, 9, 48]"
    assert [p.name for p in model.module["main"].params] == ["input_ids", "attention_mask", "token_type_ids"]
    weights = sum(onnx.numpy_helper.to_array(t).nbytes for t in model.onnx_model.graph.initializer)
    assert model.weight_bytes == weights
    onnx.checker.check_model(model.onnx_model, full_check=True)


def test_two_outputs_are_a_tuple_and_the_source_is_untouched():
    source = zoo.build("bert-base-tiny")
    before = source.SerializeToString(deterministic=True)
    model = import_onnx(source)
    assert [spec.name for spec in model.signature.outputs] == ["last_hidden_state", "pooler_output"]
    assert source.SerializeToString(deterministic=True) == before


def test_import_is_quiet(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import_model("zoo:gpt2-small-tiny")
    assert capfd.readouterr() == ("", "")


def test_bool_and_integer_inputs():
    model = import_onnx(
        text_model(
            "g (bool[3] c, int64[3] a, int64[3] b) => (int64[3] y, bool[3] n) "
            "{ y = Where(c, a, b) n = Not(c) }"
        )
    )
    inputs = sample_inputs(model)
    assert compare(run_tvm(model, inputs), run_reference(model, inputs)).ok
