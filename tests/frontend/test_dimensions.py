"""Dimensions by name: one stands for all inputs that share it, sums follow, the rest is told."""

import numpy as np
import pytest

from hetero_tvm.errors import ShapeError, UsageError
from hetero_tvm.frontend import Span, import_model, parse_shape_option
from hetero_tvm.frontend.dimensions import Sum, named
from tests.frontend.onnx.helpers import text_model

DECODER = {
    "input_ids": ["batch", "sequence"],
    "attention_mask": ["batch", "total"],
    "past.0": ["batch", 2, "past", 16],
    "past.1": ["batch", 2, "past", 16],
}
PAST, SEQUENCE = Span(0, 64), Span(1, 8)


def test_a_dimension_is_given_once_for_all_inputs():
    found = named({"batch": (1,), "sequence": (SEQUENCE,), "past": (PAST,)}, DECODER)
    assert found == {
        "input_ids": (1, SEQUENCE),
        "attention_mask": (1, Sum(("past", "sequence"))),
        "past.0": (1, 2, PAST, 16),
        "past.1": (1, 2, PAST, 16),
    }
    assert found["attention_mask"][1].at({"past": 5, "sequence": 3}) == 8


def test_what_an_input_is_given_holds_for_its_names():
    found = named({"input_ids": (1, 1), "past.0": (1, 2, PAST, 16)}, DECODER)
    assert found["past.1"] == (1, 2, PAST, 16)
    assert found["attention_mask"] == (1, Sum(("past",), 1))
    assert str(found["attention_mask"][1]) == "past + 1"


def test_a_name_that_is_a_sum_follows():
    declared = {"x": ["rows"], "y": ["rows + 1"], "z": ["rows+rows"]}
    found = named({"rows": (SEQUENCE,)}, declared)
    assert found == {"x": (SEQUENCE,), "y": (Sum(("rows",), 1),), "z": (Sum(("rows", "rows")),)}
    assert named({"x": (4,)}, declared) == {"x": (4,), "y": (5,), "z": (8,)}


def test_a_sum_in_words_is_one():
    found = named({"input_ids": (1, SEQUENCE), "past": (PAST,), "attention_mask": (1, "past + 3")}, DECODER)
    assert found["attention_mask"] == (1, Sum(("past",), 3))


def test_what_is_given_is_used_or_told():
    with pytest.raises(ShapeError, match="past is given, and past.0 needs batch too; past.1 needs batch too"):
        named({"past": (PAST,)}, DECODER)
    with pytest.raises(ShapeError, match="sequence is 5 here, and 1..8 by its name"):
        named({"sequence": (SEQUENCE,), "input_ids": (1, 5)}, DECODER)
    with pytest.raises(ShapeError, match="0 is no size"):
        named({"x": (0, 3)}, {"x": ["n", "m"]})
    declared = {"x": ["batch", "seq"], "p": ["batch", "past"], "mask": ["past + seq"]}
    with pytest.raises(ShapeError, match="seq is given, and x needs batch too"):
        named({"seq": (SEQUENCE,), "past": (PAST,)}, declared)
    found = named({"seq": (SEQUENCE,), "past": (PAST,)}, declared, batch=2)
    assert found == {"x": (2, SEQUENCE), "p": (2, PAST), "mask": (Sum(("past", "seq")),)}
    assert named({"x": (3,)}, {"x": [None]}) == {"x": (3,)}


def test_a_range_of_ones_own_is_not_replaced_by_a_guess():
    declared = {"x": ["seq_len"], "p": ["past_days"], "m": ["total_features"]}
    given = {"x": (SEQUENCE,), "p": (Span(1, 9),), "m": (Span(1, 100),)}
    assert named(given, declared) == given


def test_names_with_spaces_are_names():
    found = named({"seq len": (SEQUENCE,)}, {"x": ["seq len"], "y": ["seq len + 1"]})
    assert found == {"x": (SEQUENCE,), "y": (Sum(("seq_len",), 1),)}


@pytest.mark.parametrize("low, high", [(5, 2), (-3, 8), ("1", "8"), (0, 0), (1.5, 2), (True, 4)])
def test_what_is_no_range_is_refused(low, high):
    with pytest.raises(UsageError, match="no range of sizes"):
        Span(low, high)


def test_wrong_shapes_are_refused_before_a_source_is_read():
    for shapes in ({"x": ("1", 3)}, {"x": (True,)}, {"x": "1x3"}, {"x": (1.5,)}):
        with pytest.raises(UsageError, match="list of whole numbers"):
            import_model("nowhere.onnx", shapes=shapes)
    with pytest.raises(UsageError, match="A model is"):
        import_model(5, shapes={"x": ("a",)})
    with pytest.raises(UsageError, match="models of the zoo take batch"):
        import_model("zoo:minilm-l6-tiny", shapes={"batch": (Span(1, 4),)})
    text = "add (float[n, m] x) => (float[n, m] y) { y = Relu(x) }"
    model = import_model(text_model(text), shapes={"x": (np.int64(2), np.int32(3))})
    assert model.signature.inputs[0].shape == (2, 3)


def test_names_that_are_none_are_listed():
    with pytest.raises(ShapeError) as caught:
        named({"passed": (PAST,), "input_ids": (1, "nothing + 1"), "batch": ("x",)}, DECODER)
    text = str(caught.value)
    assert "passed is neither an input nor a dimension: did you mean 'past'" in text
    assert "'nothing + 1' is no sum" in text and "batch: 'x' is no size" in text
    assert "batch, past, sequence, total" in text


def test_options_have_sums_and_empty_pasts():
    assert parse_shape_option("past=0..64") == ("past", (Span(0, 64),))
    assert parse_shape_option("mask=1xpast+sequence") == ("mask", (1, "past+sequence"))
    assert parse_shape_option("mask=[batch, past + 1]") == ("mask", ("batch", "past + 1"))
    assert parse_shape_option("mask=1xmax_past+seq") == ("mask", (1, "max_past+seq"))
    assert parse_shape_option("x=[1x128]") == parse_shape_option("x=1 x 128") == ("x", (1, 128))
    assert parse_shape_option("x=?X?x1..8x4") == ("x", (Span(), Span(), Span(1, 8), 4))
    for wrong in ("x=1xq", "x=0", "x=3..1", "x=0..0", "x=[1,,2]"):
        with pytest.raises(UsageError):
            parse_shape_option(wrong)


def test_fixed_sizes_by_name_need_no_range():
    text = "add (float[n, m] x, float[n, m] y) => (float[n, m] z) { z = Add(x, y) }"
    model = import_model(text_model(text), shapes={"n": (2,), "m": (3,)})
    assert [spec.shape for spec in model.signature.inputs] == [(2, 3), (2, 3)]
    assert model.open is None


def test_an_inputs_own_names_may_be_spelled():
    declared = {"x": ("batch", 8, "t"), "mask": ("batch", "length")}
    shapes = {"batch": (Span(1, 4),), "t": (Span(2, 9),), "x": ("batch", 8, " t"), "mask": ("batch", "t")}
    found = named(shapes, declared)
    assert found["x"] == (Span(1, 4), 8, Span(2, 9))
    assert found["mask"] == (Span(1, 4), Sum(("t",)))
    text = "f (float[batch, t] x) => (float[batch, t] y) { y = Relu(x) }"
    model = import_model(text_model(text), shapes={"batch": (Span(1, 4),), "t": (3,), "x": ("batch", "t")})
    assert str(model.open.symbols[0]) == "batch = 1..4"


def test_a_name_that_only_stands_for_another_tells_nothing():
    declared = {"x": ("n",), "y": ("m",)}
    with pytest.raises(ShapeError, match="x: n \\+ 1 needs n"):
        named({"n": (Span(1, 4),), "x": ("n+1",), "y": (4,)}, declared)
