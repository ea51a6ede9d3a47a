"""Attention with its sums, and its gradient, against PyTorch's own kernels."""

import pytest
import torch

from hetero_tvm.frontend.torch.decompositions import decompositions

ATEN = torch.ops.aten
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}  # float32: their softmax goes block by block
HIDDEN = torch.zeros(5, 5).masked_fill(torch.eye(5, dtype=torch.bool), float("-inf"))
MASKS = {"none": None, "added": torch.linspace(-2, 2, 50).reshape(2, 1, 5, 5), "hidden": HIDDEN}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_both_directions(causal, mask):
    if causal and mask != "none":
        pytest.skip("PyTorch takes one of them")
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 5, 8) for _ in range(3))
    forward = ATEN._scaled_dot_product_flash_attention_for_cpu
    settings = {"attn_mask": MASKS[mask]}
    want, sums = forward(query, key, value, 0.0, causal, **settings)
    found = decompositions()[forward.default](query, key, value, 0.0, causal, **settings)
    torch.testing.assert_close(found[0], want, **TOLERANCE)
    torch.testing.assert_close(found[1], sums, **TOLERANCE)
    backward = ATEN._scaled_dot_product_flash_attention_for_cpu_backward
    arguments = torch.randn_like(want), query, key, value, want, sums, 0.0, causal
    found = decompositions()[backward.default](*arguments, **settings)
    for have, expected in zip(found, backward(*arguments, **settings), strict=True):
        torch.testing.assert_close(have, expected, **TOLERANCE)


def test_dropout_is_left_to_pytorch():
    query = torch.randn(1, 1, 2, 4)
    forward = decompositions()[ATEN._scaled_dot_product_flash_attention_for_cpu.default]
    assert forward(query, query, query, 0.5) is NotImplemented


@pytest.mark.parametrize("causal", [False, True])
def test_heads_that_share_keys_and_values(causal):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 5, 8) for heads in (6, 2, 2))
    grouped = decompositions()[torch.ops.aten.scaled_dot_product_attention.default]
    found = grouped(q, k, v, None, 0.0, causal, enable_gqa=True)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(found, expected)
    assert grouped(q, q, q) is NotImplemented


@pytest.mark.parametrize("masked", [False, True])
def test_heads_of_windows_are_heads(masked):
    """NesT has five axes, of which PyTorch's exporter takes four."""
    q, k, v = (torch.randn(2, 3, 4, 5, 8) for _ in range(3))
    mask = torch.randn(3, 1, 5, 5) if masked else None
    found = decompositions()[torch.ops.aten.scaled_dot_product_attention.default](q, k, v, mask)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(found, expected)


def test_gradients_of_heads_that_query_heads_share():
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    each = [x.repeat_interleave(3, 1) for x in (key, value)]
    out, sums = ATEN._scaled_dot_product_flash_attention_for_cpu(query, *each, 0.0, True)
    backward = ATEN._scaled_dot_product_flash_attention_for_cpu_backward
    grad = torch.randn_like(out)
    found = decompositions()[backward.default](grad, query, key, value, out, sums, 0.0, True)
    of_query, *others = backward(grad, query, *each, out, sums, 0.0, True)
    wanted = of_query, *(x.unflatten(1, (2, 3)).sum(2) for x in others)
    for have, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(have, expected, **TOLERANCE)
