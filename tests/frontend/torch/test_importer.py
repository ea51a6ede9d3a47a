"""Imported programs run like their modules, at any size that they were exported for."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn
from torch.export import Dim, export

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import ShapeError, UsageError
from hetero_tvm.reference import run_reference, sample_inputs
from tests.frontend.torch.programs import IDS, net


def check_against(model, module, *tensors):
    """Compiled outputs against the module in float32, by the tolerance of every check."""
    built = build_model(optimize_model(model), use_shipped=False)
    assert built.check().ok
    inputs = {spec.name: t.numpy() for spec, t in zip(model.signature.inputs, tensors, strict=True)}
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(module(*tensors))
    expected = [value for value in expected if value is not None]
    results = built.run(inputs)
    assert len(results) == len(expected)
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.thorough
def test_a_fixed_program_runs_like_the_module():
    model = import_model(export(net(), (IDS,)))
    assert str(model.signature) == ("(ids: int64[2, 5]) -> (states: float32[2, 5, 8], more_0: float32[2, 5])")
    check_against(model, net(), IDS)


@pytest.mark.thorough
def test_batch_and_sequence_fix_open_dimensions(open_program):
    model = import_model(open_program, batch=3, sequence=7)
    assert [spec.shape for spec in model.signature.inputs] == [(3, 7), (3, 7)]
    check_against(model, net(), torch.arange(21).reshape(3, 7) % 11, torch.rand(3, 7))


@pytest.mark.thorough
@pytest.mark.parametrize("batch, length", [(1, 4), (1, 60), (5, 9)])
def test_shapes_fix_open_dimensions(saved, batch, length):
    model = import_model(saved, shapes={"ids": (batch, length)})
    assert model.name == "net"
    inputs = sample_inputs(model)
    reference = run_reference(model, inputs)
    assert reference.float64[0].dtype == np.float64
    with torch.no_grad():
        expected = net()(*(torch.from_numpy(inputs[name]) for name in ("ids", "mask")))
    np.testing.assert_array_equal(reference.float32[0], expected["states"].numpy())


@pytest.mark.thorough
def test_open_and_wrong_sizes_are_named(open_program):
    with pytest.raises(ShapeError, match=r"ids: dimension 0 \(batch\), dimension 1 \(sequence\)"):
        import_model(open_program)
    with pytest.raises(ShapeError) as failure:
        import_model(open_program, batch=1, sequence=61)
    assert failure.value.problems == (
        "ids: dimension 1 is 61; exported for 4 to 60",
        "mask: dimension 1 is 61; exported for 4 to 60",
    )


@pytest.mark.thorough
def test_dimensions_computed_from_others():
    class Pairs(nn.Module):
        def forward(self, x, y):
            return x.reshape(y.shape[0], 2) + y[:, None]

    size = Dim("size", min=2, max=50)
    program = export(Pairs(), (torch.rand(6), torch.rand(3)), dynamic_shapes=({0: 2 * size}, {0: size}))
    check_against(import_model(program, shapes={"x": (8,), "y": (4,)}), Pairs(), torch.rand(8), torch.rand(4))
    with pytest.raises(ShapeError, match="x: dimension 0 is 9, other inputs make it 8"):
        import_model(program, shapes={"x": (9,), "y": (4,)})


@pytest.mark.thorough
def test_inputs_returned_as_they_are_and_constants():
    class Odd(nn.Module):
        def forward(self, x, flags):
            return x, torch.where(flags, x, -x), torch.arange(3)

    x, flags = torch.rand(4), torch.tensor([True, False, True, False])
    model = import_model(export(Odd(), (x, flags)))
    assert str(model.signature) == (
        "(x: float32[4], flags: bool[4]) -> (output_0: float32[4], output_1: float32[4], output_2: int64[3])"
    )
    check_against(model, Odd(), x, flags)


def test_modules_and_onnx_programs():
    with pytest.raises(UsageError, match="torch.export.export"):
        import_model(net())
    translated = torch.onnx.export(net(), (IDS,), dynamo=True, verbose=False)
    assert import_model(translated).signature.inputs[0].shape == (2, 5)


@pytest.mark.thorough
def test_the_commands_take_a_file(saved, tmp_path, capsys):
    from hetero_tvm.build import main

    shape = ["--shape", "ids=2x8", "--shape", "mask=2x8"]
    assert main([str(saved), *shape, "--out", str(tmp_path), "--logs", str(tmp_path), "-q"]) == 0
    assert (tmp_path / "model.so").exists()


@pytest.mark.thorough
def test_assertions_about_values_are_not_part_of_the_function():
    """As in models that put features of images in the place of tokens, after counting both."""

    class Merged(nn.Module):
        def forward(self, ids, x):
            torch._check_tensor_all((ids == 3).sum() == 2)
            y = x * 2
            y.view(-1).add_(1)
            return y.masked_scatter((ids == 3)[..., None].expand_as(y), -x)

    tensors = torch.tensor([[3, 1, 3]]), torch.randn(1, 3, 2)
    program = export(Merged(), tensors)
    assert any(node.target is torch.ops.aten.item.default for node in program.graph.nodes)
    model = import_model(program)
    found = build_model(optimize_model(model), use_shipped=False).run(
        {"ids": tensors[0].numpy(), "x": tensors[1].numpy()}
    )
    np.testing.assert_allclose(found[0], Merged()(*tensors).numpy(), rtol=1e-6)


def test_a_range_of_few_sizes():
    """A range that ends below the sizes that tell how a program's numbers follow from its own."""
    batch = torch.export.Dim("batch", min=1, max=4)
    model = torch.nn.Linear(8, 3).eval()
    program = torch.export.export(model, (torch.zeros(3, 8),), dynamic_shapes=({0: batch},))
    opened = import_model(program, shapes={"input": (Span(1, 4), 8)})
    assert opened.open is not None and opened.open.symbols[0].high == 4
    for batch in (5, Span(1, 5)):
        with pytest.raises(ShapeError, match="dimension 0 is 5; exported for 1 to 4"):
            import_model(program, shapes={"input": (batch, 8)})


@pytest.mark.thorough
def test_computed_dimensions_stay_in_the_range_of_what_they_are_computed_from():
    size = Dim("size", min=2, max=6)
    program = export(torch.nn.Tanh(), (torch.rand(8),), dynamic_shapes=({0: 2 * size},))
    import_model(program, shapes={"input": (12,)})
    with pytest.raises(ShapeError, match="dimension 0 is 14; exported for 2 to 12"):
        import_model(program, shapes={"input": (14,)})


class Fixed(nn.Module):
    """Rows whose number PyTorch fixes while it traces."""

    def forward(self, x):
        return torch.linspace(0, 1, x.shape[0])[:, None] * x


def test_dimensions_that_pytorch_fixed_are_numbers():
    program = export(Fixed(), (torch.rand(6, 3),), dynamic_shapes=({0: Dim.AUTO},))
    assert str(import_model(program).signature.inputs[0]) == "x: float32[6, 3]"


@pytest.mark.thorough
def test_positions_as_parts_of_the_rows_and_columns():
    """Sines of places over how many there are (DETR), which no rule tells by their places alone."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.waves = torch.tensor([1.0, 10.0, 100.0])

        def forward(self, x):
            mask = torch.ones(x.shape[0], *x.shape[2:])
            rows, columns = mask.cumsum(1), mask.cumsum(2)
            rows = rows / (rows[:, -1:] + 1e-6) * 6.25
            columns = columns / (columns[:, :, -1:] + 1e-6) * 6.25
            angles = [part[..., None] / self.waves for part in (rows, columns)]
            found = torch.cat([angles[0].sin(), angles[1].cos()], 3).permute(0, 3, 1, 2)
            return (x.flatten(2) + found.flatten(2)).relu()

    sizes = {2: Dim("rows", min=4, max=64), 3: Dim("columns", min=4, max=64)}
    program = export(Positions(), (torch.zeros(2, 6, 8, 12),), dynamic_shapes=(sizes,))
    model = import_model(program, shapes={"x": (2, 6, Span(4, 64), Span(4, 64))})
    built = build_model(optimize_model(model), use_shipped=False)
    for rows, columns in ((4, 4), (5, 64), (64, 64), (33, 7)):
        x = torch.randn(2, 6, rows, columns)
        np.testing.assert_allclose(built.run({"x": x.numpy()})[0], Positions()(x).numpy(), atol=2e-5)
