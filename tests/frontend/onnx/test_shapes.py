"""Input shapes: given, bound through symbols, missing, contradictory."""

import re

import numpy as np
import pytest

from hetero_tvm import zoo
from hetero_tvm.errors import ShapeError
from hetero_tvm.frontend import import_model, import_onnx
from tests.frontend.onnx.helpers import run_tvm, text_model


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
    # What the file says already is no mistake.
    fixed = zoo.build("minilm-l6-tiny", batch=2, sequence=16)
    assert import_model(fixed, batch=2, sequence=16).signature.inputs[1].shape == (2, 16)
    with pytest.raises(ShapeError, match="No input has a symbolic sequence"):
        import_model(fixed, batch=2, sequence=8)


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


def cached():
    """A model with a cache: keys of past and new steps have one mask."""
    model = text_model(
        """g (int64[batch,seq] ids, int64[batch,total] mask, float[batch,4,past,8] keys,
              float[seq,batch] back)
           => (float y) { y = Constant <value = float {0}> () }"""
    )
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "past + seq"
    return model


def test_one_size_fixes_what_it_implies():
    given = {"ids": (2, 3), "keys": (2, 4, 5, 8)}
    inputs = import_onnx(cached(), shapes=given).signature.inputs
    assert [spec.shape for spec in inputs] == [(2, 3), (2, 8), (2, 4, 5, 8), (3, 2)]
    with pytest.raises(ShapeError, match=r"mask: dimension 1 \(past \+ seq\) is 9 here but 8 by its symbols"):
        import_onnx(cached(), shapes={**given, "mask": (2, 9)})


@pytest.mark.parametrize("given", [{}, {"ids": (2, 3)}, {"keys": (4, 4, 7, 8)}])
def test_suggested_shapes_agree_with_each_other(given):
    with pytest.raises(ShapeError) as caught:
        import_onnx(cached(), shapes=given)
    options = re.findall(r"--shape (\w+)=([\dx]+)", str(caught.value).partition("; or")[0])
    suggested = {name: tuple(map(int, sizes.split("x"))) for name, sizes in options}
    assert suggested
    import_onnx(cached(), shapes={**given, **suggested})


def test_inputs_without_elements():
    model = text_model(
        """g (float[0,3] x, float[2] z) => (float[1,3] y, float[2] w) {
          axis = Constant <value = int64[1] {0}> ()
          y = ReduceSum (x, axis)
          w = Exp (z)
        }"""
    )
    imported = import_onnx(model)
    assert [spec.shape for spec in imported.signature.inputs] == [(0, 3), (2,)]
    empty, z = np.zeros((0, 3), np.float32), np.zeros(2, np.float32)
    sums, powers = run_tvm(imported, {"x": empty, "z": z})
    np.testing.assert_array_equal(sums, np.zeros((1, 3)))
    np.testing.assert_array_equal(powers, np.ones(2))


CACHED = """g (
    float[b,t,8] q, float[b,p,8] past, float[b,t,total] mask, float[c,?,8] other
) => (float[b,t,8] y) {
    keys = Concat<axis = 1>(past, q)
    turned = Transpose<perm = [0, 2, 1]>(keys)
    scores = MatMul(q, turned)
    masked = Add(scores, mask)
    weights = Softmax(masked)
    own = MatMul(weights, keys)
    y = Add(own, other)
}"""


@pytest.mark.parametrize(
    "given, told",
    [
        ({}, ["q=1x128x8", "past=1x128x8", "mask=1x128x256", "other=1x128x8"]),
        ({"q": (2, 3, 8), "past": (2, 4, 8)}, ["mask=2x3x7", "other=1x3x8"]),
        ({"q": (2, 3, 8), "past": (2, 4, 8), "other": (2, 3, 8)}, ["mask=2x3x7"]),
    ],
)
def test_suggested_sizes_fit_together(given, told):
    with pytest.raises(ShapeError) as caught:
        import_onnx(text_model(CACHED, opset=17), shapes=given)
    assert caught.value.hint.startswith(f"Add {' '.join(f'--shape {text}' for text in told)} (with")
