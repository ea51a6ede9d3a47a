"""Programs of torch.export: objects and files, fixed and open shapes, names, refusals, numbers."""

import subprocess
import sys
import zipfile

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn
from torch.export import Dim, export

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import AccuracyError, ModelError, ShapeError, UnsupportedOperatorError, UsageError
from hetero_tvm.frontend import source_names
from hetero_tvm.frontend.torch import load as torch_load
from hetero_tvm.reference import run_reference, sample_inputs


class Net(nn.Module):
    """Tokens and a float input -> a dictionary with a tensor, and a list with another."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, ids, mask=None, scaled=True):
        x = self.table(ids)
        x = self.norm(x + self.body(x)) * (2.0 if scaled else 1.0)
        return {"states": x if mask is None else x * mask[..., None], "more": [x.amax(-1), None]}


def net():
    torch.manual_seed(0)
    return Net().eval()


IDS = torch.arange(10).reshape(2, 5)


@pytest.fixture(scope="module")
def open_program():
    """Batch and sequence left open, the latter between 4 and 60."""
    dims = {0: Dim("a"), 1: Dim("b", min=4, max=60)}
    return export(net(), (IDS, torch.ones(2, 5)), dynamic_shapes={"ids": dims, "mask": dims})


@pytest.fixture(scope="module")
def saved(open_program, tmp_path_factory):
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.export.save(open_program, str(path))
    return path


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


def test_a_fixed_program_runs_like_the_module():
    model = import_model(export(net(), (IDS,)))
    assert str(model.signature) == ("(ids: int64[2, 5]) -> (states: float32[2, 5, 8], more_0: float32[2, 5])")
    check_against(model, net(), IDS)


def test_batch_and_sequence_fix_open_dimensions(open_program):
    model = import_model(open_program, batch=3, sequence=7)
    assert [spec.shape for spec in model.signature.inputs] == [(3, 7), (3, 7)]
    check_against(model, net(), torch.arange(21).reshape(3, 7) % 11, torch.rand(3, 7))


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


def test_open_and_wrong_sizes_are_named(open_program):
    with pytest.raises(ShapeError, match=r"ids: dimension 0 \(batch\), dimension 1 \(sequence\)"):
        import_model(open_program)
    with pytest.raises(ShapeError) as failure:
        import_model(open_program, batch=1, sequence=61)
    assert failure.value.problems == (
        "ids: dimension 1 is 61; exported for 4 to 60",
        "mask: dimension 1 is 61; exported for 4 to 60",
    )


def test_dimensions_computed_from_others():
    class Pairs(nn.Module):
        def forward(self, x, y):
            return x.reshape(y.shape[0], 2) + y[:, None]

    size = Dim("size", min=2, max=50)
    program = export(Pairs(), (torch.rand(6), torch.rand(3)), dynamic_shapes=({0: 2 * size}, {0: size}))
    check_against(import_model(program, shapes={"x": (8,), "y": (4,)}), Pairs(), torch.rand(8), torch.rand(4))
    with pytest.raises(ShapeError, match="x: dimension 0 is 9, other inputs make it 8"):
        import_model(program, shapes={"x": (9,), "y": (4,)})


def test_nodes_are_called_as_in_the_program():
    model = import_model(export(net(), (IDS,)))
    nodes = {source_names(b.var) for block in model.module["main"].body.blocks for b in block.bindings}
    assert {"table/embedding", "norm/layer_norm", "body.1/gelu", "add"} <= nodes


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


def test_the_program_judges_the_numbers(monkeypatch):
    """A fault of the translation cannot hide: the reference never sees the translated model."""
    from hetero_tvm.frontend.torch import importer as front

    translate = front.to_onnx

    def wrong(program):
        model = translate(program)
        for node in model.graph.node:
            if node.op_type == "Gelu":
                node.op_type = "Relu"
                del node.attribute[:]
        return model

    monkeypatch.setattr(front, "to_onnx", wrong)
    built = build_model(optimize_model(import_model(export(net(), (IDS,)))), use_shipped=False)
    with pytest.raises(AccuracyError):
        built.check()


def test_float64_is_float64_everywhere():
    """int / int, constants and types written in the program widen too."""

    class Thirds(nn.Module):
        def forward(self, ids):
            third = ids / 3
            return third + torch.full((3,), 0.1) + ids.to(torch.float32) / torch.arange(1, 4)

    model = import_model(export(Thirds(), (torch.tensor([1, 2, 4]),)))
    ids = np.array([1, 2, 4])
    exact = ids / 3 + 0.1 + ids / np.arange(1, 4)
    np.testing.assert_allclose(run_reference(model, {"ids": ids}).float64[0], exact, rtol=1e-15)
    assert torch.get_default_dtype() is torch.float32


def test_everything_that_cannot_be_translated_is_listed():
    class Rare(nn.Module):
        def forward(self, x):
            return torch.linalg.svdvals(x) + torch.special.gammainc(x, x) + torch.special.gammainc(x.abs(), x)

    with pytest.raises(UnsupportedOperatorError) as failure:
        import_model(export(Rare(), (torch.rand(4, 4),)))
    assert failure.value.problems == (
        "prims.igamma.default: 2 nodes (igamma, igamma_1)",
        "aten._linalg_svd.default: 1 node (_linalg_svd)",
    )


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen.add_(x)
        return x + self.seen


class Scaled(nn.Module):
    def forward(self, x, n):
        return x * n


@pytest.mark.parametrize(
    "program, problem",
    [
        (
            lambda: export(Net().train(), (IDS,)),
            r"node body.2/dropout \(aten.dropout.default\) is in training mode",
        ),
        (lambda: export(Counts(), (torch.rand(4),)), "'seen' is changed in place"),
        (
            lambda: export(Scaled(), (torch.rand(4), 3), dynamic_shapes={"x": None, "n": Dim.DYNAMIC}),
            "input 'n' is a number, not a tensor",
        ),
    ],
)
def test_impure_programs_are_refused(program, problem):
    with pytest.raises(ModelError, match=problem):
        import_model(program())


def test_modules_and_onnx_programs():
    with pytest.raises(UsageError, match="torch.export.export"):
        import_model(net())
    translated = torch.onnx.export(net(), (IDS,), dynamo=True, verbose=False)
    assert import_model(translated).signature.inputs[0].shape == (2, 5)


def test_other_files_are_named(tmp_path, saved):
    torch.save(net().state_dict(), tmp_path / "weights.pt")
    (tmp_path / "cut.pt2").write_bytes(saved.read_bytes()[:2000])
    (tmp_path / "empty.pt2").write_bytes(b"")
    for name in ("weights.pt", "cut.pt2", "empty.pt2"):
        with pytest.raises(ModelError, match=f"{name} is not a program saved by torch.export"):
            import_model(tmp_path / name)
    with pytest.raises(ModelError, match="Did you mean .*cut.pt2"):
        import_model(tmp_path / "cutt.pt2")


def test_unreadable_programs_tell_why(tmp_path, saved):
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as copy:
        for name in source.namelist():
            copy.writestr(name, source.read(name).replace(b"aten.layer_norm", b"aten.layer_nrom"))
    with pytest.raises(ModelError, match="PyTorch cannot read .*layer_nrom"):
        import_model(tmp_path / "bad.pt2")
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(tmp_path / "container.pt2", "w") as copy:
        for name in source.namelist():
            copy.writestr(name, source.read(name).replace(b"builtins.dict", b"absent_package.Dict"))
    with pytest.raises(ModelError, match="container type that is not known here.*absent_package.Dict"):
        import_model(tmp_path / "container.pt2")


def test_pytorch_is_imported_only_for_its_programs(tmp_path):
    code = (
        "import sys, hetero_tvm.api as api\n"
        "api.import_model('zoo:minilm-l6-tiny')\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_missing_pytorch_is_a_usage_error(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"needs the package torch[\s\S]*pip install 'hetero-tvm\[torch\]'"):
        torch_load.load_program(saved)


def test_the_commands_take_a_file(saved, tmp_path, capsys):
    from hetero_tvm.build import main

    shape = ["--shape", "ids=2x8", "--shape", "mask=2x8"]
    assert main([str(saved), *shape, "--out", str(tmp_path), "--logs", str(tmp_path), "-q"]) == 0
    assert (tmp_path / "model.so").exists()
