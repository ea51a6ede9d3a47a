"""Programs in files: what is no program, what cannot be read, what is not installed."""

import subprocess
import sys
import zipfile

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


from hetero_tvm.api import import_model
from hetero_tvm.errors import ModelError, UsageError
from hetero_tvm.frontend.torch import load as torch_load
from tests.frontend.torch.programs import net


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
