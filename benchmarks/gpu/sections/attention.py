"""Attention beside PyTorch's flash backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.case import Case, Section
from hetero_tvm.ops.attention import Attention


def _heads(op: Attention, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Q [B, H, Sq, D], K and V [B, Hkv, Sk, D] as views of the operands."""
    query, key, value = tensors[:3]
    return [
        query.reshape(op.batch, op.q_len, op.heads, op.head_dim).transpose(1, 2),
        key.reshape(op.batch, op.kv_len, op.kv_heads, op.head_dim).transpose(1, 2),
        value.reshape(op.batch, op.kv_len, op.kv_heads, op.values).transpose(1, 2),
    ]


def _options(op: Attention) -> dict[str, Any]:
    # A causal mask of few queries behind many keys is not PyTorch's: only squares and single queries here.
    causal = op.causal and op.q_len > 1
    return {"is_causal": causal, "scale": op.scale, "enable_gqa": op.kv_heads != op.heads}


def compute(op: Attention, *tensors: torch.Tensor) -> torch.Tensor:
    mask = tensors[3] if op.mask else None
    result = F.scaled_dot_product_attention(*_heads(op, *tensors), attn_mask=mask, **_options(op))
    return result.transpose(1, 2).reshape(op.output.shape)


def flash(op: Attention, *tensors: torch.Tensor) -> Callable[[], Any]:
    """Call of PyTorch's flash backend, and no other."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query, key, value = _heads(op, *tensors)

    def call() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(query, key, value, **_options(op))

    return call


def cudnn(op: Attention, *tensors: torch.Tensor) -> Callable[[], Any]:
    """Call of cuDNN's kernels, the fastest on Hopper as a rule."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query, key, value = _heads(op, *tensors)

    def call() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(query, key, value, **_options(op))

    return call


def sdpa(op: Attention, *tensors: torch.Tensor) -> Callable[[], Any]:
    """Call of the backend that PyTorch chooses."""
    return lambda: compute(op, *tensors)


def _case(
    batch: int,
    heads: int,
    length: int,
    dim: int,
    *,
    keys: int = 0,
    kv_heads: int = 0,
    causal: bool = True,
    mask: tuple[int, ...] = (),
    dtype: str = "float16",
    **more: Any,
) -> Case:
    sizes = (batch, heads, length, keys or length, dim, dim**-0.5, kv_heads or heads)
    op = Attention(*sizes, mask=mask, causal=causal, dtype=dtype)
    half = dtype != "float32"
    peers = {"flash": flash, "cudnn": cudnn} if half and not mask else {"sdpa": sdpa}
    precision = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}[dtype]
    return Case(op, compute, peers, precision, **more)


_GOAL: dict[str, Any] = {"goals": {"flash": 0.6}, "trials": 0.5, "first": True}

ATTENTION = Section(
    "attention",
    (
        _case(4, 16, 2048, 64, **_GOAL),
        _case(4, 16, 2048, 128, **_GOAL),
        *(_case(4, 16, 2048, dim, causal=False) for dim in (64, 128)),
        _case(8, 12, 512, 64, causal=False),
        _case(2, 32, 2048, 128, kv_heads=8),
        _case(8, 32, 1, 128, keys=4096, kv_heads=8),
        _case(4, 16, 2048, 64, dtype="bfloat16"),
        _case(2, 12, 1024, 64, dtype="float32"),
    ),
    (
        *(
            _case(1, 2, 40, dim, causal=causal)
            for dim, causal in itertools.product((32, 64, 128), (True, False))
        ),
        _case(2, 4, 33, 64, kv_heads=2, mask=(2, 1, 33, 33), causal=False),
        _case(1, 4, 1, 64, keys=77, kv_heads=2),
        _case(1, 2, 40, 64, dtype="bfloat16"),
        _case(1, 2, 40, 32, dtype="float32"),
    ),
)
