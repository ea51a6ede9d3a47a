"""Inputs of a library alone: sizes that the user names, and arrays that the user gives."""

import numpy as np
import pytest

from hetero_tvm.benchmarking.subject import Sizes, _fixed, _plain_inputs, _shaped_like
from hetero_tvm.errors import UsageError
from hetero_tvm.runtime import Signature, TensorSpec

OPEN = Signature((TensorSpec("ids", ("batch", "seq_len"), "int64"), TensorSpec("x", (2, 4), "float32")), ())


def test_open_dimensions_take_the_sizes_of_their_roles():
    fixed = _fixed(OPEN, Sizes(batch=3, sequence=7))
    assert [spec.shape for spec in fixed.inputs] == [(3, 7), (2, 4)]
    assert _plain_inputs(fixed)["ids"].shape == (3, 7)
    assert _fixed(OPEN, Sizes({"ids": (1, 9)})).inputs[0].shape == (1, 9)


def test_all_that_does_not_fit_is_told_at_once():
    with pytest.raises(UsageError) as caught:
        _fixed(OPEN, Sizes({"y": (1,), "x": (3, 4)}, batch=3))
    text = str(caught.value)
    assert "there is no input 'y'" in text and "x is [2, 4] in the library, not [3, 4]" in text
    assert "ids: how large is 'seq_len'?" in text


def test_given_arrays_fix_what_is_open():
    arrays = {"ids": np.ones((5, 6), "int64"), "x": np.ones((1, 1), "float32")}
    assert [spec.shape for spec in _shaped_like(OPEN, arrays).inputs] == [(5, 6), (2, 4)]
