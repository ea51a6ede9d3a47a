"""FlexAttention against PyTorch's own dense form."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from hetero_tvm.frontend.torch.flex import with_plain_attention
from tests.selection import thorough

N, D = 16, 8


class Biased(torch.nn.Module):
    """Scores with a bias by head and distance; PyTorch counts blocks inside of the program."""

    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.randn(4))

    def forward(self, q, k, v):
        def score(s, b, h, i, j):
            return s + (i - j) * self.slope[h]

        return flex_attention(q, k, v, score_mod=score, enable_gqa=True)


class Masked(torch.nn.Module):
    """Causal scores by a mask of blocks."""

    def __init__(self):
        super().__init__()
        self.mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, N, N, device="cpu")

    def forward(self, q, k, v):
        return flex_attention(q, k, v, block_mask=self.mask, scale=0.3, enable_gqa=True)


@pytest.mark.parametrize("kind", [*thorough([Biased]), Masked])
def test_programs(kind):
    torch.manual_seed(0)
    model, given = kind(), [torch.randn(2, heads, N, D) for heads in (4, 2, 2)]
    program = with_plain_attention(torch, torch.export.export(model, tuple(given)))
    assert not any("flex" in str(node.target) or "vmap" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(*given), model(*given))


def test_other_programs_stay_as_they_are():
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(2),))
    assert with_plain_attention(torch, program) is program
