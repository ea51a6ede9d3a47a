"""Inputs on which a new library is compared with its graph."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hetero_tvm.errors import AccuracyError
from hetero_tvm.reference import Reference, compare
from hetero_tvm.torch.compiling import _check


class Built:
    """A library that gives NaN on drawn values, where its reference is ``drawn``; right on given ones."""

    def __init__(self, drawn):
        self.drawn, self.accuracy, self.given = drawn, None, []
        self.optimized = SimpleNamespace(signature=SimpleNamespace(inputs=[SimpleNamespace(name="x")]))

    def check(self, *, inputs=None):
        if inputs is not None:
            self.given.append(inputs)
            return
        reference = (np.full(2, self.drawn),)
        self.accuracy = compare([np.array([np.nan, 1.0])], Reference(reference, reference, "onnxruntime"))
        raise AccuracyError("beyond the tolerance")


def test_values_of_a_call_are_taken_where_the_reference_is_not_finite():
    built = Built(np.inf)
    _check(built, {"x": torch.ones(2)})
    assert len(built.given) == 1


@pytest.mark.parametrize("drawn, sample", [(1.0, {"x": torch.ones(2)}), (np.inf, {})])
def test_faults_on_drawn_values_are_raised(drawn, sample):
    with pytest.raises(AccuracyError):
        _check(Built(drawn), sample)


def test_integers_are_those_of_a_call():
    built = Built(np.inf)
    _check(built, {"x": torch.ones(2, dtype=torch.int64)})
    assert built.accuracy is None and len(built.given) == 1
