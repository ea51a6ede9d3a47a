"""Adaptive pooling with open height and width has the windows of the sizes that are asked for."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn
from torch.export import Dim, export

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import ModelError, ShapeError
from hetero_tvm.frontend.torch.specialize import depends_on_sizes, with_sizes
from tests.selection import thorough


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(17, 23), (24, 20)])
def test_adaptive_pooling(size):
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d((2, 5))).eval()
    open_sizes = {2: Dim("h", min=8, max=64), 3: Dim("w", min=8, max=64)}
    program = export(module, (torch.zeros(1, 3, 16, 20),), dynamic_shapes=(open_sizes,))
    model = import_model(program, shapes={program.graph_signature.user_inputs[0]: (1, 3, *size)})
    x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    (result,) = build_model(optimize_model(model), use_shipped=False).run(
        {model.signature.inputs[0].name: x.numpy()}
    )
    np.testing.assert_allclose(result, module(x).detach().numpy(), atol=1e-5)


class _EvenRows(nn.Module):
    """Takes one of two ways by its number of rows."""

    def forward(self, x):
        return x * 2 if x.shape[1] % 2 == 0 else x


def test_conditions_of_a_program_are_told_by_its_names_and_sizes():
    program = export(_EvenRows(), (torch.zeros(1, 8, 4),), dynamic_shapes=({1: Dim.AUTO},))
    with pytest.raises(ModelError, match="a condition on its sizes") as failure:
        with_sizes(program, {"x": (1, 7, 4)})
    assert failure.value.problems == ("not for x of 1x7x4: x.shape[1] % 2 == 0",)


class _Positions(nn.Module):
    """Pools to the example's sizes, and adds a table of as many rows as the example has patches."""

    def __init__(self, table):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d((64, 5))
        self.patches = nn.Conv2d(3, 4, 3, stride=32, padding=1)
        self.table = table

    def forward(self, x):
        y = self.patches(x).flatten(2)
        return self.pool(x), y if self.table is None else y + self.table


def _program(table):
    module = _Positions(table).eval()
    open_sizes = {2: 32 * Dim("h", min=2, max=8), 3: 32 * Dim("w", min=2, max=8)}
    return module, export(module, (torch.zeros(1, 3, 64, 96),), dynamic_shapes=(open_sizes,), strict=False)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(192, 64), (64, 96)])
def test_comparisons_of_a_translation_fix_no_size(size):
    """A translation that compared a size with a number took the example's side for all sizes."""
    module, program = _program(None)
    before = import_model(program, shapes={"x": (1, 3, 64, 96)})  # the program that is given is not changed
    before.original.to_onnx()
    model = import_model(program, shapes={"x": (1, 3, *size)})
    x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    results = build_model(optimize_model(model), use_shipped=False).run({"x": x.numpy()})
    for result, expected in zip(results, module(x), strict=True):
        np.testing.assert_allclose(result, expected.detach().numpy(), atol=1e-5)


@pytest.mark.thorough
def test_sizes_that_pytorch_fixed_are_told_by_its_equations():
    _, program = _program(torch.ones(6))
    import_model(program, shapes={"x": (1, 3, 96, 64)})
    with pytest.raises(ShapeError, match="PyTorch fixed sizes") as failure:
        import_model(program, shapes={"x": (1, 3, 96, 96)})
    assert all("x.shape[2]" in text and "== 6" in text for text in failure.value.problems)


@pytest.mark.parametrize(
    "pool", [nn.AdaptiveAvgPool2d(1), *thorough([nn.AdaptiveMaxPool2d((1, 1)), nn.AdaptiveAvgPool1d(1)])]
)
def test_pooling_of_whole_images_depends_on_no_size(pool):
    """Each size was traced and translated by itself: networks with open rows and columns took minutes."""
    rank = 1 if isinstance(pool, nn.AdaptiveAvgPool1d) else 2
    open_sizes = {2 + n: Dim("hw"[n], min=4, max=64) for n in range(rank)}
    program = export(pool, (torch.zeros(1, 3, *(16, 20)[:rank]),), dynamic_shapes=(open_sizes,), strict=False)
    assert not depends_on_sizes(program)
    model = import_model(program, shapes={program.graph_signature.user_inputs[0]: (1, 3, *(40, 50)[:rank])})
    assert len(model.clean.proto.graph.node) < 8  # AdaptiveMaxPool2d was a slice for each element
