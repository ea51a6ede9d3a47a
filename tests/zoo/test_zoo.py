"""The zoo's models are valid, seeded, sized on request, and written as exporters write them."""

from collections import Counter

import numpy as np
import onnx
import pytest

from hetero_tvm import zoo
from hetero_tvm.errors import ModelError, UsageError

TINY = [name for name in zoo.names() if name.endswith("-tiny")]
ort = pytest.importorskip("onnxruntime")


def run(model, seed=0):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(seed)
    feed = {}
    for value in session.get_inputs():
        if "mask" in value.name:
            feed[value.name] = np.ones(value.shape, np.int64)
        elif "int64" in value.type:
            feed[value.name] = generator.integers(0, 2, value.shape)
        else:
            feed[value.name] = generator.standard_normal(value.shape).astype(np.float32)
    return session.run(None, feed)


def test_every_model_has_a_tiny_variant():
    real = [name for name in zoo.names() if not name.endswith("-tiny")]
    assert sorted(f"{name}-tiny" for name in real) == sorted(TINY)
    assert zoo.DEFAULT in real
    assert all(zoo.describe(name) for name in zoo.names())


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_are_valid_and_in_range(name):
    model = zoo.build(name)
    onnx.checker.check_model(model, full_check=True)
    declared = [[d.dim_value for d in o.type.tensor_type.shape.dim] for o in model.graph.output]
    for output, shape in zip(run(model), declared, strict=True):
        assert list(output.shape) == shape
        assert np.isfinite(output).all()
        assert 0.1 < output.std() < 10


@pytest.mark.parametrize("name", TINY)
def test_equal_seeds_give_equal_files(name):
    one, same, other = (zoo.build(name, seed=seed).SerializeToString() for seed in (3, 3, 4))
    assert one == same
    assert one != other


def test_sizes_are_options():
    model = zoo.build("minilm-l6-tiny", batch=3, sequence=7)
    assert run(model)[0].shape == (3, 7, 48)
    assert run(zoo.build("resnet50-tiny", batch=2))[0].shape == (2, 10)


@pytest.mark.parametrize("name", TINY)
def test_nodes_are_named_as_exporters_name_them(name):
    nodes = zoo.build(name).graph.node
    names = [node.name for node in nodes]
    assert len(set(names)) == len(names)
    assert all(n.name.startswith("/") and n.name.split("/")[-1].startswith(n.op_type) for n in nodes)


def test_attention_is_a_chain_with_the_exporters_names():
    nodes = {node.name: node for node in zoo.build("minilm-l6-tiny").graph.node}
    path = "/encoder/layer.1/attention/self"
    chain = [nodes[f"{path}/{op}"].op_type for op in ("MatMul", "Div", "Add", "Softmax", "MatMul_1")]
    assert chain == ["MatMul", "Div", "Add", "Softmax", "MatMul"]
    assert nodes[f"{path}/Add"].input[0] == f"{path}/Div_output_0"


def test_layer_norm_is_an_operator_or_a_chain():
    whole = Counter(node.op_type for node in zoo.build("minilm-l6-tiny").graph.node)
    parts = Counter(node.op_type for node in zoo.build("bert-base-tiny").graph.node)
    assert whole["LayerNormalization"] == 5 and whole["ReduceMean"] == 0
    assert parts["LayerNormalization"] == 0 and parts["ReduceMean"] == 6


def test_families_use_their_own_forms():
    gpt2 = Counter(node.op_type for node in zoo.build("gpt2-small-tiny").graph.node)
    assert gpt2["Split"] == 2 and gpt2["Tanh"] == 2 and gpt2["Erf"] == 0 and gpt2["Where"] == 2
    llama = Counter(node.op_type for node in zoo.build("llama-160m-tiny").graph.node)
    assert llama["Reciprocal"] == 5 and llama["Neg"] == 4 and llama["Sigmoid"] == 2
    mobilenet = Counter(node.op_type for node in zoo.build("mobilenetv2-tiny").graph.node)
    assert mobilenet["Clip"] > 0 and mobilenet["BatchNormalization"] == mobilenet["Conv"]


def test_causal_models_do_not_see_the_future():
    for name in ("gpt2-small-tiny", "llama-160m-tiny"):
        model = zoo.build(name)
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        ids, mask = np.arange(12)[None], np.ones((1, 12), np.int64)
        changed = ids.copy()
        changed[0, 6:] = 50
        a, b = (session.run(None, {"input_ids": i, "attention_mask": mask})[0] for i in (ids, changed))
        assert np.array_equal(a[:, :6], b[:, :6])
        assert not np.allclose(a[:, 6:], b[:, 6:])


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ModelError, match="no model 'minilm'") as caught:
        zoo.build("minilm")
    assert "Did you mean 'minilm-l6'?" in str(caught.value)
    assert "resnet50" in str(caught.value)
    with pytest.raises(ModelError):
        zoo.describe("bert")


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("minilm-l6-tiny", {"sequence": 33}, "at most 32 tokens"),
        ("minilm-l6-tiny", {"batch": 0}, "batch must be a whole number"),
        ("minilm-l6-tiny", {"sequence": -1}, "sequence must be a whole number"),
        ("minilm-l6-tiny", {"batch": 1.5}, "batch must be a whole number"),
        ("minilm-l6-tiny", {"batch": True}, "batch must be a whole number"),
        ("resnet50-tiny", {"sequence": 8}, "image model"),
    ],
)
def test_impossible_sizes_are_refused(name, sizes, message):
    with pytest.raises(UsageError, match=message):
        zoo.build(name, **sizes)
