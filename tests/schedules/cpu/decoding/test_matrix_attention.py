"""Attention of prompts in tiles of bfloat16 against NumPy in float64."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import KEYS, CachedAttention, Growth, Heads
from hetero_tvm.schedules.cpu.decoding.attention import emit_attention
from hetero_tvm.schedules.cpu.decoding.kernels import DecoderKernels
from hetero_tvm.schedules.cpu.decoding.matrix_attention import takes_prompts
from hetero_tvm.targets.registry import parse_target
from tests.schedules.cpu.running import MACHINES

TILES = CpuModel(
    "sapphirerapids",
    ("avx512bw", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"),
    lanes=16,
    registers=32,
    threads=2,
)
TARGET = parse_target("cpu")
needs_tiles = pytest.mark.skipif(
    not TARGET.machine.has_tiles("amx_bf16"), reason="this machine has no tiles of bfloat16 (AMX)"
)


def of(heads, kv_heads, dim, page=16, **more):
    return Heads(heads, kv_heads, dim, layers=1, page=page, **more)


CASES = {
    "one text": (of(8, 2, 64), (100,), (0,), {}),
    "several blocks, texts, and a single row": (of(4, 2, 40), (64, 1, 50), (0, 17, 900), {}),
    "a window": (of(6, 2, 20), (40, 1, 70), (5, 600, 0), {"window": 33}),
    "a cap and sinks": (of(4, 4, 128), (130,), (500,), {"softcap": 5.0, "sinks": True}),
    "an odd depth": (of(3, 1, 33), (90,), (0,), {"sinks": True}),
    "chunks": (of(4, 2, 16, cache="float16"), (150, 20), (0, 9), {"chunk": 64}),
    "scores that grow": (of(4, 2, 16, page=64), (150,), (0,), {"growth": Growth(share=0.3, every=20)}),
    "wider values": (of(3, 3, 12, values=20), (37,), (300,), {}),
    "many heads of one key head": (of(71, 1, 64), (40,), (10,), {}),
    "integers": (of(4, 2, 24, cache="int8"), (90,), (20,), {}),
}


def as_stored(x, cache):
    """Keys or values [tokens, heads, dim] as the pool gives them back, and the bytes or numbers it holds."""
    if cache != "int8":
        stored = x.astype(cache)
        return stored.astype(np.float64), stored, None
    scale = (np.abs(x).max(-1, keepdims=True) / 127).astype(np.float32)
    stored = np.rint(x / scale).astype(np.int8)
    return stored * scale.astype(np.float64), stored, scale


def fill(pools, table, h, keys, values):
    """Write keys and values of a text, [tokens, heads, dim], to its pages; what they read back as."""
    (k_read, k_stored, k_scale), (v_read, v_stored, v_scale) = (as_stored(t, h.cache) for t in (keys, values))
    for token in range(len(keys)):
        page, slot = table[token // h.page], token % h.page
        panel, key = divmod(slot, KEYS)
        pools[0][page, 0, :, panel, : h.dim, key] = k_stored[token]
        if h.cache != "int8":
            pools[1][page, 0, :, slot] = v_stored[token]
            continue
        for head in range(h.kv_heads):
            flat = pools[1][page, 0, head, panel].reshape(-1)
            flat[key * h.value_dim : (key + 1) * h.value_dim] = v_stored[token, head]
            for pool, dim, scale in ((pools[0], h.dim, k_scale), (pools[1], h.value_dim, v_scale)):
                bytes_of_scale = np.frombuffer(scale[token, head].tobytes(), np.int8)
                pool[page, 0, head, panel].reshape(-1)[dim * KEYS + key * 4 :][:4] = bytes_of_scale
    return k_read, v_read


DEFAULT = ("several blocks, texts, and a single row", "a cap and sinks", "integers")
"""Cases that run by default: together they reach all code."""


@needs_tiles
@pytest.mark.parametrize(
    ("h", "rows", "past", "more"),
    [
        pytest.param(*case, id=name, marks=() if name in DEFAULT else pytest.mark.thorough)
        for name, case in CASES.items()
    ],
)
def test_numbers(h, rows, past, more):
    random = np.random.default_rng(0)
    op = CachedAttention(h, h.dim**-0.5, **more)
    counts = [-(-(new + old) // h.page) for new, old in zip(rows, past, strict=True)]
    # Pages hold what they held before: nothing of it may come through.
    old = np.int8(-1) if h.cache == "int8" else np.nan
    pools = [np.full(shape, old, h.cache) for shape in h.pools(sum(counts))]
    order = random.permutation(sum(counts)).astype(np.int32)
    tables = np.zeros((len(rows), max(counts)), np.int32)
    texts = []
    for number, (new, before, count) in enumerate(zip(rows, past, counts, strict=True)):
        tables[number, :count], order = order[:count], order[count:]
        keys, values = (
            random.standard_normal((new + before, h.kv_heads, dim)).astype(np.float32)
            for dim in (h.dim, h.value_dim)
        )
        texts.append(fill(pools, tables[number], h, keys, values))
    q = random.standard_normal((sum(rows), h.heads * h.dim)).astype(np.float32)
    positions = np.concatenate([np.arange(b, b + n) for n, b in zip(rows, past, strict=True)])
    sequences = np.repeat(np.arange(len(rows)), rows).astype(np.int32)
    sinks = random.standard_normal(h.heads).astype(np.float32) if op.sinks else None
    out = tvm.runtime.tensor(np.zeros((sum(rows), h.heads * h.value_dim), np.float32))
    function = emit_attention(op, TARGET.machine, rounds=True)
    assert "tdpbf16ps" in function.script()
    kernel = compile_kernels(function, TARGET.tvm_target).jit()["main"]
    layer = np.zeros(1, np.int32)
    given = [q, positions.astype(np.int32), sequences, tables, layer, *pools]
    kernel(*map(tvm.runtime.tensor, given if sinks is None else [*given, sinks]), out)
    for number, (keys, values) in enumerate(texts):
        own = sequences == number
        want = op.reference(q[own].astype(np.float64), keys, values, positions[own], sinks=sinks)
        # Weights and values are rounded to 8 bits: 2**-8 of values up to 4.
        np.testing.assert_allclose(out.numpy()[own], want, rtol=0, atol=2e-2)
        assert (out.numpy()[own] * want).sum() > 0.9999 * np.linalg.norm(out.numpy()[own]) * np.linalg.norm(
            want
        )


def test_machines_and_forms_that_keep_vectors():
    h = of(4, 2, 16)
    assert takes_prompts(CachedAttention(h, 0.25), TILES)
    assert not takes_prompts(CachedAttention(h, 0.25, relative=64), TILES)
    assert not takes_prompts(CachedAttention(h, 0.25), MACHINES["avx512"])


def test_only_rows_that_may_be_rounded_are():
    kernels = DecoderKernels(TILES)
    rounded = [kernels, *(kernels.rounding(rows) for rows in ("int16", "int8", "bf16"))]
    assert [each.rounds_attention for each in rounded] == [False, False, True, True]
