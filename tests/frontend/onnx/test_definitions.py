"""Operators replaced by their definitions: operands that are left out, and names of what is made."""

import numpy as np

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
