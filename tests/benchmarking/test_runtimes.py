"""Every runtime that can be compared computes the same small model."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hetero_tvm
from hetero_tvm import host
from hetero_tvm.benchmarking.runtimes import OURS, PEERS, RUNTIMES, Job, version
from tests.selection import thorough

WEIGHT = np.random.default_rng(0).standard_normal((32, 16)).astype("float32")
X = np.random.default_rng(1).standard_normal((8, 32)).astype("float32")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """``relu(x @ w)`` as an ONNX file and as a library of ours."""
    folder = tmp_path_factory.mktemp("runtimes")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    sizes = {"x": 32, "y": 16}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, sizes[name]]) for name in sizes)
    graph = helper.make_graph(nodes, "small", [x], [y], [numpy_helper.from_array(WEIGHT, "w")])
    model = folder / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    optimized = hetero_tvm.optimize_model(hetero_tvm.import_model(str(model)), "cpu")
    built = hetero_tvm.build_model(optimized, logs=folder, use_shipped=False)
    library = built.export(folder / "small.so")
    return Job("any", {"x": X}, host.available_cores()[:1], library, model, model)


@pytest.mark.parametrize("name", [name for name in RUNTIMES if name != "torch.compile"])
def test_it_computes_the_model(job, name):
    if not RUNTIMES[name].installed:
        pytest.skip(f"{name} is not installed")
    runtime = RUNTIMES[name].prepare(job)
    (found,) = runtime.call()
    expected = np.maximum(X.astype("float64") @ WEIGHT.astype("float64"), 0)
    rounded = 2e-2 if name.endswith("bf16") else 1e-5  # 8 bits of significand
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=rounded * (1 + expected.max()))
    assert runtime.device_cost() is None  # the wall time is the latency
    assert version(name)


def test_every_runtime_but_ours_can_be_asked_for():
    assert {name for names in PEERS.values() for name in names} == set(RUNTIMES) - {OURS}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["torch", *thorough(["torch.compile"])])
def test_a_program_of_pytorch_runs_itself(tmp_path, name):
    """PyTorch runs its own program, and no translation: options, names and results stay the user's."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def forward(self, x, mask=None, *, scale, twice=True):
            x = torch.where(x.isnan(), 0.0, x) @ torch.from_numpy(WEIGHT)
            return {"y": x * scale, "sizes": None, "z": (x + x if twice else x,)}

    scale = torch.full((1, 16), 2.0)
    program = torch.export.export(Net().eval(), (torch.from_numpy(X),), {"scale": scale})
    model = hetero_tvm.import_model(program)
    path = model.original.save(tmp_path / "program.pt2")
    inputs = {"x": X, "scale": scale.numpy()}
    job = Job(name, inputs, host.available_cores()[:1], None, None, None, path)
    y, z = RUNTIMES[name].prepare(job).call()
    np.testing.assert_allclose(y, 2 * (X @ WEIGHT), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(z, 2 * (X @ WEIGHT), rtol=1e-5, atol=1e-5)


def test_inductor_works_where_somebody_has_looked_for_pip():
    """As huggingface_hub does: setuptools then ended with an AssertionError of distutils."""
    code = "import importlib.util; importlib.util.find_spec('pip'); "
    code += "from hetero_tvm.benchmarking import runtimes; runtimes.import_setuptools(); "
    code += "import setuptools, distutils.core; print(setuptools.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == "setuptools", found.stderr


_ALONE = """
import sys, pathlib, numpy
from hetero_tvm.benchmarking.runtimes import RUNTIMES, Job
inputs = {"input_ids": numpy.ones((1, 8), "int64"), "attention_mask": numpy.ones((1, 8), "int64")}
job = Job("torch", inputs, (0,), None, None, None, pathlib.Path(sys.argv[1]))
(found,) = RUNTIMES["torch"].prepare(job).call()
print(found.shape)
"""


@pytest.mark.thorough
def test_a_worker_knows_the_containers_of_transformers(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64, "vocab_size": 100}
    net = transformers.DistilBertModel(transformers.DistilBertConfig(**sizes)).eval()
    given = {name: torch.ones((1, 8), dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    path = tmp_path / "program.pt2"
    hetero_tvm.import_model(torch.export.export(net, (), given)).original.save(path)
    done = subprocess.run([sys.executable, "-c", _ALONE, path], capture_output=True, text=True)
    assert done.stdout.strip() == "(1, 8, 32)", done.stderr
