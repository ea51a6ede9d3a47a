"""Fused attention: numbers on the emulated GPU, and what the compiled code is made of."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.cuda.attention import CudaAttentionSpace
from hetero_tvm.targets.base import parse_target
from hetero_tvm.targets.cuda import codegen, facts
from tests.schedules.cuda.running import MACHINE, compiled, compiler, emulated  # noqa: F401

SPACE = CudaAttentionSpace()
TOLERANCE = 3 * 2.0**-11
"""Relative to the largest result: the weights are rounded to float16, and so is the result."""


def attention(q_len, kv_len, head_dim=32, heads=2, batch=1, **fields):
    fields = {"kv_heads": heads, "dtype": "float16", **fields}
    return Attention(batch, heads, q_len, kv_len, head_dim, head_dim**-0.5, **fields)


def arrays_of(op, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(x.shape).astype(x.dtype) for x in op.inputs]


def check(cases):
    """(op, point, arrays) triples, compiled as one module, against float64."""
    functions = [SPACE.emit(op, point, MACHINE) for op, point, _ in cases]
    for (op, point, arrays), call in zip(cases, compiled(functions), strict=True):
        truth = op.reference(*(a.astype("float64") for a in arrays))
        (result,) = call(arrays, [np.full(op.output.shape, np.nan, op.dtype)])
        error = np.abs(result.astype("float64") - truth).max() / np.abs(truth).max()
        assert error <= TOLERANCE, f"{op} at {point}: {error:.3g}"


def with_default(op, arrays=None):
    return op, SPACE.default(op, MACHINE), arrays_of(op) if arrays is None else arrays


def test_every_choice(emulated):  # noqa: F811
    op = attention(70, 150)  # queries and keys that fill no block
    warps, keys = SPACE.knobs(op, MACHINE)
    points = [{"warps": w, "keys": keys.choices[0]} for w in warps.choices]
    points += [{"warps": warps.choices[0], "keys": n} for n in keys.choices[1:]]
    check([(op, point, arrays_of(op)) for point in points])


def test_forms(emulated):  # noqa: F811
    packed = attention(40, 40, heads=4, packed=True)
    check(
        [
            with_default(op)
            for op in (
                attention(1, 1), attention(1, 77), attention(17, 5), attention(33, 33, causal=True),
                attention(20, 70, causal=True), attention(12, 12, 16, batch=3), attention(9, 40, 128),
                attention(5, 21, 48), packed, dataclasses.replace(packed, kv_heads=2, causal=True),
                attention(24, 24, heads=4, kv_heads=1), attention(18, 66, mask=(1, 1, 1, 66)),
                attention(20, 20, 32, value_dim=48), attention(30, 50, causal=True, window=7),
                attention(18, 34, softcap=5.0), attention(8, 8, batch=4, mask=(2, 1, 8, 8)),
                # heads before rows, as [B, H, S, D]
                attention(12, 12, 16, tensors=((1, 2, 12, 16),) * 3,
                          places=tuple((i, 0, 384, 192, 16) for i in range(3))),
                attention(18, 34, mask=(1, 2, 18, 34)), attention(18, 34, batch=2, mask=(2, 1, 18, 34)),
            )
        ]
    )  # fmt: skip


def test_masks_of_minus_infinity(emulated):  # noqa: F811
    op = attention(20, 40, mask=(1, 1, 20, 40), zero_masked=True)
    arrays = arrays_of(op)
    hidden = np.random.default_rng(1).random((20, 40)) < 0.5
    hidden[3] = True  # this query sees nothing: its result is zero
    arrays[3] = np.where(hidden, -np.inf, 0).astype("float32")[None, None]
    plain = attention(20, 40, mask=(1, 1, 20, 40))
    largest = [*arrays[:3], np.where(hidden, np.finfo("float32").min, 0).astype("float32")[None, None]]
    truth = plain.reference(*(a.astype("float32") for a in largest))  # in float32, as exporters mean it
    cases = [with_default(op, arrays), with_default(plain, largest)]
    functions = [SPACE.emit(op, point, MACHINE) for op, point, _ in cases]
    zero, mean = compiled(functions)
    blank = [np.full(op.output.shape, np.nan, "float16")]
    with np.errstate(invalid="ignore"):
        expected = op.reference(*(a.astype("float64") for a in arrays))
    (result,) = zero(arrays, blank)
    assert np.abs(result - expected).max() <= TOLERANCE * np.abs(expected).max()
    assert not result[0, 3].any()
    (result,) = mean(largest, blank)
    assert np.abs(result - truth).max() <= TOLERANCE * np.abs(truth).max()


def test_large_scores_do_not_overflow(emulated):  # noqa: F811
    op = attention(16, 48)
    arrays = arrays_of(op)
    arrays[0] *= 100
    check([with_default(op, arrays)])


def test_refusals():
    assert "float32" in SPACE.refuses(attention(8, 8, dtype="float32"), MACHINE)
    assert "head dimension" in SPACE.refuses(attention(8, 8, 20), MACHINE)
    assert "head dimension" in SPACE.refuses(attention(8, 8, 256), MACHINE)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_compiled_code(arch, compiler):  # noqa: F811
    target = parse_target(f"cuda:{arch}")
    ops = [
        attention(2048, 2048, 64, 16, 4, causal=True), attention(2048, 2048, 128, 16, 4, causal=True),
        attention(128, 128, 32, 12, packed=True, mask=(1, 1, 1, 128)),
    ]  # fmt: skip
    functions = [SPACE.emit(op, SPACE.default(op, target.machine), target.machine) for op in ops]
    with codegen.collect() as made:
        compiled(functions, target)
    (module,) = made
    for name, kernel in facts.of_module(module).items():
        assert kernel["stack"] == 0, f"registers of {name} spill"
        assert kernel["registers"] * kernel["threads"] <= 65536 and kernel["occupancy"] > 0
    ptx = compiler.ptx(module.source, arch)
    for instruction in ("mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4.trans", "ex2.approx"):
        assert instruction in ptx
