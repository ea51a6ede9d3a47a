"""Reductions by index and repeated rows against PyTorch's own."""

import pytest
import torch

from hetero_tvm import build_model, import_model, optimize_model
from hetero_tvm.frontend.torch.decompositions import decompositions

ATEN = torch.ops.aten
TABLE = decompositions()


def operands(dtype, shape=(4, 3), rows=7):
    torch.manual_seed(0)
    x = (torch.randn(shape) * 9).to(dtype)
    source = (torch.randn(rows, *shape[1:]) * 9).to(dtype)
    return x, torch.randint(0, shape[0] - 1, (rows,)), source  # the last row gets nothing


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("include_self", [False, True])
def test_means(dtype, include_self):
    x, rows, source = operands(dtype)
    index = rows[:, None].expand(-1, 3)
    for given, part in ((index, source), (index[:5, :2], source)):
        found = TABLE[ATEN.scatter_reduce.two](x, 0, given, part, "mean", include_self=include_self)
        expected = x.scatter_reduce(0, given, part, "mean", include_self=include_self)
        torch.testing.assert_close(found, expected)
    assert TABLE[ATEN.scatter_reduce.two](x, 0, index, source, "sum") is NotImplemented


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [False, True])
def test_reductions_by_index(reduce, include_self):
    x, rows, source = operands(torch.float32)
    found = TABLE[ATEN.index_reduce.default](x, 0, rows, source, reduce, include_self=include_self)
    torch.testing.assert_close(found, x.index_reduce(0, rows, source, reduce, include_self=include_self))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segments(reduce):
    _, _, data = operands(torch.float32)
    lengths = torch.tensor([3, 0, 4])
    found = TABLE[ATEN.segment_reduce.default](data, reduce, lengths=lengths)
    torch.testing.assert_close(found, torch.segment_reduce(data, reduce, lengths=lengths), equal_nan=True)
    offsets = torch.tensor([0, 3, 3, 7])
    found = TABLE[ATEN.segment_reduce.default](data, reduce, offsets=offsets)
    torch.testing.assert_close(found, torch.segment_reduce(data, reduce, offsets=offsets), equal_nan=True)


def test_repeats():
    x, repeats = torch.randn(3, 2), torch.tensor([2, 0, 3])
    found = TABLE[ATEN.repeat_interleave.self_Tensor](x, repeats, 0, output_size=5)
    torch.testing.assert_close(found, x.repeat_interleave(repeats, 0))
    flat = TABLE[ATEN.repeat_interleave.self_Tensor](x, torch.tensor([2]), output_size=12)
    torch.testing.assert_close(flat, x.repeat_interleave(torch.tensor([2])))
    assert TABLE[ATEN.repeat_interleave.Tensor](repeats) is NotImplemented
    found = TABLE[ATEN.repeat_interleave.Tensor](repeats, output_size=5)
    torch.testing.assert_close(found, torch.repeat_interleave(repeats))


@pytest.mark.parametrize("padding", [(2, 1), (1, 2, 0, 3), (-1, 2, 1, -1), (1, 0, 2, 1, 0, 2)], ids=str)
def test_gradient_of_repeated_edges(padding):
    rank = len(padding) // 2
    x = torch.randn(2, 3, 4, 5, 6)[(0,) * (3 - rank)]
    grad = torch.randn_like(getattr(ATEN, f"replication_pad{rank}d")(x, padding))
    backward = getattr(ATEN, f"replication_pad{rank}d_backward")
    torch.testing.assert_close(TABLE[backward.default](grad, x, padding), backward(grad, x, padding))


class _Scattered(torch.nn.Module):
    def forward(self, x, index, source):
        added = x.scatter(0, index, source, reduce="add")
        return added, x.scatter(0, index, source, reduce="multiply"), x.scatter(0, index, 2.0, reduce="add")


def test_scatters_that_reduce():
    x, rows, source = operands(torch.float32)
    example = (x, rows[:, None].expand(-1, 3).contiguous(), source)
    with torch.no_grad():
        program = torch.export.export(_Scattered(), example, strict=False)
    built = build_model(optimize_model(import_model(program)), use_shipped=False)
    found = built.run({n: t.numpy() for n, t in zip(("x", "index", "source"), example, strict=True)})
    for have, want in zip(found, _Scattered()(*example), strict=True):
        torch.testing.assert_close(torch.from_numpy(have), want, rtol=1e-5, atol=1e-5)
