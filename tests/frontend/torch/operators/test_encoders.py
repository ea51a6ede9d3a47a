"""Layers that PyTorch fuses without gradients, against its own kernels and as Dynamo meets them."""

import warnings

import pytest
import torch

from hetero_tvm.frontend.torch.decompositions import decompositions

ATEN = torch.ops.aten
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}  # float32: sums in another order
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
MERGED = (CAUSAL | PADDED[:, None, :])[:, None].expand(2, 4, 5, 5).contiguous()
MASKS = {
    "none": (None, None),
    "rows": (CAUSAL, 0),
    "keys": (PADDED, 1),
    "both": (MERGED, 2),
    "floats": (torch.zeros(5, 5).masked_fill(CAUSAL, float("-inf")), 0),
}


def draw(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


@pytest.mark.filterwarnings("ignore:Converting mask")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("gelu", "norm_first"), [(False, False), (True, True)])
def test_encoder_layer(mask, gelu, norm_first):
    source, *attention = draw((2, 5, 16), (48, 16), (48,), (16, 16), (16,))
    rest = draw((16,), (16,), (16,), (16,), (24, 16), (24,), (16, 24), (16,))
    arguments = source, 16, 4, *attention, gelu, norm_first, 1e-5, *rest, *MASKS[mask]
    operator = ATEN._transformer_encoder_layer_fwd.default
    torch.testing.assert_close(decompositions()[operator](*arguments), operator(*arguments), **TOLERANCE)


@pytest.mark.filterwarnings("ignore:Converting mask")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("average", [False, True])
def test_attention_with_its_weights(mask, average):
    x, *parameters = draw((2, 5, 16), (48, 16), (48,), (16, 16), (16,))
    kept, kind = MASKS[mask]
    arguments = x, x, x, 16, 4, *parameters, kept, True, average, kind
    operator = ATEN._native_multi_head_attention.default
    found, wanted = decompositions()[operator](*arguments), operator(*arguments)
    for have, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(have, expected, **TOLERANCE)


@pytest.mark.thorough
@pytest.mark.parametrize("need_weights", [False, True])
def test_torch_compile_leaves_nothing_of_them_to_pytorch(tmp_path, need_weights):
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
            self.encoder = torch.nn.TransformerEncoder(layer, 2)
            self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x):
            x = self.encoder(x)
            return self.attention(x, x, x, need_weights=need_weights)[0]

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, (x,) = Both().eval(), draw((2, 5, 16))
    net = torch.compile(model, backend="hetero_tvm", options={"cache": tmp_path, "refused": "raise"})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(net(x), model(x), **TOLERANCE)
