"""Attention of any length: masks of every shape, causality, windows, grouped heads, heads of odd widths."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.cpu.attention.space import AttentionSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import MACHINES, TARGET
from tests.schedules.cpu.symbolic.helpers import check, witnesses_of

SWEEP = pytest.mark.exhaustive
AVX2 = MACHINES["avx2"]
SPACE = AttentionSpace()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dim", "kv_heads", "mask", "options"),
    [
        (20, 2, lambda b, s: (b, 1, 1, s), {}),
        pytest.param(16, 4, None, {"packed": True, "causal": True}, marks=SWEEP),
        pytest.param(16, 4, lambda b, s: (1, 1, s, s), {"packed": True}, marks=SWEEP),
        pytest.param(16, 4, lambda b, s: (b, 4, s, s), {"zero_masked": True, "softcap": 5.0}, marks=SWEEP),
        pytest.param(16, 4, lambda b, s: (1, 1, s, 1), {"causal": True, "window": 9}, marks=SWEEP),
    ],
)
def test_attention_of_any_length(dim, kv_heads, mask, options):
    def make(b, s):
        shape = mask(b, s) if mask else ()
        return Attention(b, 4, s, s, dim, dim**-0.5, kv_heads, mask=shape, **options)

    witnesses = witnesses_of(make)
    point = SPACE.default(witnesses.largest, AVX2)
    check(make, kernels.emit(witnesses, SPACE, point, AVX2))


@pytest.mark.parametrize("block", [8, 24])
@pytest.mark.parametrize(
    ("mask", "options"),
    [
        (lambda b, s: (b, 1, 1, s), {}),
        (None, {"packed": True, "causal": True}),
        pytest.param(lambda b, s: (1, 1, s, s), {"packed": True, "causal": True, "window": 5}, marks=SWEEP),
        pytest.param(None, {"causal": True, "window": 9, "softcap": 5.0, "zero_masked": True}, marks=SWEEP),
    ],
)
def test_keys_in_blocks(block, mask, options):
    def make(b, s):
        shape = mask(b, s) if mask else ()
        return Attention(b, 2, s, s, 20, 0.3, 2, mask=shape, **options)

    witnesses = witnesses_of(make)
    point = {**SPACE.default(witnesses.largest, AVX2), "tile": (4, 1), "pieces": 2, "block": block}
    check(make, kernels.emit(witnesses, SPACE, point, AVX2))


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("block", [0, 16])
def test_attention_to_no_keys_is_zero(queries, block):
    witnesses = witnesses_of(lambda b, s: Attention(b, 2, queries, s, 16, 0.25, 2))
    point = {**SPACE.default(witnesses.largest, AVX2), "tile": (4, 1), "block": block}
    kernel = kernels.emit(witnesses, SPACE, point, AVX2)
    run = compile_kernels(kernel, TARGET).jit()["main"]
    ones = [np.ones(shape, "float32") for shape in ((2, queries, 32), (2, 0, 32), (2, 0, 32))]
    result = tvm.runtime.tensor(np.full((2, queries, 32), 7.0, "float32"))
    run(*map(tvm.runtime.tensor, ones), result)
    assert not result.numpy().any()


@pytest.mark.parametrize("queries", [1, 7])
@pytest.mark.parametrize("option", ["zero_by_mask", "replaced"])
def test_hidden_scores_do_not_matter(queries, option):
    """A query whose mask hides all keys is zero, and a score that a mask replaces may be NaN."""

    def make(b, s):
        options = {"zero_masked": option == "zero_by_mask", option: True}
        return Attention(b, 2, queries, s, 16, 0.25, 2, mask=(b, 1, queries, s), **options)

    witnesses = witnesses_of(make)
    kernel = kernels.emit(witnesses, SPACE, SPACE.default(witnesses.largest, AVX2), AVX2)
    run = compile_kernels(kernel, TARGET).jit()["main"]
    for keys in (1, 5, 37):
        op = make(2, keys)
        query, key, value, mask = sample_inputs(op)
        mask[:] = 0
        if option == "zero_by_mask":
            mask[1, 0, 0], query[1, 0] = -np.inf, np.inf
        elif keys > 1:
            mask[1, ..., -1], key[1, -1] = -np.inf, np.nan
        with np.errstate(invalid="ignore"):
            truth = op.reference(query, key, value, mask)
        assert np.isfinite(truth).all()
        result = tvm.runtime.tensor(np.full(op.output.shape, 7.0, "float32"))
        run(*map(tvm.runtime.tensor, (query, key, value, mask)), result)
        np.testing.assert_allclose(result.numpy(), truth, atol=1e-5)


@pytest.mark.thorough
def test_keys_whose_rows_are_a_batch_apart():
    """[S, B, H * D], as PyTorch's multi-head attention has them: the stride is known at the call."""

    def make(b, s):
        width = 2 * 16
        places = tuple((n, 0, width, 16, b * width) for n in range(3))
        return Attention(b, 2, s, s, 16, 0.25, 2, tensors=((s, b, width),) * 3, places=places)

    witnesses = witnesses_of(make)
    point = SPACE.default(witnesses.largest, AVX2)
    check(make, kernels.emit(witnesses, SPACE, point, AVX2))


@pytest.mark.thorough
def test_the_batch_among_the_heads():
    """One batch of ``b`` heads, each with a mask of its own, as scores by relative distance have it."""

    def make(b, s):
        return Attention(1, b, s, s, 16, 0.25, b, mask=(1, b, s, s))

    witnesses = witnesses_of(make)
    point = SPACE.default(witnesses.largest, AVX2)
    check(make, kernels.emit(witnesses, SPACE, point, AVX2))


@pytest.mark.exhaustive
@pytest.mark.parametrize("pieces", [2, 4])
def test_the_queries_of_a_head_may_be_shared_out(pieces):
    def make(b, s):
        return Attention(b, 1, s, s, 24, 0.3, 1, packed=True)

    witnesses = witnesses_of(make)
    point = {**SPACE.default(witnesses.largest, AVX2), "pieces": pieces}
    check(make, kernels.emit(witnesses, SPACE, point, AVX2))
