"""Attention over pages against NumPy in float64; keys and values go in by the kernel that appends."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.cpu import cpu_features
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import KEYS, Append, CachedAttention, Growth, Heads
from hetero_tvm.schedules.cpu.decoding.append import emit_append
from hetero_tvm.schedules.cpu.decoding.attention import emit_attention

MACHINE = CpuModel("x86-64-v3", threads=2)
WIDE = dataclasses.replace(
    MACHINE, mcpu="icelake-server", lanes=16, registers=32, features=("avx512bw", "avx512_vnni")
)
PAGES = 9
LENGTHS = (37, 1, 16)
"""Tokens of each sequence; a page has 16 or 32."""

CASES = [
    (Heads(6, 2, 24, layers=2, page=16), 16, 1e-6, False, 20, 5.0),
    (Heads(6, 2, 12, layers=1, page=16), 8, 1e-6, True, 0, 0.0),
    *(
        pytest.param(*case, marks=pytest.mark.exhaustive)
        for case in (
            (Heads(4, 4, 16, layers=1, page=32, cache="float16"), 16, None, False, 0, 0.0),
            (Heads(7, 1, 12, layers=1, page=16), 0, None, False, 0, 0.0),
            (Heads(6, 2, 20, layers=2, page=32, cache="int8"), 16, None, False, 20, 0.0),
        )
    ),
]


def compiled(function, machine=MACHINE):
    return compile_kernels(function, tvm.target.Target(machine.codegen_target())).jit()["main"]


def tensors(*arrays):
    return [tvm.runtime.tensor(array) for array in arrays]


def as_stored(x, cache):
    """Keys or values [rows, heads, dim] as they come out of a pool, float64."""
    if cache != "int8":
        return x.astype(cache).astype(np.float64)
    scale = np.abs(x).max(-1, keepdims=True).astype(np.float64) / 127
    return np.rint(x / scale) * scale


@pytest.mark.parametrize(("heads", "rotated", "eps", "together", "window", "softcap"), CASES)
def test_numbers(heads, rotated, eps, together, window, softcap):
    random = np.random.default_rng(0)
    append = compiled(emit_append(Append(heads, rotated, 1, eps, together), MACHINE))
    sinks = bool(window)  # one of the cases by default has them, the other has not
    op = CachedAttention(heads, heads.dim**-0.5, window, softcap, sinks=sinks)
    attention = compiled(emit_attention(op, MACHINE))
    rows = sum(LENGTHS)
    x = random.standard_normal((rows, heads.width)).astype(np.float32)
    positions = np.concatenate([np.arange(n) for n in LENGTHS]).astype(np.int32)
    sequences = np.repeat(np.arange(len(LENGTHS)), LENGTHS).astype(np.int32)
    order = random.permutation(PAGES)
    tables = np.zeros((len(LENGTHS), 3), np.int32)
    for number, length in enumerate(LENGTHS):
        count = -(-length // heads.page)
        tables[number, :count], order = order[:count], order[count:]
    rope = random.standard_normal((64, 2, max(rotated, 1))).astype(np.float32)
    counts = (heads.heads, heads.kv_heads) if together else (1, 1)
    scales = [random.standard_normal(n * heads.dim).astype(np.float32) for n in counts] if eps else []
    layer = np.array([heads.layers - 1], np.int32)
    # Pages hold what they held before: nothing of it may come through.
    old = np.full((1,), -1, np.int8) if heads.cache == "int8" else np.full((1,), np.nan, heads.cache)
    pools = tensors(*(np.tile(old, shape) for shape in heads.pools(PAGES)))
    places = tensors(positions, sequences, tables)
    q, out = tensors(*(np.zeros((rows, heads.heads * heads.dim), np.float32) for _ in range(2)))
    append(*tensors(x), *places, *tensors(rope, *scales, layer), *pools, q)
    scores = np.linspace(-30, 30, heads.heads).astype(np.float32)
    attention(q, *places, *tensors(layer), *pools, *(tensors(scores) if sinks else ()), out)

    wide = x.astype(np.float64).reshape(rows, -1, heads.dim)
    queries, keys, values = np.split(wide, [heads.heads, heads.heads + heads.kv_heads], 1)
    ready = []
    for part, scale in zip((queries, keys), scales or (None, None), strict=True):
        if scale is not None:
            axes = (-1, -2) if together else -1
            scale = scale.reshape(-1, heads.dim)
            part = part / np.sqrt((part * part).mean(axes, keepdims=True) + eps) * scale
        half = rotated // 2
        a, b, rest = part[..., :half], part[..., half:rotated], part[..., rotated:]
        cos, sin = (
            rope[positions, 1, s][:, None].astype(np.float64) for s in (slice(half), slice(half, rotated))
        )
        ready.append(np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1) if rotated else part)
    keys, values = (as_stored(t.astype(np.float32), heads.cache) for t in (ready[1], values))
    flat = ready[0].reshape(rows, -1)
    np.testing.assert_allclose(q.numpy(), flat, rtol=1e-5, atol=1e-5)
    for number in range(len(LENGTHS)):
        own = sequences == number
        given = (flat[own], keys[own], values[own], positions[own])
        want = op.reference(*given, sinks=scores if sinks else None)
        # float16 keys are rounded from float32 ones, whose last bit may fall on either side.
        # So are integers, of which each is 1/127 of the largest.
        tolerance = {"float32": 2e-5, "float16": 2e-3, "int8": 2e-2}[heads.cache]
        np.testing.assert_allclose(out.numpy()[own], want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "cache", ["float32", *(pytest.param(c, marks=pytest.mark.exhaustive) for c in ("float16", "int8"))]
)
def test_keys_that_share_channels_and_wider_values(cache):
    """The first channels of all heads' keys are the same, and values have more channels than keys."""
    random, rows, shared = np.random.default_rng(1), 21, 4
    h = Heads(3, 3, 12, layers=1, page=16, cache=cache, values=20)
    op = CachedAttention(h, 0.3)
    append = compiled(emit_append(Append(h, rotated=shared, shared=shared), MACHINE))
    shapes = [(rows, 3 * 12), (rows, 3 * (8 + 20)), (rows, shared)]
    q, kv, same = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    positions, sequences = np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32)
    tables = np.array([[1, 0]], np.int32)
    angles = random.standard_normal((rows, 2))
    rope = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)[:, None]
    places, layer = tensors(positions, sequences, tables), tensors(np.zeros(1, np.int32))
    pools = tensors(*(np.zeros(shape, cache) for shape in h.pools(2)))
    ready, out = tensors(np.zeros((rows, 36), np.float32), np.zeros((rows, 60), np.float32))
    append(*tensors(q, kv, same), *places, *tensors(rope), *layer, *pools, ready)
    compiled(emit_attention(op, MACHINE))(ready, *places, *layer, *pools, out)

    def turned(x):
        a, b, rest = x[..., :2], x[..., 2:4], x[..., 4:]
        cos, sin = (f[:, None] for f in (np.cos(angles), np.sin(angles)))
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)

    own, values = kv[:, :24].reshape(rows, 3, 8), kv[:, 24:].reshape(rows, 3, 20)
    keys = turned(np.concatenate([np.repeat(same[:, None], 3, 1), own], -1).astype(np.float64))
    keys, values = (as_stored(t.astype(np.float32), cache) for t in (keys, values))
    queries = turned(q.reshape(rows, 3, 12).astype(np.float64)).reshape(rows, -1)
    np.testing.assert_allclose(ready.numpy(), queries, rtol=1e-5, atol=1e-5)
    tolerance = {"float32": 2e-5, "float16": 2e-3, "int8": 3e-2}[cache]
    want = op.reference(queries, keys, values, positions)
    np.testing.assert_allclose(out.numpy(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("chunk", [7, 16, 40])
def test_chunks_of_positions_and_scores_that_grow(chunk):
    random, rows = np.random.default_rng(3), 60
    h = Heads(4, 2, 12, layers=1, page=16)
    op = CachedAttention(h, 0.4, chunk=chunk, growth=Growth(0.9, 11, ahead=1))
    q, k, v = (random.standard_normal((rows, n, 12)).astype(np.float32) for n in (4, 2, 2))
    pools = [np.full(shape, np.nan, np.float32) for shape in h.pools(4)]
    for row in range(rows):
        page, place = divmod(row, 16)
        pools[0][page, 0, :, 0, :, place], pools[1][page, 0, :, place] = k[row], v[row]
    positions, sequences = np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32)
    given = [q.reshape(rows, -1), positions, sequences, np.arange(4, dtype=np.int32)[None]]
    out = tensors(np.zeros((rows, 48), np.float32))
    compiled(emit_attention(op, MACHINE))(*tensors(*given, np.zeros(1, np.int32), *pools), *out)
    q, k, v = (array.astype(np.float64) for array in (given[0], k, v))
    want = op.reference(q, k, v, positions)
    np.testing.assert_allclose(out[0].numpy(), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kv_heads", [4, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("machine", [MACHINE, WIDE], ids=["avx2", "avx512"])
@pytest.mark.parametrize(
    "more", [{"window": 9, "sinks": True}, {"relative": 64}, {"growth": Growth(0.9, 11, ahead=1)}], ids=str
)
def test_rows_of_prompts_have_the_bits_they_have_alone(kv_heads, machine, more):
    """Two texts in one call; the rows of each are taken together, but where one ends and the other begins."""
    if not set(machine.features) <= cpu_features():
        pytest.skip("no AVX-512")
    random, h = np.random.default_rng(3), Heads(4, kv_heads, 20, layers=1, page=16)
    lengths, op = (61, 34), CachedAttention(h, 0.4, **more)
    rows = sum(lengths)
    q = random.standard_normal((rows, 80)).astype(np.float32)
    pools = [random.standard_normal(shape).astype(np.float32) for shape in h.pools(7)]
    tables = np.array([[3, 0, 6, 1], [2, 5, 4, 0]], np.int32)
    positions = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    sequences = np.repeat([0, 1], lengths).astype(np.int32)
    extra = []
    if op.relative:
        extra = [random.standard_normal((4, op.relative + KEYS)).astype(np.float32)]
    if op.sinks:
        extra = [random.standard_normal(4).astype(np.float32)]
    kernel = compiled(emit_attention(op, machine), machine)

    def attention(of):
        (out,) = tensors(np.zeros((len(of), 80), np.float32))
        places = [q[of], positions[of], sequences[of], tables, np.zeros(1, np.int32)]
        kernel(*tensors(*places, *pools, *extra), out)
        return out.numpy()

    together = attention(np.arange(rows))
    np.testing.assert_array_equal(together, np.concatenate([attention([row]) for row in range(rows)]))
    assert np.isfinite(together).all()


def test_norms_behind_the_rotation():
    random, rows = np.random.default_rng(2), 5
    h = Heads(2, 1, 8, layers=1, page=16)
    append = compiled(emit_append(Append(h, 8, norm_eps=1e-6, norm_last=True), MACHINE))
    x = random.standard_normal((rows, h.width)).astype(np.float32)
    scales = [random.standard_normal(8).astype(np.float32) for _ in range(2)]
    angles = random.standard_normal((rows, 4))
    rope = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)[:, None]
    positions, sequences = np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32)
    pools = tensors(*(np.zeros(shape, np.float32) for shape in h.pools(1)))
    (made,) = tensors(np.zeros((rows, 16), np.float32))
    places = tensors(positions, sequences, np.zeros((1, 1), np.int32))
    append(*tensors(x), *places, *tensors(rope, *scales, np.zeros(1, np.int32)), *pools, made)
    q = x[:, :16].reshape(rows, 2, 8).astype(np.float64)
    a, b, cos, sin = q[..., :4], q[..., 4:], np.cos(angles)[:, None], np.sin(angles)[:, None]
    q = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    q = q / np.sqrt((q * q).mean(-1, keepdims=True) + 1e-6) * scales[0]
    np.testing.assert_allclose(made.numpy(), q.reshape(rows, -1), rtol=1e-5, atol=1e-5)


def test_queries_keys_and_values_within_bounds():
    heads = Heads(4, 2, 12, layers=1, page=16)
    x = 3 * np.random.default_rng(0).standard_normal((9, heads.width)).astype(np.float32)
    places = [np.arange(9, dtype=np.int32), np.zeros(9, np.int32), np.zeros((1, 1), np.int32)]
    rope = np.random.default_rng(1).standard_normal((9, 1, 8)).astype(np.float32)
    found = []
    for clip, given in ((0.5, x), (0.0, np.clip(x, -0.5, 0.5))):
        pools = [np.zeros(shape, np.float32) for shape in heads.pools(1)]
        arrays = tensors(given, *places, rope, np.zeros(1, np.int32), *pools, np.zeros((9, 48), np.float32))
        compiled(emit_append(Append(heads, 8, clip=clip), MACHINE))(*arrays)
        found.append([array.numpy() for array in arrays[-3:]])
    for bounded, want in zip(*found, strict=True):
        np.testing.assert_array_equal(bounded, want)


@pytest.mark.parametrize("cache", ["float32", pytest.param("int8", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("shifted", [True, False])
def test_layer_norms_of_heads_in_a_pool_with_more_room(shifted, cache):
    """Heads narrower than the pool's, and fewer; angles of a wider table; values are normalised, too.  A
    layer that reads them has queries alone, and writes nothing."""
    random, rows, eps = np.random.default_rng(2), 21, 1e-5
    h = Heads(4, 2, 8, layers=2, page=16, cache=cache, room=(3, 20))
    options = {"norm_eps": eps, "table": 20, "by_head": True, "centered": True, "shifted": shifted}
    op = Append(h, 8, 0, norm_values=True, **options)
    x = random.standard_normal((rows, h.width)).astype(np.float32) + 0.5
    vectors = [random.standard_normal(n).astype(np.float32) for n in op.scales for _ in range(1 + shifted)]
    positions, sequences = np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32)
    rope = random.standard_normal((rows, 1, 20)).astype(np.float32)
    places = tensors(positions, sequences, np.array([[1, 0]], np.int32))
    layer, angles = tensors(np.ones(1, np.int32)), tensors(rope)
    pools = tensors(*(np.full(shape, 7, cache) for shape in h.pools(2)))
    ready, again, out = tensors(*(np.zeros((rows, 32), np.float32) for _ in range(3)))
    compiled(emit_append(op, MACHINE))(
        *tensors(x), *places, *angles, *tensors(*vectors), *layer, *pools, ready
    )
    kept = [pool.numpy().copy() for pool in pools]
    assert all((pool[:, 0] == 7).all() and (pool[:, :, 2] == 7).all() for pool in kept)
    reads = Append(h, 8, 0, reads=True, **options)
    own = tensors(*vectors[: 1 + shifted])
    compiled(emit_append(reads, MACHINE))(
        *tensors(x[:, :32].copy()), *places, *angles, *own, *layer, *pools, again
    )
    np.testing.assert_array_equal(again.numpy(), ready.numpy())
    assert all((pool.numpy() == old).all() for pool, old in zip(pools, kept, strict=True))
    attention = CachedAttention(h, 0.3)
    compiled(emit_attention(attention, MACHINE))(ready, *places, *layer, *pools, out)

    wide = x.astype(np.float64).reshape(rows, -1, 8)
    parts, made = [wide[:, :4], wide[:, 4:6]], []
    for number, part in enumerate(parts):
        scale, *shift = vectors[number * (1 + shifted) :][: 1 + shifted]
        part = part - part.mean(-1, keepdims=True)
        part = part / np.sqrt((part * part).mean(-1, keepdims=True) + eps) * scale.reshape(-1, 8)
        part = part + (shift[0].reshape(-1, 8) if shift else 0)
        a, b, cos, sin = part[..., :4], part[..., 4:], rope[..., :4], rope[..., 10:14]
        made.append(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1))
    values = wide[:, 6:]
    values = values / np.sqrt((values * values).mean(-1, keepdims=True) + eps)
    np.testing.assert_allclose(ready.numpy(), made[0].reshape(rows, -1), rtol=1e-5, atol=1e-5)
    keys, values = (as_stored(part.astype(np.float32), cache) for part in (made[1], values))
    tolerance = {"float32": 2e-5, "int8": 3e-2}[cache]
    want = attention.reference(made[0].reshape(rows, -1), keys, values, positions)
    np.testing.assert_allclose(out.numpy(), want, rtol=tolerance, atol=tolerance)
