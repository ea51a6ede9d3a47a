"""Inputs of a library alone: sizes that the user names, and arrays that the user gives."""

import numpy as np
import pytest

from hetero_tvm import Span
from hetero_tvm.benchmarking.runtimes import PEERS
from hetero_tvm.benchmarking.subject import (
    Sizes,
    _at_sizes_of,
    _fixed,
    _plain_inputs,
    _shaped_like,
    choose_runtimes,
)
from hetero_tvm.errors import UsageError
from hetero_tvm.runtime import Signature, TensorSpec
from hetero_tvm.runtime.signature import Symbol

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


def test_a_range_is_told_with_the_option_that_fixes_it():
    ranged = Signature((TensorSpec("x", ("batch", 64), "float32"),), (), (Symbol("batch", 1, 8),))
    with pytest.raises(UsageError, match=r"for batch = 1\.\.8; .* --shape x=8x64"):
        _fixed(ranged, Sizes())
    with pytest.raises(UsageError, match=r"x: batch is 9, outside 1\.\.8"):
        _fixed(ranged, Sizes({"x": (9, 64)}))
    assert _fixed(ranged, Sizes({"x": (8, 64)})).inputs[0].shape == (8, 64)


def test_a_library_of_all_sizes_is_compared_at_those_of_the_model():
    symbols = (Symbol("batch", 1, 8),)
    ranged = Signature((TensorSpec("x", ("batch", 64), "float32"),), (), symbols)
    at = _at_sizes_of(ranged, Signature((TensorSpec("x", (3, 64), "float32"),), ()))
    assert at.inputs[0].shape == (3, 64)
    with pytest.raises(UsageError, match=r"x: batch is 9, outside 1\.\.8"):
        _at_sizes_of(ranged, Signature((TensorSpec("x", (9, 64), "float32"),), ()))
    assert _at_sizes_of(ranged, ranged) is ranged
    assert _at_sizes_of(ranged, Signature((TensorSpec("y", (3, 64), "float32"),), ())) is ranged


def test_peers_are_asked_once_however_they_are_named():
    names, absent = choose_runtimes(
        ["torch", "torch.compile", "ort", "onnxruntime", "openvino"], PEERS, lambda name: name != "openvino"
    )
    assert names == ["torch", "torch.compile", "onnxruntime"] and absent == ["openvino"]
    with pytest.raises(UsageError, match="did you mean 'openvino'"):
        choose_runtimes(["openvno"], PEERS, lambda name: True)


def test_given_arrays_fix_what_is_open():
    arrays = {"ids": np.ones((5, 6), "int64"), "x": np.ones((1, 1), "float32")}
    assert [spec.shape for spec in _shaped_like(OPEN, arrays).inputs] == [(5, 6), (2, 4)]


def test_sums_follow_from_what_is_given():
    signature = Signature(
        (
            TensorSpec("ids", ("batch", "sequence"), "int64"),
            TensorSpec("mask", ("batch", "past + sequence"), "int64"),
            TensorSpec("past_0", ("batch", "past", 8), "float32"),
        ),
        (),
        (Symbol("batch", 1, 4), Symbol("sequence", 1, 8), Symbol("past", 0, 64)),
    )
    fixed = _fixed(signature, Sizes({"past": (16,)}, batch=2, sequence=4))
    assert [spec.shape for spec in fixed.inputs] == [(2, 4), (2, 20), (2, 16, 8)]
    fixed = _fixed(signature, Sizes({"ids": (1, 3), "past_0": (1, 5, 8)}))
    assert fixed.inputs[1].shape == (1, 8)
    with pytest.raises(UsageError, match="how large is 'past'"):
        _fixed(signature, Sizes({}, batch=2, sequence=4))
    with pytest.raises(UsageError, match=r"past: 1\.\.4 is no size"):
        _fixed(signature, Sizes({"past": (Span(1, 4),)}, batch=2, sequence=4))
