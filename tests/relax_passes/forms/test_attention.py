"""Attention as an operator: the same numbers from its products."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.forms.attention import AttentionAsProducts
from tests.relax_passes.compiled import floats, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, bind

Q, K, V = floats(2, 5, 3, 8), floats(2, 7, 3, 8), floats(2, 7, 3, 4)
CASES = {
    "plain": ((Q, K, V), {}),
    "scaled": ((Q, K, V), {"scale": 0.1}),
    "bias": ((Q, K, V, floats(2, 3, 5, 7)), {}),
    "bias of all": ((Q, K, V, floats(1, 1, 5, 7)), {"scale": 0.3}),
    "causal from the first": ((Q, K, V), {"causal_mask": "TopLeft"}),
    "causal from the last": ((Q, K, V), {"causal_mask": "BottomRight"}),
}


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.thorough
@pytest.mark.parametrize("arrays, attributes", CASES.values(), ids=CASES.keys())
def test_the_numbers_are_those_of_attention(arrays, attributes):
    def build(q, k, v, bias=None):
        return relax.op.nn.attention(q, k, v, bias, **attributes)

    after, report = rewritten(build, arrays, [AttentionAsProducts()])
    assert report.misses == [] and "R.nn.attention" not in after.script(show_meta=False)
    q, k, v, *bias = (a.astype("float64") for a in arrays)
    scores = np.einsum("bshd,bthd->bhst", q, k) * attributes.get("scale", 8**-0.5)
    scores = sum(bias, scores)
    if "causal_mask" in attributes:
        scores = np.where(np.tri(5, 7, 2 * (attributes["causal_mask"] == "BottomRight")), scores, -np.inf)
    wanted = np.einsum("bhst,bthd->bshd", softmax(scores), v)
    np.testing.assert_allclose(result(after, arrays), wanted, rtol=1e-5, atol=1e-5)


class TestAttentionAsProducts(Rewrite):
    rule = AttentionAsProducts()
    inputs = {"q": (2, 5, 3, 8), "k": (2, 7, 3, 8), "v": (2, 7, 3, 4)}

    def before(self, q, k, v):
        return op.nn.attention(q, k, v, scale=0.5)

    def expected(self, q, k, v):
        query, key = bind(op.permute_dims(q, [0, 2, 1, 3])), bind(op.permute_dims(k, [0, 2, 3, 1]))
        value = bind(op.permute_dims(v, [0, 2, 1, 3]))
        weights = op.nn.softmax(op.multiply(op.matmul(query, key), constant(0.5)), -1)
        return op.permute_dims(op.matmul(weights, value), [0, 2, 1, 3])
