"""Operators replaced by their definitions: operands that are left out, and names of what is made."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.errors import LibraryError, ModelError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import against_reference, text_model


def test_attention_with_past_and_without_a_mask():
    model = text_model(
        """g (float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v, float[1,2,2,4] pk, float[1,2,2,4] pv)
           => (float[1,2,3,4] y, float[1,2,5,4] nk, float[1,2,5,4] nv) {
          y, nk, nv = Attention <is_causal = 1> (q, k, v, "", pk, pv)
        }""",
        "attend",
        opset=23,
        ir=10,
    )
    random = np.random.default_rng(0)
    shapes = {"q": 3, "k": 3, "v": 3, "pk": 2, "pv": 2}
    inputs = {name: random.standard_normal((1, 2, n, 4), np.float32) for name, n in shapes.items()}
    imported = against_reference(model, inputs)
    assert {node.name.split("/")[0] for node in imported.onnx_model.graph.node} == {"attend"}


@pytest.mark.parametrize("labels", [4, 1])
def test_losses_of_other_labels_than_scores(labels):
    """ONNX's definition reads the first ones, or foreign memory."""
    source = text_model(
        f"g (float[2,5] x, int64[{labels}] t) => (float y) {{ y = SoftmaxCrossEntropyLoss(x, t) }}", opset=18
    )
    with pytest.raises(ModelError, match="labels of shape"):
        import_onnx(source)


def test_numbers_of_keys_lie_within_the_keys():
    source = text_model(
        """g (float[2,1,3,4] q, float[2,1,5,4] k, float[2,1,5,4] v, int64[2] n) => (float[2,1,3,4] y) {
          y = Attention(q, k, v, "", "", "", n)
        }""",
        "attend",
        opset=24,
        ir=10,
    )
    built = build_model(optimize_model(import_onnx(source)), use_shipped=False)
    random = np.random.default_rng(0)
    given = {
        name: random.standard_normal((2, 1, n, 4), np.float32)
        for name, n in zip("qkv", (3, 5, 5), strict=True)
    }
    (y,) = built.run(given | {"n": np.array([5, 2])})
    np.testing.assert_allclose(y[1], built.run(given | {"n": np.array([2, 2])})[0][1])
    for wrong in (6, -1, 2**40):
        with pytest.raises(LibraryError, match="attend: n must lie between 0 and the number of keys"):
            built.run(given | {"n": np.array([5, wrong])})
