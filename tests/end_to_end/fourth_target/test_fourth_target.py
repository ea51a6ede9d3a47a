"""A target in a package of its own, installed by pip: every command serves it, and no file of ours names it.

It brings its pass, design space, code generation, tuner, profile and library; each is seen at work through
the command line, in fresh processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parents[3]
PACKAGE = Path(__file__).with_name("package")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder in which pip installed the package."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "package"
    subprocess.run(["cp", "-r", str(PACKAGE), str(source)], check=True)  # pip writes beside what it builds
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(folder), str(source)], check=True)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Two products and a doubling between them."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        return numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32) / 8, name)

    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "first"),
        helper.make_node("Add", ["a", "a"], ["b"], "twice"),
        helper.make_node("MatMul", ["b", "w2"], ["c"], "second"),
        helper.make_node("Add", ["c", "bias"], ["y"], "bias_add"),
    ]
    graph = helper.make_graph(
        nodes,
        "two_products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 17])],
        [weight("w1", 48, 40), weight("w2", 40, 17), weight("bias", 17)],
    )
    path = tmp_path_factory.mktemp("model") / "two_products.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def run(site):
    def call(command, *arguments, fails=False):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
        made = subprocess.run(
            [sys.executable, "-m", f"hetero_tvm.{command}", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert (made.returncode != 0) == fails, made.stderr
        return made.stderr if fails else made.stdout

    return call


@pytest.fixture(scope="module")
def tuned(run, model, tmp_path_factory):
    """What ``tune`` says, and the folders of its library and records."""
    out, logs = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("logs")
    arguments = ["--target", "fourth:big", "--trials", 20, "--out", out, "--logs", logs, "--json"]
    return json.loads(run("tune", model, *arguments)), out, logs


@pytest.mark.thorough
def test_its_pass_and_its_space_are_inspected(run, model):
    document = json.loads(run("inspect", model, "--target", "fourth", "--json"))
    assert document["fusions"]["doubling"] == 1
    spaces = [kernel["space"] for kernel in document["kernels"]]
    assert spaces.count("fourth.matmul") == 2


@pytest.mark.thorough
def test_its_tuner_finds_the_widest_block(tuned):
    document, _, logs = tuned
    points = {k["kernel"]: k["point"] for k in document["kernels"] if k["space"] == "fourth.matmul"}
    assert [point["block"] for point in points.values()] == [32, 32]
    assert document["accuracy"]["outputs"][0]["max_error"] < 1e-5
    assert (logs / "fourth-big.jsonl").is_file()


@pytest.mark.thorough
def test_its_code_counts_and_its_profile_reads(run, tuned, tmp_path):
    _, out, _ = tuned
    trace = tmp_path / "trace.json"
    document = json.loads(run("profile", out, "--json", "--trace", trace, "-q"))
    # The factor 2 was folded into the weights: two kernels are left, each called once.
    assert list(document["calls"].values()) == [1, 1]
    assert len(json.loads(trace.read_text())["traceEvents"]) == 2


@pytest.mark.thorough
def test_other_runtimes_are_compared_with_it(run, tuned, model):
    _, out, _ = tuned
    arguments = ["--model", model, "--vs", "onnxruntime", "--rounds", 1, "--seconds", 0.01, "--json"]
    ours, theirs = json.loads(run("bench", out, *arguments))["runtimes"]
    assert ours["status"] == theirs["status"] == "ok" and theirs["max_rel_difference"] < 1e-5


@pytest.mark.thorough
def test_a_variant_that_it_does_not_have_is_refused_in_its_words(run, model):
    message = run("build", model, "--target", "fourth:huge", fails=True)
    assert "there is no engine 'huge'" in message and "engines: small, big" in message
