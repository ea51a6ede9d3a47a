"""Attention of bfloat16 of any length: masks of every shape, causality, windows, heads of odd widths."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.integers.bf16_attention import Bf16Attention
from hetero_tvm.schedules.cpu.halves.attention import Bf16AttentionSpace, rounding_pays
from hetero_tvm.schedules.cpu.symbolic import kernels
from hetero_tvm.schedules.symbolic import Witnesses
from tests.schedules.cpu.halves.test_attention import MACHINE, TOLERANCE, multiplies
from tests.schedules.cpu.running import TARGET, UNWRITTEN
from tests.schedules.cpu.symbolic.helpers import check, witnesses_of
from tests.schedules.representatives import CPU, TILES
from tests.selection import thorough

SPACE = Bf16AttentionSpace()


@multiplies
@pytest.mark.parametrize("block", [0, 32])
@pytest.mark.parametrize(
    ("dim", "kv_heads", "rows", "mask", "options"),
    [
        (20, 2, 32, lambda b, s: (b, 1, 1, s), {}),
        (16, 4, 16, None, {"packed": True, "causal": True}),
        *thorough(
            [
                (64, 4, 32, None, {"value_dim": 40}),
                (16, 4, 32, lambda b, s: (1, 1, s, s), {"packed": True}),
                (33, 1, 16, lambda b, s: (b, 4, s, s), {"zero_masked": True, "softcap": 5.0}),
                (16, 4, 32, lambda b, s: (1, 1, s, 1), {"causal": True, "window": 9}),
            ]
        ),
    ],
)
def test_attention_of_any_length(block, dim, kv_heads, rows, mask, options):
    def make(b, s):
        shape = mask(b, s) if mask else ()
        op = Attention(b, 4, s, s, dim, dim**-0.5, kv_heads, mask=shape, **options)
        return Bf16Attention.of(op)

    witnesses = witnesses_of(make)
    for pieces in (1, 2):
        point = {"rows": rows, "pieces": pieces, "block": block}
        check(make, kernels.emit(witnesses, SPACE, point, MACHINE), tolerance=TOLERANCE)


@multiplies
@pytest.mark.parametrize("block", [0, 32])
def test_a_sum_over_no_keys_is_zero(block):
    sizes = ({"q": 40, "k": 64}, {"q": 40, "k": 51}, {"q": 33, "k": 64})
    ops = [Bf16Attention.of(Attention(1, 2, s["q"], s["k"], 16, 0.25, 2)) for s in sizes]
    point = {"rows": 32, "pieces": 1, "block": block}
    function = kernels.emit(Witnesses(tuple(ops), sizes), SPACE, point, MACHINE)
    run = compile_kernels(function, TARGET).jit()["main"]
    q, none = np.ones((1, 21, 32), "float32"), np.ones((1, 0, 32), "float32")
    result = tvm.runtime.tensor(np.full(q.shape, UNWRITTEN, "float32"))
    run(*(tvm.runtime.tensor(array) for array in (q, none, none)), result)
    np.testing.assert_array_equal(result.numpy(), 0)


def test_one_query_of_a_decoder_stays_in_float32():
    op = Attention(1, 12, 40, 40, 64, 0.125, 12)
    assert rounding_pays(op, TILES, any_rows=True) and not rounding_pays(op, CPU, any_rows=True)
    assert not rounding_pays(Attention(1, 12, 1, 40, 64, 0.125, 12), TILES, any_rows=True)
