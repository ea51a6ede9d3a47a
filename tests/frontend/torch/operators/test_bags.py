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


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("padding", [-1, 4])
def test_facts_of_bags_and_gradients_of_their_tables(mode, padding):
    aten = torch.ops.aten
    weight, indices, offsets = torch.randn(5, 3), torch.tensor([0, 1, 2, 4, 1]), torch.tensor([0, 2, 2])
    given = weight, indices, offsets, False, mode, False, None, False, padding
    expected = aten._embedding_bag.default(*given)
    torch.testing.assert_close(decompositions()[aten._embedding_bag.default](*given), tuple(expected))
    given = torch.randn(3, 3), indices, offsets, *expected[1:], 5, False, mode, False, None, padding
    found = decompositions()[aten._embedding_bag_backward.default](*given)
    torch.testing.assert_close(found, aten._embedding_bag_backward.default(*given))
