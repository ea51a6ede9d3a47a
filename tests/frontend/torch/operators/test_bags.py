"""Bags of embeddings against PyTorch's own, empty bags and padding included."""

import pytest
import torch

from hetero_tvm.frontend.torch.decompositions import decompositions

ATEN = torch.ops.aten


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padding", [-1, 3])
def test_bags(mode, last, padding):
    torch.manual_seed(0)
    weight, indices = torch.randn(7, 4), torch.tensor([3, 1, 3, 6, 0, 3])
    offsets = torch.tensor([0, 2, 2, 5, 6] if last else [0, 2, 2, 5])  # the second is empty
    arguments = weight, indices, offsets, False, mode, False, None, last, padding
    found = decompositions()[ATEN._embedding_bag_forward_only.default](*arguments)[0]
    torch.testing.assert_close(found, ATEN._embedding_bag_forward_only(*arguments)[0])


def test_weights_per_sample():
    torch.manual_seed(0)
    weight, indices = torch.randn(7, 4), torch.tensor([3, 1, 3, 6])
    arguments = weight, indices, torch.tensor([0, 3]), False, 0, False, torch.randn(4), False
    found = decompositions()[ATEN.embedding_bag.default](*arguments)[0]
    torch.testing.assert_close(found, ATEN.embedding_bag(*arguments)[0])
