"""Attention in bfloat16: which, which not and why, and what it computes."""

import numpy as np
import pytest

from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.integers.bf16_attention import Bf16Attention
from hetero_tvm.relax_passes.fusions.integers.bf16_attention import RoundAttention
from tests.relax_passes.graphs import calls, contracts, evaluate, fuse, module, names_of, weights
from tests.relax_passes.rewrite import Rewrite, kernel

OP = Attention(2, 2, 5, 7, 4, 0.5, 1)
INPUTS = {operand.name: operand.shape for operand in OP.inputs}


def attention():
    return module(INPUTS, lambda emit, *operands: emit(kernel(OP, *operands)))


def test_numbers():
    after, _, report = fuse(attention(), RoundAttention(lambda op: True))
    assert calls(after) == {"bf16_attention": 1} and not report.misses
    assert contracts(after, "bf16_attention") == [Bf16Attention.of(OP)]
    arrays = [weights(*shape, seed=seed) for seed, shape in enumerate(INPUTS.values())]
    (y,) = evaluate(after, arrays)
    wanted = OP.reference(*(a.astype(np.float64) for a in arrays))
    np.testing.assert_allclose(y, wanted, atol=2**-7 * np.abs(arrays[2]).max())


@pytest.mark.parametrize("pays", [False, True])
def test_misses(pays):
    before = attention()
    (source,) = names_of(before)
    kept = frozenset({source}) if pays else frozenset()
    after, _, report = fuse(before, RoundAttention(lambda op: pays, kept))
    assert calls(after) == {"attention": 1}
    (miss,) = report.misses
    assert miss["reason"] == (f"{source} is kept in float32" if pays else "its float32 kernel is as fast")


class TestRewrite(Rewrite):
    rule = RoundAttention(lambda op: True)
    inputs = INPUTS

    def before(self, *operands):
        return kernel(OP, *operands)

    def expected(self, *operands):
        return kernel(Bf16Attention.of(OP), *operands)
