"""The zoo's models are valid, seeded and sized on request."""

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
