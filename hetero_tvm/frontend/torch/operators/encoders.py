"""Layers that PyTorch runs as one operator without gradients: of encoders, and of attention."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """The operators of ``TransformerEncoderLayer`` and ``MultiheadAttention`` under ``torch.no_grad()``."""
    aten, nn = torch.ops.aten, torch.nn.functional

    def hidden(mask: Tensor | None, mask_type: int | None) -> Tensor | None:
        """Places whose scores are left out, [batch or 1, heads or 1, rows or 1, columns]."""
        if mask is None:
            return None
        mask = mask.to(torch.bool)  # as PyTorch's kernels do: what is not zero is left out
        if mask_type == 1:  # keys of each text
            return mask[:, None, None, :]
        return mask[None, None] if mask.dim() == 2 else mask

    def attend(
        inputs: tuple[Tensor, Tensor, Tensor],
        heads: int,
        weight: Tensor,
        bias: Tensor,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The heads' results side by side, and their weights."""
        width = inputs[0].shape[-1]
        query, key, value = (
            nn.linear(x, w, b).unflatten(-1, (heads, width // heads)).transpose(1, 2)
            for x, w, b in zip(inputs, weight.chunk(3), bias.chunk(3), strict=True)
        )
        scores = (query @ key.transpose(-1, -2)) * (width // heads) ** -0.5
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        weights = torch.softmax(scores, -1)
        return (weights @ value).transpose(1, 2).flatten(2), weights

    def encoder_layer(
        src: Tensor,
        embed_dim: int,
        num_heads: int,
        qkv_weight: Tensor,
        qkv_bias: Tensor,
        proj_weight: Tensor,
        proj_bias: Tensor,
        use_gelu: bool,
        norm_first: bool,
        eps: float,
        norm_weight_1: Tensor,
        norm_bias_1: Tensor,
        norm_weight_2: Tensor,
        norm_bias_2: Tensor,
        ffn_weight_1: Tensor,
        ffn_bias_1: Tensor,
        ffn_weight_2: Tensor,
        ffn_bias_2: Tensor,
        mask: Tensor | None = None,
        mask_type: int | None = None,
    ) -> Any:
        left_out = hidden(mask, mask_type)

        def attention(x: Tensor) -> Tensor:
            found, _ = attend((x, x, x), num_heads, qkv_weight, qkv_bias, left_out)
            return nn.linear(found, proj_weight, proj_bias)

        def feed_forward(x: Tensor) -> Tensor:
            inner = nn.linear(x, ffn_weight_1, ffn_bias_1)
            return nn.linear(nn.gelu(inner) if use_gelu else nn.relu(inner), ffn_weight_2, ffn_bias_2)

        def first(x: Tensor) -> Tensor:
            return nn.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

        def second(x: Tensor) -> Tensor:
            return nn.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

        if norm_first:
            x = src + attention(first(src))
            return x + feed_forward(second(x))
        x = first(src + attention(src))
        return second(x + feed_forward(x))

    def multi_head_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        embed_dim: int,
        num_head: int,
        qkv_weight: Tensor,
        qkv_bias: Tensor,
        proj_weight: Tensor,
        proj_bias: Tensor,
        mask: Tensor | None = None,
        need_weights: bool = True,
        average_attn_weights: bool = True,
        mask_type: int | None = None,
    ) -> Any:
        found, weights = attend((query, key, value), num_head, qkv_weight, qkv_bias, hidden(mask, mask_type))
        shown = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
        return nn.linear(found, proj_weight, proj_bias), shown

    return {
        aten._transformer_encoder_layer_fwd.default: encoder_layer,
        aten._native_multi_head_attention.default: multi_head_attention,
    }
