"""Products by groups against loops over the groups."""

import pytest
import torch

from hetero_tvm.frontend.torch.decompositions import decompositions

ATEN = torch.ops.aten
torch.manual_seed(0)


def by_loop(x, weight, ends):
    found, start = torch.zeros(x.shape[0], weight.shape[2]), 0
    for group, end in enumerate(ends.tolist()):
        found[start:end] = x[start:end] @ weight[group]
        start = max(start, end)
    return found


@pytest.mark.parametrize(
    "rows, ends",
    [(6, [2, 2, 5, 6]), (6, [0, 0, 0, 6]), (6, [1, 2, 3, 4]), (1, [0, 1, 1, 1]), (1, [0, 0, 0, 0])],
    ids=["some empty", "one group", "rows of no group", "one row", "nothing"],
)
def test_products(rows, ends):
    x, weight = torch.randn(rows, 5), torch.randn(4, 5, 3)
    x[-1] = float("inf")  # of one row alone
    found = decompositions()[ATEN._grouped_mm.default](x, weight, torch.tensor(ends, dtype=torch.int32))
    torch.testing.assert_close(found, by_loop(x, weight, torch.tensor(ends)), equal_nan=True)


def test_other_forms_are_left_to_pytorch():
    table = decompositions()
    assert table[ATEN._grouped_mm.default](torch.ones(2, 3, 4), torch.ones(2, 4, 5)) is NotImplemented


def test_operators_of_transformers():
    pytest.importorskip("transformers.integrations.moe")
    table, ops = decompositions(), torch.ops.transformers
    x, weight, ends, grad = (
        torch.randn(6, 5),
        torch.randn(3, 5, 4),
        torch.tensor([2, 2, 6]),
        torch.randn(6, 4),
    )
    found = table[ops.grouped_mm_fallback.default](x, weight, ends)
    torch.testing.assert_close(found, ops.grouped_mm_fallback(x, weight, ends))
    found = table[ops.grouped_mm_fallback_backward.default](x, weight, ends, grad)
    torch.testing.assert_close(found, ops.grouped_mm_fallback_backward(x, weight, ends, grad))
