"""Names, shapes and dtypes of a model's ends."""

import json

import numpy as np
import pytest

from hetero_tvm.runtime import Signature, TensorSpec
from hetero_tvm.runtime.signature import Symbol, size_of

IDS = TensorSpec("ids", ("batch", 128), "int64")
STATES = TensorSpec("states", (1, 128, 8), "bfloat16")


def test_text():
    signature = Signature((IDS, STATES), (TensorSpec("y", (), "float32"),))
    assert str(signature) == "(ids: int64[batch, 128], states: bfloat16[1, 128, 8]) -> (y: float32[])"


def test_json_round_trip():
    for spec in (IDS, STATES):
        assert TensorSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_open_dimensions():
    assert STATES.static and not IDS.static and TensorSpec("y", (), "float32").static


def test_what_does_not_count_is_cut_off():
    rows = TensorSpec("rows", (5, 2), "float32", ((0, 2),))
    signature = Signature((), (rows, TensorSpec("y", (3,), "int64"), TensorSpec("rows_count", (), "int64")))
    assert str(rows) == "rows: float32[0..5, 2]"
    assert TensorSpec.from_json(rows.to_json()) == rows
    assert [spec.name for spec in signature.results] == ["rows", "y"]
    table = np.arange(10, dtype="float32").reshape(5, 2)
    kept, y = signature.trimmed([table, np.arange(3), np.array(2)])
    np.testing.assert_array_equal(kept, table[:2])
    assert kept.base is None and y.shape == (3,)


def test_a_dimension_is_worked_out():
    sizes = {"past": 5, "batch": 3}
    for text, size in (("past", 5), ("past + 1", 6), ("2*batch*past - batch + 4", 31), ("-batch + 7", 4)):
        assert size_of(text, sizes) == size
    assert size_of(9, sizes) == 9
    with pytest.raises(KeyError):
        size_of("rows", sizes)


def test_a_sum_must_be_what_the_others_make_it():
    signature = Signature(
        (TensorSpec("x", ("past", 2), "float32"), TensorSpec("mask", ("past + 1",), "float32")),
        (),
        (Symbol("past", 0, 9),),
    )
    assert signature.misfits({"x": (4, 2), "mask": (5,)}) == []
    (problem,) = signature.misfits({"x": (4, 2), "mask": (4,)})
    assert problem == "mask: dimension 0 (past + 1) is 4, and must be 5"
    (problem,) = signature.misfits({"x": (10, 2), "mask": (4,)})
    assert "outside 0..9" in problem
