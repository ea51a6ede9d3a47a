"""Dimensions by name: one stands for all inputs that share it, sums follow, the rest is told."""

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


def test_inputs_that_not_all_is_known_of_are_left_to_the_importer():
    assert named({"past": (PAST,)}, DECODER) == {}
    assert named({"x": (3,)}, {"x": [None]}) == {"x": (3,)}


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
    for wrong in ("x=1xq", "x=0", "x=3..1", "x=0..0", "x=[1,,2]"):
        with pytest.raises(UsageError):
            parse_shape_option(wrong)


def test_fixed_sizes_by_name_need_no_range():
    text = "add (float[n, m] x, float[n, m] y) => (float[n, m] z) { z = Add(x, y) }"
    model = import_model(text_model(text), shapes={"n": (2,), "m": (3,)})
    assert [spec.shape for spec in model.signature.inputs] == [(2, 3), (2, 3)]
    assert model.open is None
