"""Branches that keep an empty tensor from suppression: what is counted needs none."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import UnsupportedOperatorError
from tests.frontend.onnx.helpers import run_onnxruntime, text_model
from tests.selection import thorough

# As torchvision's detectors are traced: boxes of a score, moved apart by class, and suppressed.
DETECTOR = """
detector (float[6, 4] boxes, float[6] scores) => (int64[k] kept, float[k, 4] found)
<float half = {0.5}, int64 zero = {0}, int64[1] first = {0}, int64[2] both = {0, 1}, int64 two = {2},
 int64[1] most = {5}, float[1] overlap = {0.5}>
{
    good = Greater (scores, half)
    places = NonZero (good)
    rows = Squeeze (places, first)
    some = Gather <axis: int = 0> (boxes, rows)
    shape = Shape (some)
    size = ReduceProd <keepdims: int = 0> (shape)
    none = Equal (size, zero)
    kept = If (none) <
        then_branch: graph = nothing () => (int64[k] empty) { empty = EMPTY },
        else_branch: graph = suppressed () => (int64[k] index) {
            far = ReduceMax <keepdims: int = 0> (some)
            moved = Add (some, far)
            image = Unsqueeze (moved, first)
            of = Gather <axis: int = 0> (scores, rows)
            class = Unsqueeze (of, both)
            chosen = NonMaxSuppression (image, class, most, overlap)
            index = Gather <axis: int = 1> (chosen, two)
        }
    >
    found = Gather <axis: int = 0> (some, kept)
}
"""
EMPTY = "Constant <value: tensor = int64[0] {}> ()"


def boxes():
    corner = np.random.default_rng(0).random((6, 2), np.float32) * 3
    return np.concatenate([corner, corner + 2], 1)


@pytest.mark.parametrize(
    "scores",
    [*thorough([((0.9, 0.1, 0.8, 0.7, 0.2, 0.6),), ((0.9,) * 6,), ((0.1,) * 6,)]), (0.4, 0.6) * 3],
)
def test_boxes_that_are_suppressed(scores):
    model = text_model(DETECTOR.replace("EMPTY", EMPTY))
    inputs = {"boxes": boxes(), "scores": np.array(scores, np.float32)}
    ours = build_model(optimize_model(import_model(model)), use_shipped=False).run(inputs)
    for have, want in zip(ours, run_onnxruntime(model, inputs), strict=False):
        assert have.shape == want.shape and have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=1e-6)


def test_a_branch_that_gives_something_stays():
    model = text_model(DETECTOR.replace("EMPTY", "Constant <value: tensor = int64[1] {0}> ()"))
    with pytest.raises(UnsupportedOperatorError, match=r"\(If\)"):
        import_model(model)
