"""ONNX Runtime's fused attention operators and rotary embedding, written out in plain ONNX.

They become products, a softmax and views, which the fusion rules make one operator again.  Past keys and
values stand before the new ones; the caches of GroupQueryAttention have a length per sequence.  Semantics:
ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.contrib.caches import (
    cache_bits,
    cache_places,
    cached,
    counted_along,
    dequantized_rows,
    is_buffer,
    lengths_checked,
    quantized_rows,
    total_checked,
    widened,
)
from hetero_tvm.frontend.onnx.graph.body import Body

_LOWEST = float(np.finfo(np.float32).min)


def attention(b: Body) -> None:
    """Write out Attention, whose projections of queries, keys and values are inside."""
    # input, weights, bias, mask_index, past, attention_bias, past_sequence_length -> output, present
    _refuse(b, inputs={6: "a shared buffer of past keys"}, do_rotary=0)
    heads = int(b.attributes["num_heads"])
    packed = b.op("MatMul", b.input(0), b.input(1))
    if b.input(2):
        packed = b.op("Add", packed, b.input(2))
    sizes = list(b.attributes.get("qkv_hidden_sizes", ()))
    if sizes:
        ends = np.cumsum([0, *sizes])
        parts = [b.cut(packed, 2, int(ends[i]), int(ends[i + 1])) for i in range(3)]
        query, key, value = (_heads(b, part, heads) for part in parts)
    else:
        packed = b.op("Reshape", packed, b.const([0, 0, 3, heads, -1], "int64"))
        query, key, value = (
            _to_front(b, b.op("Gather", packed, b.const(i, "int64"), axis=2)) for i in range(3)
        )
    if b.input(4):
        past = [b.op("Gather", b.input(4), b.const(n, "int64"), axis=0) for n in range(2)]
        key, value = (b.op("Concat", *pair, axis=2) for pair in zip(past, (key, value), strict=True))
    if b.wants(1):
        whole = [b.op("Unsqueeze", x, b.const([0], "int64")) for x in (key, value)]
        b.end(1, b.op("Concat", *whole, axis=0))
    b.end(0, _weighted(b, query, key, value, _masks(b, query, key, b.input(3))))


def multi_head_attention(b: Body) -> None:
    """Write out MultiHeadAttention, whose operands are projected outside."""
    # query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value, ...
    # -> output, present_key, present_value, scores
    shared = dict.fromkeys((8, 9), "a shared buffer of past keys")
    _refuse(b, inputs=shared)
    heads = int(b.attributes["num_heads"])
    query, key, value, bias = (b.input(i) for i in range(4))
    if not key:  # [B, S, N, 3, D]
        query, key, value = (_to_front(b, _stacked(b, query, i)) for i in range(3))
        biased = [query, key, value]
    elif not value:  # keys and values [B, L, N, 2, D]
        query = _heads(b, query, heads)
        key, value = (_to_front(b, _stacked(b, key, i)) for i in range(2))
        biased = [query, key, value]
    else:
        biased = [x if b.rank(x, 3) == 4 else _heads(b, x, heads) for x in (query, key, value)]
    query, key, value = _biased(b, biased, bias, heads)
    if b.input(6):
        key = b.op("Concat", b.input(6), key, axis=2)
        value = b.op("Concat", b.input(7), value, axis=2)
    b.end(1, key)
    b.end(2, value)
    masks = _masks(b, query, key, b.input(4))
    b.end(0, _weighted(b, query, key, value, masks, shown=3 if b.wants(3) else 0))


def masked_attention(b: Body) -> None:
    """Write out DecoderMaskedMultiHeadAttention: one step, and a buffer of past keys or an encoder's."""
    # query, key, value, mask_index, attention_bias, past_key, past_value, past_sequence_length, beam_width,
    # cache_indirection, bias -> output, present_key, present_value, scores
    _refuse(b, inputs={9: "an order of beams"}, outputs={3: "its scores"})
    heads = int(b.attributes["num_heads"])
    across = b.rank(b.input(1), 3) == 4
    parts = [x if b.rank(x, 3) == 4 else _heads(b, x, heads) for x in (b.input(i) for i in range(3))]
    query, key, value = _biased(b, parts[: 1 if across else 3], b.input(10), heads) + parts[1:] * across
    masks = [b.input(4)] if b.input(4) else []
    if not across and b.input(5):
        place = b.op("Cast", b.input(7), to=TensorProto.INT64) if b.input(7) else b.extent(b.input(5), 2)
        shared = int(b.attributes.get("past_present_share_buffer", 0))
        place = b.op("Reshape", place, b.const([1, 1, 1, 1], "int64"))
        for n, x in enumerate((key, value)):
            past = b.input(5 + n)
            if shared:
                rows = b.op("Expand", place, b.op("Shape", x))
                parts[n] = b.op("ScatterElements", past, rows, x, axis=2)
            else:
                parts[n] = b.op("Concat", past, x, axis=2)
        key, value = parts[:2]
        b.end(1, key)
        b.end(2, value)
        if shared and b.input(3):  # one number for each key so far
            zero, end = b.const([0], "int64"), b.extent(b.input(3), 1)
            key, value = (b.op("Slice", x, zero, end, b.const([2], "int64")) for x in (key, value))
        if shared:
            masks.append(_seen(b, counted_along(b, key, [1, 1, 1, -1]), place, -1))
    else:
        b.end(1, key)
        b.end(2, value)
    if b.input(3):
        masks.append(_key_mask(b, b.input(3), key))
    b.end(0, _weighted(b, query, key, value, masks))


def group_query_attention(b: Body) -> None:
    """Write out GroupQueryAttention, with or without a rotary embedding and norms of queries and keys."""
    # query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache, sin_cache,
    # position_ids, attention_bias, head_sink, k_scale, v_scale, q_norm_weight, k_norm_weight, query_seqlens
    # -> output, present_key, present_value, scores
    _refuse(b, sliding_window_cache=0)
    has_past = not b.is_empty(b.input(3))
    heads, kv_heads = int(b.attributes["num_heads"]), int(b.attributes["kv_num_heads"])
    if b.input(1):
        sizes = heads, kv_heads, kv_heads
        query, key, value = (
            b.op("Reshape", b.input(i), b.const([0, 0, n, -1], "int64")) for i, n in enumerate(sizes)
        )
    else:
        packed = b.op("Reshape", b.input(0), b.const([0, 0, heads + 2 * kv_heads, -1], "int64"))
        ends = np.cumsum([0, heads, kv_heads, kv_heads])
        query, key, value = (b.cut(packed, 2, int(ends[i]), int(ends[i + 1])) for i in range(3))
    query, key, value = (_to_front(b, x) for x in (query, key, value))
    if not has_past and b.input(5):
        query = lengths_checked(b, query)
    query, key = (_normed(b, x, 14 + n, "qk"[n]) for n, x in enumerate((query, key)))
    if int(b.attributes.get("do_rotary", 0)):
        positions = b.input(9) or (cache_places(b, query, [-1, 1], [1, -1]) if has_past else "")
        tables = [_table(b, b.input(i), positions, query) for i in (7, 8)]
        pairs = int(b.attributes.get("rotary_interleaved", 0))
        query, key = (_rotated(b, x, *tables, b.input(7), bool(pairs), rest=True) for x in (query, key))
    grown = []
    for n, x in enumerate((key, value)):
        bits, scale = cache_bits(b, "kv"[n]), b.input(12 + n)
        x = quantized_rows(b, x, scale, bits) if bits else x
        x = cached(b, b.input(3 + n), x) if has_past else x
        b.end(1 + n, x)
        grown.append(dequantized_rows(b, x, scale, bits) if bits else x)
    key, value = grown
    if heads != kv_heads:
        key, value = (_repeated(b, x, heads, heads // kv_heads) for x in (key, value))
    window = int(b.attributes.get("local_window_size", -1))
    if not int(b.attributes.get("causal", 1)):
        lengths = b.op("Cast", b.input(5), to=TensorProto.INT64)
        last = b.op("Reshape", lengths, b.const([-1, 1, 1, 1], "int64"))
        last = total_checked(b, last, key, b.input(10)) if has_past else last
        masks = [_seen(b, counted_along(b, key, [1, 1, 1, -1]), last, -1)]
    elif has_past:
        last = cache_places(b, query, [-1, 1, 1, 1], [1, 1, -1, 1])
        last = total_checked(b, last, key, b.input(10))
        masks = [_seen(b, counted_along(b, key, [1, 1, 1, -1]), last, window)]
    else:
        masks = [_causal(b, query, key, window)]
    if b.input(10):
        masks.append(widened(b, b.input(10), key) if has_past else b.input(10))
    sinks = b.input(11)
    if not sinks and int(b.attributes.get("smooth_softmax", 0)) == 1:
        sinks = b.const([0.0] * heads)
    kind = int(b.attributes.get("qk_output", 0)) if b.wants(3) else 0
    b.end(0, _weighted(b, query, key, value, masks, float(b.attributes.get("softcap", 0.0)), sinks, kind))


def rotary_embedding(b: Body, table: Callable[[Body, str, str, str], str] | None = None) -> None:
    """Write out RotaryEmbedding; ``table`` looks up the rows of a cache."""
    table = table or _table
    # input, position_ids, cos_cache, sin_cache -> output
    _refuse(b, is_packed_batching=0, scale=1.0)
    heads, rank = int(b.attributes.get("num_heads", 0)), b.rank(b.input(0), 3)
    pairs, rotary = int(b.attributes.get("interleaved", 0)), int(b.attributes.get("rotary_embedding_dim", 0))
    x = b.input(0)
    if rank == 3:
        if heads:
            extents = b.const([0, 0, heads, -1], "int64")
        else:
            width = b.op("Mul", b.extent(b.input(2), 1), b.const([2], "int64"))
            extents = b.op("Concat", b.const([0, 0, -1], "int64"), width, axis=0)
        x = _to_front(b, b.op("Reshape", x, extents))
    tables = [table(b, b.input(i), b.input(1), x) for i in (2, 3)]
    y = _rotated(b, x, *tables, b.input(2), bool(pairs), rest=rotary > 0)
    b.end(0, _merged(b, y) if rank == 3 else y)


def several_rotary_embedding(b: Body) -> None:
    """Write out MRotaryEmbedding, whose tokens have a place in time, a row and a column: [3, B, S]."""
    sections = [int(n) for n in b.attributes["mrope_section"]]
    if int(b.attributes.get("mrope_layout", 0)):  # time, row and column by turns, then time
        place = np.zeros(sum(sections), np.int64)
        for n in (1, 2):
            place[n : 3 * sections[n] : 3] = n
    else:
        place = np.repeat(np.arange(3), sections)

    def table(b: Body, cache: str, positions: str, x: str) -> str:
        rows = b.row(cache, positions)  # [3, B, S, R / 2]
        one = b.op("Gather", rows, b.const(0, "int64"), axis=0)
        for n in (1, 2):
            other = b.op("Gather", rows, b.const(n, "int64"), axis=0)
            one = b.op("Where", b.const(place == n, "bool"), other, one)
        return b.op("Unsqueeze", one, b.const([1], "int64"))

    rotary_embedding(b, table)


# ---- parts ---------------------------------------------------------------------------------


def _refuse(b: Body, *, inputs: dict | None = None, outputs: dict | None = None, **attributes: float) -> None:
    """Refuse what the expansion does not cover: inputs that are there, outputs asked for, attributes that
    differ."""
    reasons = [f"takes {what}" for i, what in (inputs or {}).items() if b.input(i)]
    reasons += [f"gives {what}" for i, what in (outputs or {}).items() if b.wants(i)]
    reasons += [
        f"has {name}={b.attributes[name]}"
        for name, default in attributes.items()
        if b.attributes.get(name, default) not in (default, -1)
    ]
    if reasons:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} ({b.node.op_type}) {', '.join(dict.fromkeys(reasons))}, "
            "which is not supported.",
            hint="Export the model for whole sequences, without a cache of past keys and values.",
        )


def _heads(b: Body, x: str, heads: int) -> str:
    """Divide [B, S, N * D] into heads: [B, N, S, D]."""
    return _to_front(b, b.op("Reshape", x, b.const([0, 0, heads, -1], "int64")))


def _to_front(b: Body, x: str) -> str:
    """Move the heads of [B, S, N, D] to the front: [B, N, S, D]."""
    return b.op("Transpose", x, perm=[0, 2, 1, 3])


def _merged(b: Body, x: str) -> str:
    """Join the heads of [B, N, S, D]: [B, S, N * D]."""
    return b.op("Reshape", _to_front(b, x), b.const([0, 0, -1], "int64"))


def _biased(b: Body, parts: list[str], bias: str, heads: int) -> list[str]:
    """Add the parts of a bias to queries, keys and values [B, N, S, D]."""
    start, biased = b.const([0], "int64") if bias else "", list(parts)
    for i, x in enumerate(parts if bias else ()):
        width = b.op("Mul", b.extent(x, 3), b.const([heads], "int64"))
        end = b.op("Add", start, width)
        part = b.op("Slice", bias, start, end, b.const([0], "int64"))
        biased[i] = b.op("Add", x, b.op("Reshape", part, b.const([heads, 1, -1], "int64")))
        start = end
    return biased


def _stacked(b: Body, x: str, index: int) -> str:
    """Part number ``index`` of [B, S, N, parts, D]."""
    return b.op("Gather", x, b.const(index, "int64"), axis=3)


def _repeated(b: Body, x: str, heads: int, times: int) -> str:
    """Repeat every head of [B, N, S, D] ``times`` times."""
    length, dim = b.extent(x, 2), b.extent(x, 3)
    apart = b.op("Concat", b.const([0, heads // times, 1], "int64"), length, dim, axis=0)
    wide = b.op("Expand", b.op("Reshape", x, apart), b.const([1, 1, times, 1, 1], "int64"))
    return b.op("Reshape", wide, b.op("Concat", b.const([0, heads], "int64"), length, dim, axis=0))


def _weighted(
    b: Body,
    query: str,
    key: str,
    value: str,
    masks: list[str],
    softcap: float = 0.0,
    sinks: str = "",
    shown: int = 0,
) -> str:
    """``softmax(Q K^T * scale + masks) V`` of [B, N, S, D] as [B, S, N * D]; ``sinks`` [N] take a share.

    ``shown`` says what output 3 is: scores with zeros where the first mask hides (1), weights (2), or masked
    scores (3).
    """
    scale = float(b.attributes.get("scale", 0.0))
    if scale:
        factor = b.const(scale)
    else:
        dim = b.op("Cast", b.extent(query, 3), to=TensorProto.FLOAT)
        factor = b.op("Div", b.const([1.0]), b.op("Sqrt", dim))
    scores = b.op("Mul", b.op("MatMul", query, b.op("Transpose", key, perm=[0, 1, 3, 2])), factor)
    if softcap:
        scores = b.op("Mul", b.op("Tanh", b.op("Div", scores, b.const(softcap))), b.const(softcap))
    for mask in masks:
        scores = b.op("Add", scores, mask)
    weights = _beside_sinks(b, scores, sinks) if sinks else b.op("Softmax", scores, axis=-1)
    if shown == 1:
        open_keys = b.op("GreaterOrEqual", masks[0], b.const(0.0))
        b.end(3, _so_far(b, b.op("Where", open_keys, scores, b.const(0.0))))
    elif shown:
        b.end(3, _so_far(b, weights) if shown == 2 else scores)
    return _merged(b, b.op("MatMul", weights, value))


def _so_far(b: Body, x: str) -> str:
    """Scores of GroupQueryAttention for the keys so far, where its cache is a buffer with room behind."""
    if b.is_empty(b.input(3)) or not is_buffer(b):
        return x
    end = b.op("Reshape", b.op("Cast", b.input(6), to=TensorProto.INT64), b.const([1], "int64"))
    return b.op("Slice", x, b.const([0], "int64"), end, b.const([3], "int64"))


def _beside_sinks(b: Body, scores: str, sinks: str) -> str:
    """Weights of keys where each head has one more score, its sink, to which no value belongs."""
    column = b.op("Reshape", sinks, b.const([1, -1, 1, 1], "int64"))
    one = b.const([1], "int64")
    extents = b.op("Concat", *(b.extent(scores, axis) for axis in range(3)), one, axis=0)
    wide = b.op("Concat", scores, b.op("Expand", column, extents), axis=3)
    return b.cut(b.op("Softmax", wide, axis=-1), 3, 0, -1)


def _masks(b: Body, query: str, key: str, key_mask: str) -> list[str]:
    """Additive masks: the operator's own, that of keys, and the causal one."""
    masks = [b.input(5)] if b.input(5) else []
    if key_mask:
        masks.append(_key_mask(b, key_mask, key))
    if int(b.attributes.get("unidirectional", 0)):
        masks.append(_causal(b, query, key))
    return masks


def _key_mask(b: Body, mask: str, key: str) -> str:
    """Additive mask from a mask of keys: [B, T] or [B, S, T] of 0 and 1, or [B] lengths."""
    rank = b.rank(mask, 2)
    hidden = b.const(float(b.attributes.get("mask_filter_value", -10000.0)))
    if rank == 1:
        _refuse_starts(b, mask)
        places = counted_along(b, key, [1, -1])
        # The number of sequences is written out, so that a mask with starts cannot pass for more of them.
        column = b.op("Concat", b.extent(key, 0), b.const([1], "int64"), axis=0)
        lengths = b.op("Reshape", b.op("Cast", mask, to=TensorProto.INT64), column)
        positive = b.every(b.op("GreaterOrEqual", lengths, b.const(0, "int64")))
        lengths = b.checked(lengths, positive, "int64", f"{mask} must be 0 or more")
        seen, rank = b.op("Less", places, lengths), 2
    else:
        seen = b.op("Cast", mask, to=TensorProto.BOOL)
    added = b.op("Where", seen, b.const(0.0), hidden)
    if rank == 2:
        extents = b.op("Concat", b.const([-1, 1, 1], "int64"), b.extent(key, 2), axis=0)
        return b.op("Reshape", added, extents)
    if rank == 3:
        extents = b.op("Concat", b.const([0, 1, -1], "int64"), b.extent(key, 2), axis=0)
        return b.op("Reshape", added, extents)
    raise UnsupportedOperatorError(
        f"Node {b.node.name!r} ({b.node.op_type}) has a mask of rank {rank}; 1, 2 and 3 are supported."
    )


def _refuse_starts(b: Body, mask: str) -> None:
    """Refuse a mask known not to be one length per sequence: lengths and starts [2 B], packed [3 B + 2]."""
    counts, extents = b.shape(mask), b.shape(b.input(0))
    if counts and extents and None not in (counts[0], extents[0]) and counts[0] != extents[0]:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} ({b.node.op_type}) has a mask of {counts[0]} numbers for {extents[0]} "
            "sequences; one length per sequence is supported.",
            hint="Export the model with a mask [batch, keys] of 0 and 1.",
        )


def _causal(b: Body, query: str, key: str, window: int = -1) -> str:
    """Additive mask [S, T] that hides keys after their query, or ``window`` or more before it."""
    last = b.op("Add", counted_along(b, query, [-1, 1]), b.op("Sub", b.extent(key, 2), b.extent(query, 2)))
    return _seen(b, counted_along(b, key, [1, -1]), last, window)


def _normed(b: Body, x: str, weight: int, letter: str) -> str:
    """RMS norm of each head of ``x`` [B, N, S, D], where input ``weight`` [D] is there."""
    if not b.input(weight):
        return x
    common = float(b.attributes.get("qk_norm_epsilon", 1e-6))
    epsilon = float(b.attributes.get(f"{letter}_norm_epsilon", common))
    return b.op("Mul", b.rms_norm(x, epsilon), b.input(weight))


def _seen(b: Body, places: str, last: str, window: int) -> str:
    """Additive mask that hides keys behind ``last``, or ``window`` or more before it."""
    seen = b.op("LessOrEqual", places, last)
    if window > 0:
        first = b.op("Sub", last, b.const(window, "int64"))
        seen = b.op("And", seen, b.op("Greater", places, first))
    return b.op("Where", seen, b.const(0.0), b.const(_LOWEST))


def _table(b: Body, cache: str, positions: str, x: str) -> str:
    """Rows of a cache [positions, R / 2] for ``x`` [B, N, S, D], as [B or 1, 1, S, R / 2]."""
    if not positions:
        positions = counted_along(b, x, [1, -1])
    elif b.rank(positions, 2) == 1:  # the first position of all sequences
        positions = b.op(
            "Add", counted_along(b, x, [1, -1]), b.op("Reshape", positions, b.const([1, 1], "int64"))
        )
    rows = b.row(cache, positions)
    extents = b.op("Concat", b.const([0, 1, -1], "int64"), b.extent(cache, 1), axis=0)
    return b.op("Reshape", rows, extents)


def _rotated(b: Body, x: str, cos: str, sin: str, cache: str, interleaved: bool, *, rest: bool) -> str:
    """``x`` [B, N, S, D] with its first R elements rotated; ``rest`` says that D may be more than R."""
    zero, axis, half = b.const([0], "int64"), b.const([3], "int64"), b.extent(cache, 1)
    rotary = b.op("Mul", half, b.const([2], "int64"))
    if interleaved:
        two = b.const([2], "int64")
        first = b.op("Slice", x, zero, rotary, axis, two)
        second = b.op("Slice", x, b.const([1], "int64"), rotary, axis, two)
    else:
        first = b.op("Slice", x, zero, half, axis)
        second = b.op("Slice", x, half, rotary, axis)
    low = b.op("Sub", b.op("Mul", first, cos), b.op("Mul", second, sin))
    high = b.op("Add", b.op("Mul", second, cos), b.op("Mul", first, sin))
    if interleaved:
        ends = b.op("Concat", b.const([0, 0, 0], "int64"), half, b.const([1], "int64"), axis=0)
        pairs = b.op("Concat", *(b.op("Reshape", part, ends) for part in (low, high)), axis=-1)
        turned = b.op("Reshape", pairs, b.op("Concat", b.const([0, 0, 0], "int64"), rotary, axis=0))
    else:
        turned = b.op("Concat", low, high, axis=-1)
    if not rest:
        return turned
    behind = b.op("Slice", x, rotary, b.const([np.iinfo(np.int64).max], "int64"), axis)
    return b.op("Concat", turned, behind, axis=-1)
