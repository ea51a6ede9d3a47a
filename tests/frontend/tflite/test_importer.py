"""TensorFlow Lite files are models like any other."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

from hetero_tvm.api import build_model, import_model, optimize_model  # noqa: E402
from hetero_tvm.errors import ShapeError  # noqa: E402
from hetero_tvm.frontend.tflite.importer import import_tflite, open_tflite  # noqa: E402
from hetero_tvm.reference import run_reference, sample_inputs  # noqa: E402
from tests.frontend.tflite.written import Call, T, const, file, one  # noqa: E402

FILES = Path(__file__).parent / "files"


def layer(folder, dtype="float32"):
    random = np.random.default_rng(0)
    w = const(random.standard_normal((4, 6)).astype("float32"))
    data = one(
        "FULLY_CONNECTED", [T((1, 6), declared=(-1, 6)), w, None], [T((1, 4))], "FullyConnectedOptions"
    )
    path = folder / "layer.tflite"
    path.write_bytes(data)
    return path


def test_the_judge_is_the_file_itself(tmp_path):
    model = import_tflite(layer(tmp_path))
    reference = run_reference(model, sample_inputs(model))
    assert "ai-edge-litert" in reference.float32_engine and not model.original.coarse


def test_a_wrong_translation_is_found_out(tmp_path):
    """The numbers of the file, not those of our translation, are the reference then."""
    import dataclasses

    model = import_tflite(layer(tmp_path))
    (weight,) = [t for t in model.clean.proto.graph.initializer if len(t.dims) == 2]
    weight.raw_data = (2 * np.frombuffer(weight.raw_data, "float32")).tobytes()
    inputs = sample_inputs(model)
    found = run_reference(dataclasses.replace(model), inputs)
    np.testing.assert_allclose(found.float64[0], model.original.run(inputs)[0], rtol=1e-5)


def test_batches_that_became_others_are_not_those_of_the_file(tmp_path):
    """Keras writes a dilated convolution so: an open batch is 1 in the file, and four times that between."""
    open_blocks = T((1, 3, 3, 2), declared=(-1, 3, 3, 2))
    block, none = const(np.int32([2, 2])), const(np.int32([[0, 0], [0, 0]]))
    image = T((1, 6, 6, 2), declared=(-1, 6, 6, 2))
    calls = [
        Call("SPACE_TO_BATCH_ND", (0, 3, 4), (1,)),
        Call("ABS", (1,), (2,), "AbsOptions"),
        Call("BATCH_TO_SPACE_ND", (2, 3, 4), (5,)),
    ]
    path = tmp_path / "blocks.tflite"
    path.write_bytes(file([image, open_blocks, open_blocks, block, none, image], calls, (0,), (5,)))
    agrees(path)


def test_rows_of_shapes_that_are_computed_are_not_those_of_the_file(tmp_path):
    """Keras writes a layer over tokens so: the rows of an open batch are 1 in the file."""
    image, rows = T((1, 4, 6), declared=(-1, 4, 6)), T((1, 6), declared=(-1, 6))
    shape = [const(np.int32(numbers)) for numbers in ([-2, 5], [1, 1])]
    weight = const(np.random.default_rng(0).standard_normal((6, 6)).astype("float32"))
    back = const(np.int32([-1, 4, 6]))
    calls = [
        Call("ADD", (1, 2), (3,), "AddOptions"),
        Call("RESHAPE", (0, 3), (4,)),
        Call("FULLY_CONNECTED", (4, 5, -1), (6,), "FullyConnectedOptions"),
        Call("RESHAPE", (6, 7), (8,)),
    ]
    path = tmp_path / "tokens.tflite"
    tensors = [image, *shape, T((2,), "int32"), rows, weight, rows, back, image]
    path.write_bytes(file(tensors, calls, (0,), (8,)))
    agrees(path)


def agrees(path):
    model = import_tflite(path)
    inputs = sample_inputs(model)
    found = build_model(optimize_model(model), use_shipped=False).run(inputs)
    np.testing.assert_allclose(found[0], model.original.run(inputs)[0], rtol=1e-5, atol=1e-5)


def test_other_sizes(tmp_path):
    path = layer(tmp_path)
    assert import_tflite(path, batch=3).signature.outputs[0].shape == (3, 4)
    assert import_model(path, shapes={"t0": (5, 6)}).signature.inputs[0].shape == (5, 6)
    assert open_tflite(path)[0] == {"t0": ["batch", 6]}
    with pytest.raises(ShapeError, match="no input 'x'"):
        import_model(path, shapes={"x": (5, 6)})
    with pytest.raises(ShapeError, match="has 2 dimensions"):
        import_model(path, shapes={"t0": (5, 6, 1)})
    with pytest.raises(ShapeError, match="loops or branches"):
        import_model(FILES / "gru.tflite", shapes={"keras_tensor": (2, 12, 16)})


@pytest.mark.exhaustive
def test_integers_stay_integers():
    """Each convolution of the quantised network becomes one kernel of 8-bit numbers."""
    model = import_model(FILES / "gates.int8.tflite")
    assert model.original.coarse and model.signature.inputs[0].dtype == "int8"
    names = [task.name for task in optimize_model(model, target="cpu").tasks]
    assert sum(name.startswith("quant_") for name in names) == 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["gates.int8", "words", "unet.int8", "gru"])
def test_files_are_built_and_checked(name):
    """The check of the build compares with LiteRT, and refuses what is wrong."""
    build_model(optimize_model(import_model(FILES / f"{name}.tflite"), target="cpu"))
