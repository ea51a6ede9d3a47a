"""Scaled dot-product attention of several heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand


@dataclass(frozen=True)
class Attention(FusedOp):
    """``softmax(Q K^T * scale + mask) V`` per head (Vaswani et al., 2017).

    Parameters
    ----------
    batch, heads, q_len, kv_len, head_dim : extents B, H, Sq, Sk, D.
    scale : factor on the scores.
    kv_heads : heads of K and V; fewer than ``heads`` is grouped-query attention, where query head h
        uses key head ``h * kv_heads // heads``.
    packed : one operand QKV [B, S, (H + 2 Hkv) * D] holds queries, keys and values side by side
        (Sq = Sk); otherwise Q [B, Sq, H * D], K and V [B, Sk, Hkv * D].
    mask : shape of the additive mask, 4-D, each extent 1 or that of [B, H, Sq, Sk]; () for none.
    causal : key j is visible to query i when ``j <= i + Sk - Sq``.
    zero_masked : a query whose scores are all -inf gives zero (exporters of PyTorch's attention guard
        it so); otherwise what it gives is not defined.

    The result is [B, Sq, H * D].
    """

    kind: ClassVar[str] = "attention"

    batch: int
    heads: int
    q_len: int
    kv_len: int
    head_dim: int
    scale: float
    kv_heads: int
    packed: bool = False
    mask: tuple[int, ...] = ()
    causal: bool = False
    zero_masked: bool = False

    @property
    def inputs(self) -> tuple[Operand, ...]:
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if self.packed:
            operands = [Operand("QKV", (self.batch, self.q_len, width + 2 * kv_width))]
        else:
            operands = [
                Operand("Q", (self.batch, self.q_len, width)),
                Operand("K", (self.batch, self.kv_len, kv_width)),
                Operand("V", (self.batch, self.kv_len, kv_width)),
            ]
        if self.mask:
            operands.append(Operand("mask", self.mask))
        return tuple(operands)

    @property
    def output(self) -> Operand:
        return Operand("O", (self.batch, self.q_len, self.heads * self.head_dim))

    @property
    def flops(self) -> int:
        return (
            4
            * self.batch
            * self.heads
            * self.q_len
            * self.kv_len
            * self.head_dim
            // (2 if self.causal else 1)
        )

    @property
    def label(self) -> str:
        shape = f"attention_b{self.batch}h{self.heads}q{self.q_len}k{self.kv_len}d{self.head_dim}"
        return shape + "".join(
            f"_{name}" for name in ("packed", "mask", "causal", "zero_masked") if getattr(self, name)
        )

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        arrays_ = list(arrays)
        mask = arrays_.pop() if self.mask else None
        if self.packed:
            query, key, value = np.split(arrays_[0], [width, width + kv_width], axis=-1)
        else:
            query, key, value = arrays_

        def heads_first(x: np.ndarray, heads: int) -> np.ndarray:
            x_BHSD = x.reshape(self.batch, -1, heads, self.head_dim).transpose(0, 2, 1, 3)
            return np.repeat(x_BHSD, self.heads // heads, axis=1)

        query_BHSD = heads_first(query, self.heads)
        key_BHSD, value_BHSD = heads_first(key, self.kv_heads), heads_first(value, self.kv_heads)
        scores = query_BHSD @ key_BHSD.swapaxes(-1, -2) * query.dtype.type(self.scale)
        if mask is not None:
            scores = scores + mask
        if self.causal:
            i, j = np.arange(self.q_len)[:, None], np.arange(self.kv_len)
            scores = np.where(j <= i + self.kv_len - self.q_len, scores, -np.inf)
        peak = scores.max(-1, keepdims=True)
        if self.zero_masked:
            blind = peak == -np.inf
            weights = np.exp(scores - np.where(blind, 0, peak))
            weights = weights / np.where(blind, 1, weights.sum(-1, keepdims=True))
        else:
            weights = np.exp(scores - peak)
            weights = weights / weights.sum(-1, keepdims=True)
        return (weights @ value_BHSD).transpose(0, 2, 1, 3).reshape(self.output.shape)

    def workload(self):
        from tvm import te, tirx, topi

        from hetero_tvm.ops.te_workload import prim_func

        dim, group = self.head_dim, self.heads // self.kv_heads
        hidden = -np.inf if self.zero_masked else -3.0e38
        key_at, value_at = self.heads * dim, (self.heads + self.kv_heads) * dim

        def compute(*operands):
            operands = list(operands)
            mask = operands.pop() if self.mask else None
            q, key, v = operands * 3 if self.packed else operands
            k_off, v_off = (key_at, value_at) if self.packed else (0, 0)
            d = te.reduce_axis((0, dim), name="d")
            scores = te.compute(
                (self.batch, self.heads, self.q_len, self.kv_len),
                lambda b, h, i, j: te.sum(
                    q[b, i, h * dim + d] * key[b, j, k_off + h // group * dim + d], axis=d
                ),
                name="scores",
            )

            def masked(b, h, i, j):
                value = scores[b, h, i, j] * tirx.const(self.scale, "float32")
                if mask is not None:
                    at = [0 if extent == 1 else x for extent, x in zip(self.mask, (b, h, i, j), strict=True)]
                    value = value + mask[tuple(at)]
                if self.causal:
                    visible = j <= i + (self.kv_len - self.q_len)
                    value = tirx.Select(visible, value, tirx.const(hidden, "float32"))
                return value

            weights = topi.nn.softmax(te.compute(scores.shape, masked, name="masked"), axis=-1)
            if self.zero_masked:
                guarded = weights
                weights = te.compute(
                    guarded.shape,
                    lambda *i: tirx.Select(tirx.isnan(guarded(*i)), tirx.const(0.0, "float32"), guarded(*i)),
                    name="guarded",
                )
            j = te.reduce_axis((0, self.kv_len), name="j")
            return te.compute(
                self.output.shape,
                lambda b, i, c: te.sum(
                    weights[b, c // dim, i, j] * v[b, j, v_off + c // dim // group * dim + c % dim], axis=j
                ),
                name="O",
            )

        return prim_func(self, compute)
