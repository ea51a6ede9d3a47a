"""Programs in files: what is no program, what cannot be read, what is not installed."""

import subprocess
import sys
import zipfile

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


from hetero_tvm.api import import_model
from hetero_tvm.errors import ModelError, UsageError
from hetero_tvm.frontend.signature import Span
from hetero_tvm.frontend.torch import load as torch_load
from hetero_tvm.frontend.torch.load import load_program
from hetero_tvm.frontend.torch.to_onnx import to_onnx
from hetero_tvm.host import mapped
from tests.frontend.torch.programs import net
from tests.selection import thorough


def test_other_files_are_named(tmp_path, saved):
    torch.save(net().state_dict(), tmp_path / "weights.pt")
    (tmp_path / "cut.pt2").write_bytes(saved.read_bytes()[:2000])
    (tmp_path / "empty.pt2").write_bytes(b"")
    with pytest.raises(ModelError, match="is a checkpoint of PyTorch: weights and no graph") as caught:
        import_model(tmp_path / "weights.pt")
    assert "load_state_dict" in caught.value.hint
    for name in ("cut.pt2", "empty.pt2"):
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


@pytest.mark.thorough
def test_pytorch_is_imported_only_for_its_programs(tmp_path):
    code = (
        "import sys, hetero_tvm.api as api\n"
        "api.import_model('zoo:minilm-l6-tiny')\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_missing_pytorch_is_a_usage_error(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"needs the package torch[\s\S]*-m pip install '?\S*\[torch\]'?"):
        torch_load.load_program(saved)


class _Large(torch.nn.Module):
    """Weights of some MB; one of them has two names, one is a view of another."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.a = torch.nn.Linear(1024, 1024, bias=False, dtype=dtype)
        self.b = torch.nn.Linear(1024, 1024, bias=False, dtype=dtype)
        self.b.weight = self.a.weight
        self.register_buffer("c", torch.randn(2048, 1024).to(dtype))
        self.register_buffer("d", self.c[512:1536])

    def forward(self, x):
        return self.b(self.a(x)) + x @ self.c.T[:, :1024] + x @ self.d


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.bfloat16, *thorough([torch.float32])])
def test_large_weights_are_read_into_files(tmp_path, dtype):
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(_Large(dtype).eval(), (torch.zeros(2, 1024, dtype=dtype),)), path)
    plain, program = torch.export.load(path), load_program(path)
    assert plain.state_dict.keys() == program.state_dict.keys()
    for name, value in plain.state_dict.items():
        ours = program.state_dict[name]
        assert torch.equal(ours, value) and ours.stride() == value.stride() and type(ours) is type(value)
        assert ours.requires_grad == value.requires_grad
        assert mapped.is_mapped(ours.detach().view(torch.uint8).numpy()), name
    assert program.state_dict["a.weight"].data_ptr() == program.state_dict["b.weight"].data_ptr()
    arrays = to_onnx(program).arrays.values()
    assert arrays and all(map(mapped.is_mapped, arrays))


@pytest.mark.thorough
def test_compressed_members_are_left_to_pytorch(tmp_path):
    """PyTorch writes none; an offset in the file is none in the weights then."""
    path, packed = tmp_path / "m.pt2", tmp_path / "packed.pt2"
    torch.export.save(torch.export.export(_Large().eval(), (torch.zeros(2, 1024),)), path)
    with zipfile.ZipFile(path) as given, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as other:
        for member in given.infolist():
            other.writestr(member.filename, given.read(member))
    wanted, found = load_program(path).state_dict, load_program(packed).state_dict
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.thorough
def test_dimensions_that_are_computed_and_ends_of_the_program(tmp_path):
    """A file has a range for 8 h, which PyTorch's own decomposition does not take; open ranges end at its."""

    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.avg_pool2d(x, 8)

    height = 8 * torch.export.Dim("h", min=2, max=12)
    program = torch.export.export(
        Net().eval(), (torch.randn(1, 3, 48, 64),), dynamic_shapes=({2: height},), strict=False
    )
    torch.export.save(program, tmp_path / "net.pt2")
    shapes = {"x": (1, 3, Span(16, None, 8), 64)}
    model = import_model(tmp_path / "net.pt2", shapes=shapes)
    assert not model.open.decided
    assert [symbol.high for symbol in model.open.symbols] == [96]
