"""Input shapes: given, bound through symbols, missing, contradictory."""

import pytest

from hetero_tvm import zoo
from hetero_tvm.errors import ShapeError
from hetero_tvm.frontend import import_model, import_onnx
from tests.frontend.onnx.helpers import text_model


def symbolic():
    """The tiny MiniLM as exported with dynamic axes."""
    model = zoo.build("minilm-l6-tiny")
    for value in [*model.graph.input, *model.graph.output]:
        for dim, symbol in zip(
            value.type.tensor_type.shape.dim, ("batch_size", "sequence_length"), strict=False
        ):
            dim.Clear()
            dim.dim_param = symbol
    return model


def test_missing_sizes_are_listed_with_the_options_to_add():
    with pytest.raises(ShapeError) as caught:
        import_onnx(symbolic())
    text = str(caught.value)
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert f"{name}: dimension 0 (batch_size), dimension 1 (sequence_length)" in text
        assert f"--shape {name}=1x128" in text


def test_one_shape_binds_the_symbols_of_all_inputs():
    model = import_onnx(symbolic(), shapes={"input_ids": (2, 5)})
    assert [spec.shape for spec in model.signature.inputs] == [(2, 5)] * 3
    assert model.signature.outputs[0].shape == (2, 5, 48)


def test_batch_and_sequence_bind_symbols_by_their_names():
    assert import_model(symbolic(), batch=3, sequence=4).signature.inputs[1].shape == (3, 4)
    with pytest.raises(ShapeError, match="no value"):
        import_model(symbolic(), batch=3)
    with pytest.raises(ShapeError, match="No input has a symbolic batch dimension"):
        import_model(zoo.build("resnet50-tiny"), batch=3)


def test_all_contradictions_are_listed_at_once():
    with pytest.raises(ShapeError) as caught:
        import_onnx(
            symbolic(),
            shapes={"input_ids": (2, 5), "attention_mask": (2, 6), "token_type_ids": (2,), "inputs": (1,)},
        )
    text = str(caught.value)
    assert "attention_mask: dimension 1 (sequence_length) is 6 here but 5 elsewhere" in text
    assert "token_type_ids: 1 dimensions given, the model has 2" in text
    assert "there is no input 'inputs'" in text
    assert "input_ids=batch_sizexsequence_length" in text


def test_fixed_dimensions_cannot_change():
    model = zoo.build("resnet50-tiny")
    with pytest.raises(ShapeError, match="dimension 2 is fixed to 32 in the model, not 64"):
        import_onnx(model, shapes={"input": (1, 3, 64, 32)})
    with pytest.raises(ShapeError, match=r"there is no input 'inptu' \(did you mean 'input'\?\)"):
        import_onnx(model, shapes={"inptu": (1, 3, 32, 32)})


@pytest.mark.parametrize("bad", [(0, 5), (-1, 5), (1.0, 5), (True, 5), ("1", 5)])
def test_sizes_are_positive_whole_numbers(bad):
    with pytest.raises(ShapeError, match="whole number of at least 1"):
        import_onnx(symbolic(), shapes={"input_ids": bad})


def test_unknown_rank_and_unnamed_dimensions():
    model = text_model("g (float[?,4] x, float[1] s) => (float y) { y = Add(x, s) }")
    with pytest.raises(ShapeError, match=r"x: dimension 0 of \?x4"):
        import_onnx(model)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ShapeError, match="even the number of dimensions is unknown"):
        import_onnx(model)
    assert import_onnx(model, shapes={"x": (3, 4)}).signature.outputs[0].shape == (3, 4)


def test_stale_output_shapes_do_not_matter():
    model = zoo.build("resnet50-tiny")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    assert import_onnx(model, batch=2).signature.outputs[0].shape == (2, 10)


def test_scalar_inputs():
    model = import_onnx(text_model("g (float x) => (float y) { y = Exp(x) }"))
    assert model.signature.inputs[0].shape == ()


def test_zoo_shapes():
    assert import_model("zoo:minilm-l6-tiny", shapes={"input_ids": (2, 7)}).signature.inputs[2].shape == (
        2,
        7,
    )
    with pytest.raises(ShapeError, match="dimension 2 is fixed to 32 in the model, not 48"):
        import_model("zoo:resnet50-tiny", shapes={"input": (1, 3, 48, 32)})
