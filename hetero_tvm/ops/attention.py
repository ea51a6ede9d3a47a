"""Scaled dot-product attention of several heads."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand, strided_view, suffix

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import Expr, PrimFunc


class Heads(NamedTuple):
    """Strides of the heads of queries, keys or values: element (b, h, s, d) of operand number ``operand``,
    taken as flat memory, is at ``offset + b * batch + h * head + s * row + d``."""

    operand: int
    offset: int
    batch: int
    head: int
    row: int


@dataclass(frozen=True)
class Attention(FusedOp):
    """``softmax(Q K^T * scale + mask) V`` per head (Vaswani et al., 2017).

    Parameters
    ----------
    batch, heads, q_len, kv_len, head_dim : extents B, H, Sq, Sk, D.
    scale : factor on the scores.
    kv_heads : heads of K and V; fewer than ``heads`` is grouped-query attention, where query head h
        uses key head ``h * kv_heads // heads``.
    packed : one operand QKV [B, S, H * D + Hkv * (D + Dv)] holds queries, keys and values side by side
        (Sq = Sk); otherwise Q [B, Sq, H * D], K [B, Sk, Hkv * D] and V [B, Sk, Hkv * Dv].
    mask : shape of the additive mask, 4-D, each extent 1 or that of [B, H, Sq, Sk]; () for none.  The
        first may also divide B: sequence b then uses mask ``b % mask[0]`` (Swin's windows).
    causal : key j is visible to query i when ``j <= i + Sk - Sq``.
    zero_masked : a query whose scores are all -inf gives zero (exporters of PyTorch's attention guard
        it so); otherwise what it gives is not defined.
    zero_by_mask : with ``zero_masked``, a query whose mask is -inf for all keys gives zero whatever its
        scores are, NaN among them (ONNX defines Attention so).
    replaced : the mask's values other than 0 take the place of the scores instead of being added to them:
        what a hidden key's score is, NaN or infinity, does not matter.
    value_dim : Dv, elements of a value; 0 when it is D.
    window : with ``causal``, only the last ``window`` visible keys are; 0 for all of them.
    softcap : scores s become ``softcap * tanh(s / softcap)`` before the mask (Gemma 2); 0 for none.
    tensors, places : shapes of the operands that hold Q, K and V, and for each of the three its fields of
        :class:`Heads`, when they lie in none of the two ways above.
    dtype : type of Q, K, V and the result; the mask is float32, and so is all arithmetic.

    The result is [B, Sq, H * Dv].
    """

    kind: ClassVar[str] = "attention"
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = (
        "value_dim", "window", "softcap", "tensors", "places", "zero_by_mask", "replaced",
    )  # fmt: skip

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
    value_dim: int = 0
    window: int = 0
    softcap: float = 0.0
    tensors: tuple[tuple[int, ...], ...] = ()
    places: tuple[tuple[int, ...], ...] = ()
    zero_by_mask: bool = False
    replaced: bool = False
    dtype: str = "float32"

    @property
    def special(self) -> str | None:
        """Reason for spaces of plain attention to refuse this one; None when they need not."""
        if self.tensors:
            return "its operands lie at strides of their own"
        if self.mask and self.mask[0] not in (1, self.batch):
            return "its mask repeats with a period along the batch"
        named = [name for name in ("value_dim", "window", "softcap") if getattr(self, name)]
        return f"it has a {' and a '.join(named)}" if named else None

    @property
    def values(self) -> int:
        """Elements of one value, Dv."""
        return self.value_dim or self.head_dim

    @property
    def heads_at(self) -> tuple[Heads, Heads, Heads]:
        """Strides of Q, K and V in their operands."""
        if self.places:
            query, key, value = (Heads(*place) for place in self.places)
            return query, key, value
        dim, values = self.head_dim, self.values
        widths = self.heads * dim, self.kv_heads * dim, self.kv_heads * values
        total = sum(widths)

        def heads_at(i: int, length: int, head: int) -> Heads:
            if self.packed:
                return Heads(0, sum(widths[:i]), length * total, head, total)
            return Heads(i, 0, length * widths[i], head, widths[i])

        lengths, dims = (self.q_len, self.kv_len, self.kv_len), (dim, dim, values)
        query, key, value = map(heads_at, range(3), lengths, dims)
        return query, key, value

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the operands that hold Q, K and V."""
        if self.tensors:
            return self.tensors
        query, key, value = self.heads_at
        if self.packed:
            return ((self.batch, self.q_len, query.row),)
        return (
            (self.batch, self.q_len, query.row),
            (self.batch, self.kv_len, key.row),
            (self.batch, self.kv_len, value.row),
        )

    @property
    def inputs(self) -> tuple[Operand, ...]:
        held = [""] * len(self.shapes)
        for letter, place in zip("QKV", self.heads_at, strict=True):
            held[place.operand] += letter
        operands = [Operand(name, shape, self.dtype) for name, shape in zip(held, self.shapes, strict=True)]
        if self.mask:
            operands.append(Operand("mask", self.mask))
        return tuple(operands)

    @property
    def output(self) -> Operand:
        return Operand("O", (self.batch, self.q_len, self.heads * self.values), self.dtype)

    @property
    def flops(self) -> int:
        full = 2 * (self.head_dim + self.values) * self.batch * self.heads * self.q_len * self.kv_len
        seen = full // 2 if self.causal else full
        return min(seen, full * self.window // self.kv_len) if self.window else seen

    @property
    def label(self) -> str:
        shape = f"attention_b{self.batch}h{self.heads}q{self.q_len}k{self.kv_len}d{self.head_dim}"
        options = ("packed", "mask", "causal", "zero_masked", "window", "softcap")
        return "_".join([shape, *(name for name in options if getattr(self, name)), *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        mask = arrays[-1] if self.mask else None

        def heads_first(place: Heads, heads: int, length: int, dim: int) -> np.ndarray:
            shape_BHSD = (self.batch, heads, length, dim)
            x_BHSD = self.multiplied(strided_view(arrays[place.operand], shape_BHSD, (*place[1:], 1)))
            return np.repeat(x_BHSD, self.heads // heads, axis=1)

        query, key, value = self.heads_at
        query_BHSD = heads_first(query, self.heads, self.q_len, self.head_dim)
        key_BHSD = heads_first(key, self.kv_heads, self.kv_len, self.head_dim)
        value_BHSD = heads_first(value, self.kv_heads, self.kv_len, self.values)
        scores = query_BHSD @ key_BHSD.swapaxes(-1, -2) * query_BHSD.dtype.type(self.scale)
        if self.softcap:
            scores = scores.dtype.type(self.softcap) * np.tanh(scores / scores.dtype.type(self.softcap))
        if mask is not None:
            mask = np.tile(mask, (self.batch // mask.shape[0], 1, 1, 1))
            scores = np.where(mask == 0, scores, mask) if self.replaced else scores + mask
        if self.causal:
            i, j = np.arange(self.q_len)[:, None] + self.kv_len - self.q_len, np.arange(self.kv_len)
            scores = np.where((j <= i) & ((j > i - self.window) | (self.window == 0)), scores, -np.inf)
        peak = scores.max(-1, keepdims=True)
        blind = (peak == -np.inf) & self.zero_masked
        weights = np.exp(scores - np.where(blind, 0, peak))
        weights = weights / np.where(blind, 1, weights.sum(-1, keepdims=True))
        if self.zero_by_mask and mask is not None:
            weights = np.where(mask.max(-1, keepdims=True) == -np.inf, 0, weights)
        heads_BHSD = self.multiplied(weights) @ value_BHSD
        return heads_BHSD.transpose(0, 2, 1, 3).reshape(self.output.shape)

    def multiplied(self, x: np.ndarray) -> np.ndarray:
        """Queries, keys, values or weights as they are multiplied."""
        return x

    def multiplied_element(self, x: Expr) -> Expr:
        """One element of :meth:`multiplied` in TensorIR."""
        return x

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, tirx, topi
        from hetero_tvm.ops.te_workload import activation, at_flat, prim_func, wide

        dim, values, group = self.head_dim, self.values, self.heads // self.kv_heads
        hidden = -np.inf if self.zero_masked else -3.0e38

        def element(operands, place, b, h, s, d):
            tensor = operands[place.operand]
            if self.tensors:
                at = place.offset + b * place.batch + h * place.head + s * place.row + d
                return self.multiplied_element(wide(at_flat(tensor, at)))
            return self.multiplied_element(wide(tensor[b, s, place.offset + h * place.head + d]))

        def compute(*operands):
            operands = list(operands)
            mask = operands.pop() if self.mask else None
            query, key, value = self.heads_at
            d = te.reduce_axis((0, dim), name="d")
            scores = te.compute(
                (self.batch, self.heads, self.q_len, self.kv_len),
                lambda b, h, i, j: te.sum(
                    element(operands, query, b, h, i, d) * element(operands, key, b, h // group, j, d), axis=d
                ),
                name="scores",
            )

            def mask_at(b, h, i, j):
                at = [0 if extent == 1 else x for extent, x in zip(self.mask, (b, h, i, j), strict=True)]
                if self.mask[0] not in (1, self.batch):
                    at[0] = tirx.floormod(b, self.mask[0])
                return mask[tuple(at)]

            def masked(b, h, i, j):
                value = scores[b, h, i, j] * tirx.const(self.scale, "float32")
                if self.softcap:
                    cap = tirx.const(self.softcap, "float32")
                    value = cap * activation("tanh", value / cap)
                if mask is not None:
                    addend = mask_at(b, h, i, j)
                    if self.replaced:
                        value = tirx.Select(tirx.EQ(addend, tirx.const(0.0, "float32")), value, addend)
                    else:
                        value = value + addend
                if self.causal:
                    last = i + (self.kv_len - self.q_len)
                    visible = j <= last
                    if self.window:
                        visible = tirx.all(visible, j > last - self.window)
                    value = tirx.Select(visible, value, tirx.const(hidden, "float32"))
                return value

            weights = topi.nn.softmax(te.compute(scores.shape, masked, name="masked"), axis=-1)
            if self.zero_by_mask and mask is not None:
                shown = te.reduce_axis((0, self.kv_len), name="shown")
                largest = te.compute(
                    scores.shape[:3],
                    lambda b, h, i: te.max(mask_at(b, h, i, shown), axis=shown),
                    name="largest",
                )
                plain = weights
                weights = te.compute(
                    plain.shape,
                    lambda b, h, i, j: tirx.Select(
                        tirx.EQ(largest[b, h, i], tirx.const(-np.inf, "float32")),
                        tirx.const(0.0, "float32"),
                        plain[b, h, i, j],
                    ),
                    name="guarded",
                )
            elif self.zero_masked:
                guarded = weights
                weights = te.compute(
                    guarded.shape,
                    lambda *i: tirx.Select(tirx.isnan(guarded(*i)), tirx.const(0.0, "float32"), guarded(*i)),
                    name="guarded",
                )
            j = te.reduce_axis((0, self.kv_len), name="j")
            o = te.compute(
                self.output.shape,
                lambda b, i, c: te.sum(
                    self.multiplied_element(weights[b, c // values, i, j])
                    * element(operands, value, b, c // values // group, j, c % values),
                    axis=j,
                ),
                name="O",
            )
            return o if self.dtype == "float32" else te.compute(o.shape, lambda *i: o(*i).astype(self.dtype))

        return prim_func(self, compute)


def _places_that_matter(op: Attention) -> list[tuple[int, ...]]:
    """Places of Q, K and V with 0 as the stride of axes of extent 1, where it means nothing."""
    extents = (op.batch, op.heads, op.q_len), *((op.batch, op.kv_heads, op.kv_len),) * 2
    return [
        (*place[:2], *(stride * (extent > 1) for stride, extent in zip(place[2:], sizes, strict=True)))
        for place, sizes in zip(op.heads_at, extents, strict=True)
    ]


def standard(op: Attention) -> Attention:
    """Drop ``tensors`` and ``places`` of ``op`` when they describe one of the two usual layouts."""
    for packed in (True, False):
        plain = dataclasses.replace(op, packed=packed, tensors=(), places=())
        if packed and op.q_len != op.kv_len:
            continue
        same = _places_that_matter(plain) == _places_that_matter(op) and len(plain.shapes) == len(op.shapes)
        if same and all(math.prod(a) == math.prod(b) for a, b in zip(plain.shapes, op.shapes, strict=True)):
            return plain
    return op
