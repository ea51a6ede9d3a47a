"""Assignment through masks, sorting and order statistics against PyTorch's own."""

import numpy as np
import pytest
import torch

from hetero_tvm import build_model, import_model, optimize_model
from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.frontend.torch.decompositions import decomposed, decompositions
from hetero_tvm.frontend.torch.registry import decomposition_table
from tests.selection import thorough

ATEN = torch.ops.aten
torch.manual_seed(0)
X = torch.randn(4, 5, 6)
ROWS, ALL, MIDDLE = torch.rand(4, 5) > 0.5, torch.rand(4, 5, 6) > 0.5, torch.rand(5) > 0.5
SOME = int(ROWS.sum())
ASSIGNMENTS = {
    "a number": ([ROWS], torch.tensor(2.0)),
    "a row": ([ROWS], torch.randn(6)),
    "a row of one": ([ROWS], torch.randn(1, 6)),
    "rows": ([ROWS], torch.randn(SOME, 6)),
    "a column": ([ROWS], torch.randn(SOME, 1)),
    "elements": ([ALL], torch.randn(int(ALL.sum()))),
    "one element": ([ALL], torch.randn(1)),
    "an inner axis": ([None, MIDDLE], torch.tensor(1.0)),
    "an inner axis, a row": ([None, MIDDLE], torch.randn(6)),
    "an inner axis, a block": ([None, MIDDLE], torch.randn(4, 1, 6)),
    "nothing": ([torch.zeros(4, 5, dtype=torch.bool)], torch.tensor(3.0)),
}


@pytest.mark.parametrize("case", ASSIGNMENTS)
def test_assignment_through_a_mask(case):
    indices, values = ASSIGNMENTS[case]
    found = decompositions()[ATEN.index_put.default](X, indices, values)
    assert torch.equal(found, ATEN.index_put(X, indices, values))


def test_assignment_at_places_is_left_to_pytorch():
    assert decompositions()[ATEN.index_put.default](X, [torch.tensor([1])], X[:1]) is NotImplemented


def test_masked_scatter_takes_what_it_needs():
    source = torch.arange(200.0)
    found = decompositions()[ATEN.masked_scatter.default](X, ALL, source)
    assert torch.equal(found, X.masked_scatter(ALL, source))


@pytest.mark.parametrize("offset", [0, 2, -1, -4, 5])
@pytest.mark.parametrize("axes", [(0, 1), (2, 0), (-2, -1)])
def test_assignment_to_a_diagonal(offset, axes):
    source = torch.randn_like(X.diagonal(offset, *axes))
    found = decompositions()[ATEN.diagonal_scatter.default](X, source, offset, *axes)
    assert torch.equal(found, torch.diagonal_scatter(X, source, offset, *axes))


@pytest.mark.parametrize("turned", [False, True])
def test_assignment_to_places_of_memory(turned):
    x = X[:, :, 0].clone()
    x, view = x.t() if turned else x, ((2, 3), (10, 2), 1)
    source = torch.randn(view[0])
    found = decompositions()[ATEN.as_strided_scatter.default](x, source, *view)
    assert torch.equal(found, torch.as_strided_scatter(x, source, *view))


def test_diagonals_changed_in_place():
    class Diagonals(torch.nn.Module):
        def forward(self, x):
            y = x @ x.mT
            y.diagonal(dim1=-2, dim2=-1).add_(1)
            z = x[0].clone()
            z.fill_diagonal_(0)
            return y, z

    x = torch.randn(2, 3, 4)
    program = decomposed(torch.export.export(Diagonals(), (x,)), decomposition_table())
    assert not {"copy_to", "diagonal_scatter"} & {node.name for node in program.graph.nodes}
    for found, expected in zip(program.module()(x), Diagonals()(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_rows_do_not_count_from_the_end_where_they_do_not_in_pytorch():
    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(5, 4)

        def forward(self, i):
            return self.table(i), self.table.weight[i]

    model, i = Rows(), torch.tensor([[4, 0, 2]])
    built = build_model(optimize_model(import_model(torch.export.export(model, (i,)))))
    for found, expected in zip(built.run({"i": i.numpy()}), model(i), strict=True):
        torch.testing.assert_close(torch.as_tensor(found), expected)
    with pytest.raises(HeteroTVMError, match=r"table/embedding: an index lies outside \[0, 5\)"):
        built.run({"i": np.array([[4, 0, -1]])})


@pytest.mark.parametrize("descending", [False, True])
def test_sorts_keep_the_order_of_equals_in_a_library(descending):
    """The topk of a library takes the first of equals first; PyTorch's own promises no order."""
    x = torch.randint(0, 3, (4, 9)).float()
    found = decompositions()[ATEN.sort.stable](x, stable=True, dim=0, descending=descending)
    assert torch.equal(found[0], torch.sort(x, dim=0, descending=descending, stable=True).values)


def test_medians_and_nan():
    x = torch.randn(5, 8)
    x[2, 3] = float("nan")
    found, want = decompositions()[ATEN.median.dim](x, 1), x.median(1)
    torch.testing.assert_close(found[0], want.values, equal_nan=True)
    assert torch.equal(found[1], want.indices)
    assert decompositions()[ATEN.median.default](x).isnan()
    assert torch.equal(decompositions()[ATEN.kthvalue.default](X, 2, 1)[0], X.kthvalue(2, 1).values)


@pytest.mark.parametrize(
    "x, size, stride",
    [
        (X, (3, 2, 12), (30, 15, 1)),
        (X.transpose(0, 1), (4, 3, 12), (30, 6, 1)),
        (X.permute(2, 0, 1)[:, 1:2], (2, 3), (1, 6)),
        (X[2:], (2, 2), (0, 7)),
    ],
    ids=["windows", "of a transposed tensor", "of a part without gaps", "behind the beginning"],
)
def test_windows_of_memory(x, size, stride):
    """The strides are those of memory, in whatever order the axes of the tensor are."""
    offset = x.storage_offset()
    found = decompositions()[ATEN.as_strided.default](x, size, stride, offset)
    assert torch.equal(found, x.as_strided(size, stride, offset))


def test_windows_beyond_a_tensor_are_refused():
    for x in (X[:, 1], X[:1]):
        with pytest.raises(ValueError, match="without gaps, or beyond it"):
            decompositions()[ATEN.as_strided.default](x, (2, 40), (30, 1))


class Squeezed(torch.nn.Module):
    """Dimensions that are taken away where they are of size 1."""

    def forward(self, x):
        return x.squeeze(1) + 1, x.squeeze(-1) * 2, x.squeeze((0, 1))


def test_dimensions_of_other_sizes_stay():
    x = torch.randn(1, 3, 1)
    built = build_model(optimize_model(import_model(torch.export.export(Squeezed(), (x,)))))
    for have, want in zip(built.run({"x": x.numpy()}), Squeezed()(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(have), want)


PIECES = {
    "split": lambda x: torch.cat([x, x + 1]).split(x.shape[0]),
    "chunk": lambda x: (x * 2).chunk(2),
    "roll": lambda x: [x.roll(x.shape[0] - 2, 0)],
    "hstack": lambda x: [torch.hstack([x[:, 0], x[:, 1]])],
}


class Pieces(torch.nn.Module):
    """Pieces and shifts whose sizes follow the batch, as in the guidance of diffusion models."""

    def __init__(self, name):
        super().__init__()
        self.function = PIECES[name]

    def forward(self, x):
        return [piece + 1 for piece in self.function(x)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    ["chunk", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("split", "roll", "hstack"))],
)
def test_pieces_of_an_open_batch(name):
    program = torch.export.export(
        Pieces(name), (torch.randn(6, 4),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    )
    x = torch.randn(8, 4)
    built = build_model(optimize_model(import_model(program, batch=8)))
    for have, want in zip(built.run({"x": x.numpy()}), Pieces(name)(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(have), want)


@pytest.mark.parametrize("name", ["hstack", "vstack", "dstack", "column_stack"])
@pytest.mark.parametrize("shape", [(), (3,), (3, 2), (3, 2, 4)], ids=str)
def test_stacks(name, shape):
    if name == "column_stack" and shape == ():
        shape = (1,)
    tensors = [torch.randn(shape), torch.randn(shape)]
    found = decompositions()[getattr(ATEN, name).default](tensors)
    assert torch.equal(found, getattr(torch, name)(tensors))


@pytest.mark.parametrize("shifts, dims", [([3], []), ([7], [1]), ([-1, 2], [0, -1])])
def test_rolls(shifts, dims):
    assert torch.equal(decompositions()[ATEN.roll.default](X, shifts, dims), X.roll(shifts, dims))


class _Selected(torch.nn.Module):
    def forward(self, x, mask):
        return torch.masked_select(x, mask) * 2


@pytest.mark.parametrize("shape", [(4, 5), *thorough([((3, 1, 5),)])])
def test_selected_elements(shape):
    x, mask = torch.randn(shape), torch.rand(4, 5) > 0.5
    with torch.no_grad():
        program = torch.export.export(_Selected(), (x, mask), strict=False)
    built = build_model(optimize_model(import_model(program)), use_shipped=False)
    found = built.run({"x": x.numpy(), "mask": mask.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), _Selected()(x, mask))


def test_a_copy_has_the_shape_and_type_of_what_it_is_written_to():
    table, copy = decompositions(), torch.ops.aten.copy.default
    x = torch.zeros(2, 3, 4)
    for source in (torch.randn(3, 4), torch.randn(2, 1, 4), torch.arange(4), torch.randn(2, 3, 4)):
        torch.testing.assert_close(table[copy](x, source), copy(x, source))


class _WritesRows(torch.nn.Module):
    def forward(self, x, rows):
        places = x.new_zeros(1, 6, 4)
        places[:, 2:].copy_(rows)
        return x + places


def test_rows_are_copied_into_a_part_of_a_batch():
    example = (torch.randn(1, 6, 4), torch.randn(4, 4))
    with torch.no_grad():
        program = torch.export.export(_WritesRows(), example, strict=False)
    model = import_model(program)
    assert [spec.shape for spec in model.signature.results] == [(1, 6, 4)]
