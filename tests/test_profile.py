"""The command ``profile`` and ``net.profile`` for a CPU: kernels, nodes, threads, traces, comparisons.

For an NPU: ``tests/targets/npu/device/test_profile.py``.
"""

import json
import os

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import hetero_tvm
from hetero_tvm import api, host, profile
from hetero_tvm.errors import InputError
from hetero_tvm.host import peaks
from hetero_tvm.runtime.profiling import OTHER

pytest.importorskip("tvm")
NAMES = ["/layer.0/product", "/layer.0/relu", "/layer.1/product", "/layer.1/relu", "/head/softmax"]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Two equal products, large enough for several threads, and a softmax."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((192, 192)).astype("float32") / 14 for _ in range(2)]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], NAMES[0]),
        helper.make_node("Relu", ["a"], ["b"], NAMES[1]),
        helper.make_node("MatMul", ["b", "w1"], ["c"], NAMES[2]),
        helper.make_node("Relu", ["c"], ["d"], NAMES[3]),
        helper.make_node("Softmax", ["d"], ["y"], NAMES[4], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [192, 192])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [192, 192])],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    optimized = api.optimize_model(api.import_model(model), "cpu")
    built = api.build_model(optimized, use_shipped=False)
    return built.export(tmp_path_factory.mktemp("lib"))


@pytest.fixture(scope="module")
def found(library):
    net = hetero_tvm.load(library)
    return net.profile(np.ones((192, 192), "float32"), seconds=0.1)


@pytest.mark.thorough
def test_kernels_and_nodes_are_those_of_the_model(found):
    calls = {call.kernel: [] for call in found.calls}
    for call in found.calls:
        calls[call.kernel].append(call.nodes)
    (products,) = [nodes for kernel, nodes in calls.items() if kernel.startswith("matmul")]
    assert products == [tuple(NAMES[:2]), tuple(NAMES[2:4])]
    assert sum(len(nodes) for nodes in calls.values()) == 3
    assert {name for name, _, _ in found.nodes()} == {NAMES[0], NAMES[2], NAMES[4]}
    assert {scope for scope, _ in found.scopes(1)} == {"/layer.0", "/layer.1", "/head"}


@pytest.mark.thorough
def test_times_add_up_and_speeds_follow(found):
    document = found.to_json()
    assert found.kernel_seconds == pytest.approx(sum(kernel.seconds for kernel in found.kernels))
    assert sum(row["share"] for row in document["kernels"]) == pytest.approx(1)
    assert found.kernels[-1].name == OTHER
    (product,) = [kernel for kernel in found.kernels if kernel.name.startswith("matmul")]
    assert product.calls == 2 and product.seconds > 0 and product.space == "cpu.matmul"
    assert product.gflops == pytest.approx(2 * product.flops / product.seconds / 1e9)
    assert product.flops >= 2 * 192**3
    if len(host.available_cores()) > 1:
        assert 0 < product.balance <= 1 and found.last.spans.size
        launches = found.last.spans["launch"]
        assert set(found.last.spans["tasks"][launches == launches[0]]) != {0}
    assert repr(found).startswith("<Profile of 'layers'") and len(repr(found)) < 120


def test_every_kernel_has_a_time_and_a_call_takes_as_long_as_unobserved(found):
    assert all(call.seconds > 0 for call in found.calls)
    assert found.kernel_seconds <= found.seconds * (1 + 1e-9)
    # What the library itself writes down costs less than a hook in Python does.
    assert 0 < found.last.hook_ns


def test_roofs_that_cannot_be_measured_say_why(library, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HETERO_TVM_CACHE", str(tmp_path / "file" / "cache"))
    peaks._peak_library.cache_clear()
    net = hetero_tvm.load(library)
    found = net.profile(np.ones((192, 192), "float32"), seconds=0.01)
    peaks._peak_library.cache_clear()
    assert found.peaks == {} and "cannot write to the cache folder" in found.to_json()["no_roofs"]
    found.show()
    shown = " ".join(capsys.readouterr().out.split())
    assert "roofs: unknown: cannot write to the cache folder" in shown and "export HETERO_TVM_CACHE=" in shown


def test_results_are_the_same_while_and_after_somebody_looks(library):
    net = hetero_tvm.load(library)
    x = np.random.default_rng(1).standard_normal((192, 192)).astype("float32")
    before = net(x)
    net.profile(x, seconds=0.01)
    np.testing.assert_array_equal(net(x), before)


def test_wrong_inputs_are_refused(library):
    with pytest.raises(InputError):
        hetero_tvm.load(library).profile(np.ones((1, 192), "float32"))


@pytest.mark.thorough
def test_the_command(library, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    trace, old = tmp_path / "trace.json", tmp_path / "old.json"
    quick = [str(library), "--seconds", "0.01"]
    assert profile.main([*quick, "--json", "--trace", str(trace), "-q"]) == 0
    text, told = capsys.readouterr()
    assert "warning: the machine is busy (load 1000.0)" in told
    old.write_text(text)
    document = json.loads(text)
    assert document["runs"] >= 5 and document["call_ms"] > 0 and len(document["calls"]) == 3
    events = json.loads(trace.read_text())["traceEvents"]
    kernels = [e for e in events if e["ph"] == "X" and e["tid"] == 0]
    assert [e["args"]["nodes"][0] for e in kernels] == [NAMES[0], NAMES[2], NAMES[4]]
    for event in events:
        if event["ph"] == "X" and event["tid"]:  # a task lies within a kernel
            assert any(k["ts"] <= event["ts"] <= k["ts"] + k["dur"] for k in kernels)
    for row in document["kernels"]:
        row["ms"] /= 1000
    old.write_text(json.dumps(document))
    assert profile.main([*quick, "--compare", str(old)]) == 0
    said = capsys.readouterr().out
    assert "% of roof" in said and "/layer.0/product" in said and "kernels that changed" in said


@pytest.mark.parametrize(
    "options, message",
    [
        (["--trace", "none/trace.json"], "there is no folder"),
        (["--seconds", "0"], "must be positive"),
        (["--compare", "none.json"], "there is no such file"),
        (["--shape", "z=1"], "there is no input 'z'"),
    ],
)
def test_what_cannot_be(library, options, message, capsys):
    assert profile.main([str(library), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_document_of_something_else_is_refused(library, tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"kernels": []}))
    assert profile.main([str(library), "--compare", str(path)]) == 2
    assert "is no document of profile" in capsys.readouterr().err
    path.write_bytes(b"PK\x03\x04\xe0")
    assert profile.main([str(library), "--compare", str(path)]) == 2
    assert "is no JSON document" in capsys.readouterr().err


@pytest.mark.thorough
def test_bodies_of_loops_are_no_kernels_and_count_once(tmp_path):
    matrix = numpy_helper.from_array(np.eye(32, dtype="float32"), "m")
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 32]) for name in "xyvo"}
    flags = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("more", "again")]
    counts = [helper.make_tensor_value_info(name, TensorProto.INT64, []) for name in ("i", "n")]
    nodes = [
        helper.make_node("MatMul", ["v", "m"], ["w"], "/body/product"),
        helper.make_node("Tanh", ["w"], ["o"], "/body/tanh"),
        helper.make_node("Identity", ["more"], ["again"]),
    ]
    ends = [counts[0], flags[0], values["v"]], [flags[1], values["o"]]
    body = helper.make_graph(nodes, "body", *ends, [matrix])
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], "/loop", body=body)
    graph = helper.make_graph([loop], "loop", [counts[1], values["x"]], [values["y"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    built = api.build_model(api.optimize_model(api.import_model(model), "cpu"), use_shipped=False)
    net = hetero_tvm.load(built.export(tmp_path))
    found = net.profile(np.array(3), np.ones((4, 32), "float32"), seconds=0.1)
    products = [call for call in found.calls if call.kernel.startswith("matmul")]
    assert len(products) == 3 and all("/body/product" in call.nodes[0] for call in products)
    events = [event for event in found.last.events if not event.builtin]
    assert all(one.end <= next_.start for one, next_ in zip(events, events[1:], strict=False))
    assert any(event.bytecode for event in found.last.events)
