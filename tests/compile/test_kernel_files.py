"""Files beside the library of a kernel description: they say what is there, and the library runs."""

import hashlib
import json

import numpy as np
import pytest

from hetero_tvm import build as build_command
from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.compile.kernel_files import write_kernel_files
from hetero_tvm.errors import BuildError
from hetero_tvm.frontend.kernels.importer import import_description
from hetero_tvm.runtime import load
from tests.frontend.kernels.helpers import layer_norm, single


def test_the_command_writes_library_and_metadata(tmp_path, capsys):
    source, out = tmp_path / "norm.json", tmp_path / "out" / "norm.so"
    source.write_text(json.dumps(layer_norm(4, 8)))
    assert build_command.main([str(source), "--out", str(out), "--json", "--no-shipped-records"]) == 0
    printed = json.loads(capsys.readouterr().out)
    (written,) = printed["files"]
    found = json.loads((out.parent / "norm.kernel.json").read_text())
    assert written == str(out.parent / "norm.kernel.json")
    assert found["kernel_name"] == "Fused_LayerNorm"
    assert found["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert found["inputs"] == [{"name": "x", "shape": [4, 8], "dtype": "float32"}]
    assert found["launch"]["host"]["threads"] >= 1 and found["workspace"] >= 0
    assert [kernel["calls"] for kernel in found["kernels"]]
    x = np.random.default_rng().standard_normal((4, 8)).astype("float32")
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(load(out)(x), expected, rtol=1e-5, atol=1e-5)


def test_device_code_lies_beside_it_with_its_launch(tmp_path):
    model = import_description(single("Exp", [(64, 256)], (64, 256)))
    built = build_model(optimize_model(model, "cuda:sm_80"))
    *codes, metadata = write_kernel_files(built, built.export(tmp_path))
    found = json.loads(metadata.read_text())
    assert [code.read_bytes()[:4] for code in codes] == [b"\x7fELF"]
    ((kernel, facts),) = found["launch"]["sm_80"].items()
    assert facts["threads"] * facts["grid"][0] >= 64 * 256 / 16 and kernel


def test_a_folder_that_is_gone_is_an_error(tmp_path):
    model = import_description(single("Exp", [(3,)], (3,)))
    built = build_model(optimize_model(model))
    library = built.export(tmp_path / "a" / "exp.so")
    library.rename(tmp_path / "exp.so")
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises((BuildError, OSError)):
        write_kernel_files(built, library)
