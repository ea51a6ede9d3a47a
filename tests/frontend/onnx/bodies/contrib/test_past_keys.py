"""Attention with past keys and values: caches that grow, buffers, prompts, chunks, norms and sinks."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import LibraryError, UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import run_onnxruntime
from tests.selection import thorough

B, S, HEADS, D = 2, 5, 4, 6
WIDTH = HEADS * D


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def cached_model(kind, inputs, outputs, **attributes):
    """A model of one node with caches, and its inputs by name."""
    names = ["" if value is None else f"v{n}" for n, value in enumerate(inputs)]
    infos = []
    for name, value in zip(names, inputs, strict=True):
        if name:
            element = helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
            infos.append(helper.make_tensor_value_info(name, element, np.shape(value)))
    graph = helper.make_graph(
        [helper.make_node(kind, names, list(outputs), "node", domain="com.microsoft", **attributes)],
        "cached",
        infos,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    values = {name: np.asarray(value) for name, value in zip(names, inputs, strict=True) if name}
    return model, values


def caches(kind, inputs, outputs, **attributes):
    """Compare a node with caches, run by ONNX Runtime as it is and as it is imported."""
    model, values = cached_model(kind, inputs, outputs, **attributes)
    expected, got = (run_onnxruntime(m, values) for m in (model, import_onnx(model).onnx_model))
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("window", [-1, 2])
def test_group_query_attention_with_past_keys(rotary, window):
    """One step of two sequences: all keys of the cache count, and it grows."""
    x = [array(B, 1, n * 16) for n in (HEADS, 2, 2)]
    past = [array(B, 2, 4, 16) for _ in range(2)]
    lengths, total = np.full(B, 4, np.int32), np.int32(5)
    tables = [array(16, 8) for _ in range(2)] if rotary else [None, None]
    shape = (B, 2, 5, 16)
    outputs = {"y": (B, 1, HEADS * 16), "keys": shape, "values": shape}
    options = {"num_heads": HEADS, "kv_num_heads": 2, "do_rotary": rotary, "local_window_size": window}
    caches("GroupQueryAttention", (*x, *past, lengths, total, *tables), outputs, **options)


@pytest.mark.parametrize("rotary", [*thorough([0]), 1])
def test_prompts_of_several_lengths_stand_at_the_begin_of_their_buffers(rotary):
    """Padding behind the shorter prompt; lengths that no prompt of so many steps has are errors."""
    steps, room, lengths = 5, 8, np.array([2, 4], np.int32)
    values = [array(B, steps, n * 16, seed=n) for n in (HEADS, 2, 2)]
    values += [*(array(B, 2, room, 16, seed=n) for n in range(2)), lengths, np.array([steps], np.int32)]
    values += [array(room, 8, seed=n) for n in range(2 * rotary)]
    infos = [
        helper.make_tensor_value_info(f"v{n}", helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for n, value in enumerate(values)
    ]
    shapes = {"y": (B, steps, HEADS * 16), "keys": (B, 2, room, 16), "values": (B, 2, room, 16)}
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()
    ]
    options = {"num_heads": HEADS, "kv_num_heads": 2, "do_rotary": rotary}
    names = [info.name for info in infos]
    node = helper.make_node(
        "GroupQueryAttention", names, list(shapes), "node", domain="com.microsoft", **options
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "prompts", infos, outputs)
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    built, inputs = build_model(optimize_model(import_model(model))), dict(zip(names, values, strict=True))
    for n, (have, want) in enumerate(zip(built.run(inputs), run_onnxruntime(model, inputs), strict=True)):
        for sequence, last in enumerate(lengths):
            rows = (sequence, ..., slice(last + 1), slice(None))
            np.testing.assert_allclose(have[rows], want[rows], rtol=1e-5, atol=1e-5, err_msg=str(n))
    for wrong in (-1, steps, room):
        with pytest.raises(LibraryError, match="node/.* an index lies outside"):
            built.run({**inputs, "v5": np.array([wrong, 4], np.int32)})


@pytest.mark.parametrize("form", ["sinks", "smooth"])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_sinks_take_their_share_of_every_softmax(form, softcap):
    """A score per head without a value, as in gpt-oss; a smooth softmax has one of zero."""
    x, past = [array(B, 1, n * 16) for n in (HEADS, 2, 2)], [array(B, 2, 4, 16) for _ in range(2)]
    lengths, total, shape = np.full(B, 4, np.int32), np.int32(5), (B, 2, 5, 16)
    outputs = {"y": (B, 1, HEADS * 16), "keys": shape, "values": shape}
    sinks = [None] * 4 + [array(HEADS, seed=5)] if form == "sinks" else []
    more = {"smooth_softmax": 1} if form == "smooth" else {}
    options = {"num_heads": HEADS, "kv_num_heads": 2, "softcap": softcap, **more}
    caches("GroupQueryAttention", (*x, *past, lengths, total, *sinks), outputs, **options)


@pytest.mark.parametrize("form", ["step", "prompt", "alone"])
def test_group_query_attention_without_the_causal_mask(form):
    """Every query sees all keys that count."""
    steps, past = (1, 4) if form == "step" else (S, 0)
    x = [array(B, steps, n * 16, seed=n) for n in (HEADS, 2, 2)]
    before = [None, None] if form == "alone" else [array(B, 2, past, 16, seed=n) for n in range(2)]
    shape = (B, 2, past + steps, 16)
    outputs = {"y": (B, steps, HEADS * 16), "keys": shape, "values": shape}
    lengths, total = np.full(B, past + steps - 1, np.int32), np.int32(past + steps)
    options = {"num_heads": HEADS, "kv_num_heads": 2, "causal": 0}
    caches("GroupQueryAttention", (*x, *before, lengths, total), outputs, **options)


def test_group_query_attention_with_a_bias_for_a_buffer():
    """The bias is for the keys so far, and the buffer has room behind them."""
    x, past = [array(1, 2, n * 16) for n in (HEADS, 2, 2)], [array(1, 2, 9, 16) for _ in range(2)]
    lengths, total, bias = np.full(1, 4, np.int32), np.int32(5), array(1, HEADS, 2, 5)
    outputs = {"y": (1, 2, HEADS * 16), "keys": (1, 2, 9, 16), "values": (1, 2, 9, 16)}
    inputs = (*x, *past, lengths, total, None, None, None, bias)
    model, values = cached_model("GroupQueryAttention", inputs, outputs, num_heads=HEADS, kv_num_heads=2)
    theirs, ours = (run_onnxruntime(m, values) for m in (model, import_onnx(model).onnx_model))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    for have, want in zip(ours[1:], theirs[1:], strict=True):
        np.testing.assert_allclose(have[:, :, :5], want[:, :, :5], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rotary", [0, 1])
def test_group_query_attention_of_chunks_with_padding_behind_them(rotary):
    """Input 16 says how many steps of each sequence count; a chunk without padding has the same rows."""
    steps, room, new, lengths = 4, 12, np.array([2, 4], np.int32), np.array([5, 4], np.int32)
    x = [array(B, steps, n * 16, seed=n) for n in (HEADS, 2, 2)]
    past, tables = [array(B, 2, room, 16, seed=n) for n in range(2)], [array(16, 8, seed=n) for n in range(2)]
    shapes = {"y": (B, steps, HEADS * 16), "keys": (B, 2, room, 16), "values": (B, 2, room, 16)}
    inputs = [*x, *past, lengths, np.int32(room), *(tables if rotary else [None] * 2), *[None] * 7, new]
    options = {"num_heads": HEADS, "kv_num_heads": 2, "do_rotary": rotary}
    model, values = cached_model("GroupQueryAttention", inputs, shapes, **options)
    theirs, ours = (run_onnxruntime(m, values) for m in (model, import_onnx(model).onnx_model))
    for n, count in enumerate(new):
        np.testing.assert_allclose(ours[0][n, :count], theirs[0][n, :count], rtol=1e-5, atol=1e-5)
        kept = slice(lengths[n] + 1)
        for i in (1, 2):
            np.testing.assert_allclose(ours[i][n, :, kept], theirs[i][n, :, kept], rtol=1e-5, atol=1e-5)


def test_group_query_attention_with_norms_of_queries_and_keys():
    """The norm of each head stands before the rotary embedding; ONNX Runtime has it on GPUs alone."""
    x, scales = [array(B, S, n * 16, seed=n) for n in (HEADS, 2, 2)], [array(16, seed=n) for n in range(2)]
    last, total, tables = np.full(B, S - 1, np.int32), np.int32(S), [array(16, 8, seed=n) for n in range(2)]
    outputs = {"y": (B, S, HEADS * 16), "keys": (B, 2, S, 16), "values": (B, 2, S, 16)}
    options = {"num_heads": HEADS, "kv_num_heads": 2, "do_rotary": 1}
    both = (last, total, *tables, *[None] * 5)
    normed = [
        (v.reshape(B, S, -1, 16) / np.sqrt((v.reshape(B, S, -1, 16) ** 2).mean(-1, keepdims=True) + e) * w)
        for v, w, e in zip(x, scales, (1e-6, 0.5), strict=False)
    ]
    plain = [v.reshape(B, S, -1) for v in normed] + x[2:]
    model, values = cached_model("GroupQueryAttention", (*plain, None, None, *both), outputs, **options)
    expected = run_onnxruntime(model, values)
    model, values = cached_model(
        "GroupQueryAttention", (*x, None, None, *both, *scales), outputs, **options, k_norm_epsilon=0.5
    )
    for ours, theirs in zip(run_onnxruntime(import_onnx(model).onnx_model, values), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["window", "quantized"])
def test_caches_of_another_layout_are_refused(form):
    x, past = [array(B, 1, n * 16) for n in (HEADS, 2, 2)], [array(B, 2, 4, 16) for _ in range(2)]
    lengths, total = np.full(B, 3, np.int32), np.int32(4)
    inputs = [*x, *past, lengths, total] + ([None] * 5 + [array(1)] * 2 if form == "quantized" else [])
    more = {"sliding_window_cache": 1, "local_window_size": 4} if form == "window" else {}
    outputs = {"y": (B, 1, HEADS * 16), "keys": (B, 2, 4, 16), "values": (B, 2, 4, 16)}
    model, _ = cached_model("GroupQueryAttention", inputs, outputs, num_heads=HEADS, kv_num_heads=2, **more)
    words = {"window": "sliding_window_cache=1", "quantized": "k_quant_type='NONE'.* a scale"}
    with pytest.raises(UnsupportedOperatorError, match=f"'node' .* {words[form]}"):
        import_onnx(model)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
def test_quantized_caches(kind, bits, steps):
    x, random = [array(1, steps, n * 16) for n in (HEADS, 2, 2)], np.random.default_rng(1)
    dtype, width = (np.int8, 16) if bits == 8 else (np.uint8, 8)
    ends = np.iinfo(dtype)
    past = [random.integers(ends.min, ends.max, (1, 2, 4, width)).astype(dtype) for _ in range(2)]
    shape = (1, 2, 1, 16) if kind == "PER_CHANNEL" else (1,)
    scales = [(random.uniform(0.5, 1, shape) * 4 / 2**bits).astype(np.float32) for _ in range(2)]
    lengths, total = np.full(1, 3 + steps, np.int32), np.int32(4 + steps)
    inputs = (*x, *past, lengths, total, *[None] * 5, *scales)
    types = {f"{letter}_quant_type": kind for letter in "kv"}
    grown = (1, 2, 4 + steps, width)
    outputs = {"y": (1, steps, HEADS * 16), "keys": grown, "values": grown}
    model, values = cached_model(
        "GroupQueryAttention",
        inputs,
        outputs,
        num_heads=HEADS,
        kv_num_heads=2,
        kv_cache_bit_width=bits,
        **types,
    )
    for end in model.graph.output[1:]:
        end.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    expected, got = (run_onnxruntime(m, values) for m in (model, import_onnx(model).onnx_model))
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(got[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("options", [{}, {"softcap": 1.5, "smooth_softmax": 1}])
def test_scores_of_group_query_attention(kind, options):
    """Where a key is hidden they are zero."""
    x = [array(1, 3, n * 16) for n in (HEADS, 2, 2)]
    past = [array(1, 2, 4, 16, seed=n) for n in range(2)]
    outputs = {"y": (1, 3, HEADS * 16), "keys": (1, 2, 7, 16), "values": (1, 2, 7, 16), "s": (1, HEADS, 3, 7)}
    inputs = (*x, *past, np.full(1, 6, np.int32), np.int32(7))
    options = {"num_heads": HEADS, "kv_num_heads": 2, "qk_output": kind, **options}
    caches("GroupQueryAttention", inputs, outputs, **options)


def test_scores_of_multi_head_attention():
    """Times of words that Whisper hears are read from them."""
    x = [array(B, n, WIDTH, seed=n) for n in (3, 5, 5)]
    keys = np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
    outputs = {"y": (B, 3, WIDTH), "k": (B, HEADS, 5, D), "v": (B, HEADS, 5, D), "s": (B, HEADS, 3, 5)}
    caches("MultiHeadAttention", (*x, None, keys), outputs, num_heads=HEADS)


def test_attention_with_past_keys():
    past = array(2, B, HEADS, 3, D)
    outputs = {"y": (B, S, WIDTH), "present": (2, B, HEADS, S + 3, D)}
    inputs = (array(B, S, 8), array(8, 3 * WIDTH), array(3 * WIDTH), None, past)
    caches("Attention", inputs, outputs, num_heads=HEADS, unidirectional=1)


def test_multi_head_attention_with_past_keys():
    x = [array(B, 1, WIDTH) for _ in range(3)]
    past = [array(B, HEADS, 3, D) for _ in range(2)]
    shape = (B, HEADS, 4, D)
    outputs = {"y": (B, 1, WIDTH), "keys": shape, "values": shape}
    caches("MultiHeadAttention", (*x, None, None, None, *past), outputs, num_heads=HEADS)


@pytest.mark.parametrize("total", [0, 5, 7])
@pytest.mark.parametrize("past", [0, 4])
def test_another_number_of_keys_than_there_are_is_an_error(past, total):
    """Input 6 of GroupQueryAttention goes with the keys, as in ONNX Runtime."""
    x = [array(1, 6 - past, n * 8) for n in (2, 1, 1)]
    before = [array(1, 1, past, 8) if past else None for _ in range(2)]
    outputs = {"y": (1, 6 - past, 16)} | {n: (1, 1, 6, 8) for n in ("keys", "values")}
    inputs = (*x, *before, np.full(1, 5, np.int32), np.int32(total))
    model, values = cached_model("GroupQueryAttention", inputs, outputs, num_heads=2, kv_num_heads=1)
    built = build_model(optimize_model(import_model(model)))
    with pytest.raises(LibraryError, match="v6 must be the"):
        built.run(values)
    built.run(values | {"v6": np.array(6, np.int32)})


@pytest.mark.parametrize("keys", [5, 8])
def test_a_bias_of_another_number_of_keys_is_an_error(keys):
    """A bias of GroupQueryAttention was cut, or padded with zeros."""
    x = [array(1, 2, n * 8) for n in (2, 1, 1)]
    past = [array(1, 1, 8, 8) for _ in range(2)]
    outputs = {"y": (1, 2, 16)} | {n: (1, 1, 8, 8) for n in ("keys", "values")}
    bias = (None, None, None, array(1, 1, 2, keys))
    inputs = (*x, *past, np.full(1, 5, np.int32), np.int32(6), *bias)
    model, values = cached_model("GroupQueryAttention", inputs, outputs, num_heads=2, kv_num_heads=1)
    built = build_model(optimize_model(import_model(model)))
    with pytest.raises(LibraryError, match="the last extent of v10 must be v6"):
        built.run(values)
