"""Realistic inputs: ids stay in their tables, masks end in zeros, equal seeds give equal values."""

import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_model
from hetero_tvm.reference import run_sampled, sample_inputs
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough


def test_ids_stay_inside_their_tables_and_masks_end_in_zeros():
    inputs = sample_inputs(import_model("zoo:minilm-l6-tiny", batch=4))
    assert {name: (a.shape, a.dtype.name) for name, a in inputs.items()} == {
        name: ((4, 12), "int64") for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    assert 0 <= inputs["input_ids"].min() and 50 < inputs["input_ids"].max() < 101
    assert set(inputs["token_type_ids"].ravel()) == {0, 1}
    assert (inputs["attention_mask"] == [1] * 11 + [0]).all()


def test_seeds():
    model = import_model("zoo:vit-b16-tiny")
    one, same, other = (sample_inputs(model, seed)["pixel_values"] for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert one.dtype == np.float32 and 0.9 < one.std() < 1.1


def test_masks_by_use_and_other_types():
    source = text_model(
        "g (int64[1,8] keep, bool[16] b, int32[2] n, float[3] f, int64[1,5] position_ids) "
        "=> (float[1,8] y, bool[16] c, int32[2] m, float[3] e, int64[1,5] p) "
        "<float one = {1.0}> { k = Cast<to = 1>(keep) y = Sub(one, k) "
        "c = Not(b) m = Neg(n) e = Exp(f) p = Abs(position_ids) }"
    )
    inputs = sample_inputs(source)
    assert inputs["keep"].tolist() == [[1] * 7 + [0]]
    assert inputs["b"].dtype == bool and 0 < inputs["b"].sum() < 16
    assert inputs["n"].dtype == np.int32
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4]]


def test_symbolic_shapes_are_refused():
    source = text_model("g (float[N] x) => (float[N] y) { y = Exp(x) }")
    with pytest.raises(ModelError, match="'x' has no fixed shape"):
        sample_inputs(source)


def test_an_extent_of_zero_is_fixed():
    source = text_model("g (float[0,3] x, int64[2,0] i) => (float[0,3] y) { y = Exp(x) }")
    assert {name: array.shape for name, array in sample_inputs(source).items()} == {"x": (0, 3), "i": (2, 0)}


def test_boxes_lie_in_images_that_are_there():
    source = text_model(
        "g (float[2,3,9,9] x, float[64,4] boxes, int64[64] images) => (float[64,3,1,1] y) "
        "{ y = RoiAlign(x, boxes, images) }"
    )
    assert set(sample_inputs(source)["images"]) == {0, 1}


@pytest.mark.parametrize("axis", [*thorough([0]), 1])
def test_lengths_of_what_the_import_writes_out(axis):
    """The model's own file still says that they are lengths."""
    source = text_model(
        f"g (float[3,4,2] x, int64[{3 if axis == 1 else 4}] l) => (float[3,4,2] y) "
        f"{{ y = ReverseSequence<batch_axis = {1 - axis}, time_axis = {axis}>(x, l) }}"
    )
    drawn = [sample_inputs(import_model(source), seed)["l"] for seed in range(20)]
    assert 0 <= np.min(drawn) and np.max(drawn) <= (3, 4)[axis]


@pytest.mark.parametrize("shift", ["Add", "Sub"])
def test_indices_behind_arithmetic_are_drawn_until_they_fit(shift):
    source = text_model(
        f"g (int64[6] i) => (float[6] y) <int64 two = {{2}}, float[3] t = {{1, 2, 3}}> "
        f"{{ j = {shift}(i, two) y = Gather(t, j) }}"
    )
    inputs, reference = run_sampled(import_model(source))
    assert inputs["i"].shape == (6,) and np.isfinite(reference.float64[0]).all()


def test_indices_that_never_fit_are_told():
    source = text_model(
        "g (int64[6] i) => (float[6] y) <int64 nine = {9}, float[3] t = {1, 2, 3}> "
        "{ j = Add(i, nine) y = Gather(t, j) }"
    )
    with pytest.raises(ModelError, match="out of bounds"):
        run_sampled(import_model(source))
