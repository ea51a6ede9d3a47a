"""Forms of attention that both kernels of the GPU are tested with."""

from __future__ import annotations

import dataclasses

from hetero_tvm.ops.attention import Attention


def attention(q_len, kv_len, head_dim=32, heads=2, batch=1, dtype="float16", **fields):
    fields = {"kv_heads": heads, **fields}
    return Attention(batch, heads, q_len, kv_len, head_dim, head_dim**-0.5, dtype=dtype, **fields)


def forms(dtype):
    """Masks, windows, caps, heads that share keys, lengths and head dimensions that fill no tile."""

    def of(*args, **fields):
        return attention(*args, dtype=dtype, **fields)

    packed = of(40, 40, heads=4, packed=True)
    # fmt: off
    return [
        of(1, 1), of(1, 77), of(17, 5), of(33, 33, causal=True), of(20, 70, causal=True),
        of(70, 20, causal=True, zero_masked=True), of(12, 12, 16, batch=3),
        of(9, 40, 128), of(5, 21, 48), of(7, 19, 33),
        of(6, 18, 4), of(3, 5, 1), of(11, 13, 20, value_dim=7), of(6, 40, 80),
        packed, dataclasses.replace(packed, kv_heads=2, causal=True),
        of(24, 24, heads=4, kv_heads=1), of(1, 50, heads=6, kv_heads=2),
        of(3, 50, heads=4, kv_heads=1, causal=True, mask=(1, 4, 3, 50)),
        of(18, 66, mask=(1, 1, 1, 66)), of(20, 20, 32, value_dim=48), of(30, 50, causal=True, window=7),
        of(90, 90, causal=True, window=5), of(18, 34, softcap=5.0), of(8, 8, batch=4, mask=(2, 1, 8, 8)),
        # heads before rows, as [B, H, S, D]
        of(12, 12, 16, tensors=((1, 2, 12, 16),) * 3, places=tuple((i, 0, 384, 192, 16) for i in range(3))),
        of(18, 34, mask=(1, 2, 18, 34)), of(18, 34, batch=2, mask=(2, 1, 18, 34)),
        dataclasses.replace(of(5, 9, 8), scale=-0.5),
    ]
    # fmt: on
