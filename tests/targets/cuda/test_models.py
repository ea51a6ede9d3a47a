"""Whole models for GPUs: machine code for several architectures in one library, numbers by emulation."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from hetero_tvm import build as build_command
from hetero_tvm import zoo
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import AccuracyError, LibraryError
from hetero_tvm.reference import run_reference, sample_inputs
from hetero_tvm.runtime import load
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from hetero_tvm.runtime.manifest import read_manifest
from hetero_tvm.schedules.cuda.products.gemv import CudaGemvSpace
from tests.frontend.onnx.helpers import add_weight, text_model
from tests.selection import exhaustive

TINY = {name for name in zoo.names() if name.endswith("-tiny")}

_FRESH = """
import sys
import numpy as np
sys.modules["nvidia"] = None  # NVRTC
from hetero_tvm.runtime import load
net = load(sys.argv[1])
print(net.arch)
for path in sys.argv[2:]:
    with np.load(path + ".in.npz") as inputs:
        result = net(**inputs)
    np.savez(path + ".out.npz", *(result if isinstance(result, tuple) else [result]))
"""


def build(name, target, tmp_path, precision="f32"):
    plan = optimize_model(import_model(f"zoo:{name}"), target=target, precision=precision)
    return build_model(plan, logs=tmp_path / "logs", use_shipped=False)


def build_cosine(target, tmp_path):
    """A model of one small kernel."""
    model = import_model(text_model("agraph (float[2, 16] x) => (float[2, 16] y) { y = Cos(x) }"))
    return build_model(optimize_model(model, target), logs=tmp_path / "logs", use_shipped=False)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vit-b16-tiny", *exhaustive(sorted(TINY - {"vit-b16-tiny"}))])
def test_numbers_of_zoo_models(name, tmp_path, emulated):
    assert build(name, "cuda:sm_80", tmp_path).check().ok


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "precision"),
    [("llama-160m-tiny", "f16"), *exhaustive([("vit-b16-tiny", "bf16"), ("gpt2-small-tiny", "tf32")])],
)
def test_numbers_in_lower_precision(name, precision, tmp_path, emulated):
    built = build(name, "cuda:sm_80", tmp_path, precision)
    assert built.check().ok
    assert {"cuda.matmul"} <= {row["space"] for row in built.kernels}


def test_a_wrong_kernel_is_named(tmp_path, emulated, monkeypatch):
    original = CudaGemvSpace.pack

    def wrong(self, op, point, machine):
        return {
            index: lambda w, pack=pack: 2 * pack(w)
            for index, pack in original(self, op, point, machine).items()
        }

    w = np.random.default_rng(0).standard_normal((16, 24)).astype("float32")
    model = text_model("agraph (float[2, 16] x) => (float[2, 24] y) { a = Cos(x) y = MatMul(a, w) }")
    add_weight(model, "w", w)
    monkeypatch.setattr(CudaGemvSpace, "pack", wrong)
    plan = optimize_model(import_model(model), "cuda:sm_80", precision="f16")
    built = build_model(plan, logs=tmp_path / "logs", use_shipped=False)
    with pytest.raises(AccuracyError) as caught:
        built.check()
    assert "first wrong kernel: matmul_2x16x24" in caught.value.problems[-1]


@pytest.mark.thorough
def test_one_library_for_two_architectures_in_another_process(tmp_path, emulated, pick):
    built = build("minilm-l6-tiny", "cuda:sm_80,sm_90", tmp_path)
    path = built.export(tmp_path / "out")
    files, expected = [], []
    for seed in range(3):  # the second and third call replay the captured graph on other values
        inputs = sample_inputs(built.optimized.model, seed)
        np.savez(tmp_path / f"{seed}.in.npz", **inputs)
        files.append(str(tmp_path / str(seed)))
        expected.append(run_reference(built.optimized.model, inputs).float64[0])
    for soname, library in cuda_runtime.standins().items():  # in place of a driver
        shutil.copyfile(library, tmp_path / soname)
    # No compiler of any kind.
    bare = {"PATH": "/nowhere", "CUDA_HOME": "/nowhere", "CUDA_PATH": "/nowhere", "CXX": "/nowhere/c++"}
    bare["LD_LIBRARY_PATH"] = str(tmp_path)
    for capability, arch in pick([("86", "sm_80"), ("80", "sm_80"), ("90", "sm_90")], 1):
        environment = {**os.environ, **bare, "HETERO_TVM_CUDA_EMULATE_ARCH": capability}
        command = [sys.executable, "-c", _FRESH, str(path), *files]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [arch]
        for file, truth in zip(files, expected, strict=True):
            with np.load(f"{file}.out.npz") as outputs:
                np.testing.assert_allclose(outputs["arr_0"], truth, atol=2e-5)


def test_an_architecture_that_is_not_in_the_library(tmp_path, emulated, monkeypatch):
    path = build_cosine("cuda:sm_90", tmp_path).export(tmp_path)
    monkeypatch.setenv("HETERO_TVM_CUDA_EMULATE_ARCH", "80")
    with pytest.raises(LibraryError, match="machine code for sm_90;.*sm_80") as caught:
        load(path)
    assert "--target cuda:sm_90,sm_80" in caught.value.hint


@pytest.mark.thorough
def test_kernels_run_as_cuda_graphs(tmp_path, emulated):
    assert (
        "vm.builtin.cuda_graph.run_or_capture"
        in build("minilm-l6-tiny", "cuda:sm_80", tmp_path).executable.as_text()
    )


@pytest.mark.exhaustive
def test_without_a_gpu_the_build_says_that_nothing_was_checked(tmp_path, compiler, capsys):
    if cuda_runtime.missing_driver() is None:
        pytest.skip("this machine has an NVIDIA driver")
    arguments = [
        "zoo:minilm-l6-tiny",
        "--target",
        "cuda:sm_80,sm_90",
        "--out",
        str(tmp_path),
        "--no-shipped-records",
    ]
    assert build_command.main([*arguments, "--logs", str(tmp_path / "logs"), "--json"]) == 0
    out = capsys.readouterr()
    assert "NOT CHECKED" in out.err
    document = json.loads(out.out)
    assert document["accuracy"] is None and "GPU" in document["not_checked"]
    manifest = read_manifest(tmp_path / "model.so")
    assert manifest.target.kind == "cuda" and manifest.target.archs == ("sm_80", "sm_90")
    assert set(manifest.device) == {"sm_80", "sm_90"}
    for arch, kernels in manifest.device.items():
        assert len(kernels) >= len(manifest.kernels)
        for name, facts in kernels.items():
            assert arch in name and 0 < facts["registers"] <= 255
            assert facts["threads"] <= 1024 and facts["registers"] * facts["threads"] <= 65536, name
            assert facts["occupancy"] > 0
    code = (tmp_path / "model.so").read_bytes()
    assert code.count(b"\x7fELF") >= 3  # the library itself and a cubin for each architecture


def test_loading_without_a_driver_or_compiler_says_what_is_missing(tmp_path, compiler):
    if cuda_runtime.missing_driver() is None:
        pytest.skip("this machine has an NVIDIA driver")
    path = build_cosine("cuda:sm_80", tmp_path).export(tmp_path)
    script = "from hetero_tvm.runtime import load; load(__import__('sys').argv[1])"
    environment = {**os.environ, "PATH": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, env=environment
    )
    assert done.returncode != 0
    assert "no NVIDIA driver" in done.stderr and "What to do:" in done.stderr
