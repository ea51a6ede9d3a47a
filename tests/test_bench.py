import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm import bench, host
from hetero_tvm.benchmarking import runtimes
from hetero_tvm.host.install import pip_command

pytest.importorskip("onnxruntime")
QUICK = ["--rounds", "2", "--seconds", "0.02", "--json", "-q"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """``relu(x @ w)`` with a symbolic batch."""
    weight = np.random.default_rng(0).standard_normal((32, 16)).astype("float32")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 16])],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path_factory.mktemp("bench") / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def document(model):
    """``--json`` of a small comparison, which leaves the library in ``out`` beside the model."""
    import contextlib
    import io

    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        status = bench.main(
            [
                str(model),
                "--shape",
                "x=8x32",
                "--out",
                str(model.parent / "out"),
                *QUICK,
                "--vs",
                "onnxruntime",
            ]
        )
    assert status == 0
    return json.loads(stdout.getvalue())  # exactly one document


@pytest.mark.thorough
def test_the_document(document, model):
    ours, peer = document["runtimes"]
    assert (ours["name"], peer["name"]) == (runtimes.OURS, "onnxruntime")
    assert document["threads"] == len(host.available_cores()) == len(document["cores"])
    for row in (ours, peer):
        assert row["status"] == "ok" and row["version"]
        assert 0 < row["min_ms"] <= row["p10_ms"] <= row["median_ms"]
        assert row["runs"] >= 6 and row["spread"] >= 0
    assert ours["ratio"] == 1.0 and ours["max_abs_difference"] == 0.0
    assert peer["ratio"] > 0 and peer["max_abs_difference"] < 1e-4


@pytest.mark.thorough
def test_a_library_with_its_model_and_alone(document, model, capsys):
    library = document["library"]
    assert bench.main([library, "--model", str(model), "--shape", "x=8x32", *QUICK, "--threads", "1"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in answer["runtimes"]] == ["ok", "ok"] and answer["threads"] == 1
    assert bench.main([library, *QUICK, "--streams", "1,2"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (row,) = answer["runtimes"]
    assert row["name"] == runtimes.OURS
    assert row["min_ms"] <= row["median_ms"] <= row["p90_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert [one["streams"] for one in answer["streams"]] == [1, 2]
    assert all(one["per_second"] > 0 and len(one["calls"]) == one["streams"] for one in answer["streams"])
    assert answer["load_ms"] > 0 and answer["first_call_ms"] > 0
    assert answer["memory"]["peak"] >= answer["memory"]["loaded"] > 0


@pytest.mark.thorough
def test_a_baseline_decides_the_exit_status(document, tmp_path, capsys):
    """Against times that no machine keeps, and against times that every machine beats."""
    for factor, status in ((1e-3, 3), (1e3, 0)):
        row = {**document["runtimes"][0]}
        row.update({key: factor * row[key] for key in ("median_ms", "p10_ms")})
        old = tmp_path / "old.json"
        old.write_text(json.dumps({**document, "runtimes": [row]}))
        arguments = [document["library"], "--rounds", "1", "--seconds", "0.02", "--streams", "0"]
        assert bench.main([*arguments, "--baseline", str(old)]) == status
        assert ("slower" if status else "faster") in capsys.readouterr().out
    old.write_text("{}")
    assert bench.main([document["library"], "--baseline", str(old)]) == 2
    assert "is no document of bench" in capsys.readouterr().err


def test_inputs_and_sizes_of_a_library(document, tmp_path, capsys):
    library, given = document["library"], tmp_path / "x.npz"
    np.savez(given, x=np.zeros((8, 32), "float32"))
    assert bench.main([library, *QUICK, "--inputs", str(given), "--shape", "x=[8,32]", "--batch", "8"]) == 0
    capsys.readouterr()
    np.savez(given, x=np.zeros((4, 32), "float32"))
    assert bench.main([library, *QUICK, "--inputs", str(given)]) == 2
    assert "float32 4x32, not float32 8x32" in capsys.readouterr().err
    assert bench.main([library, *QUICK, "--batch", "3", "--shape", "y=1x2"]) == 2
    said = capsys.readouterr().err
    assert "built for a batch of 8, not 3" in said and "there is no input 'y'" in said


@pytest.mark.thorough
def test_the_table(document, model, capsys):
    arguments = ["--model", str(model), "--shape", "x=8x32", "--rounds", "1", "--seconds", "0.01"]
    assert bench.main([document["library"], *arguments]) == 0
    captured = capsys.readouterr()
    assert "onnxruntime" in captured.out and "ours / this" in captured.out
    assert "round 1 of 1" in captured.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vs", "onnxruntime"], "add --model"),
        (["--vs", "onnxrt"], "unknown runtime onnxrt"),
        (["--model", "MODEL", "--shape", "x=4x32"], "was not built from"),
        (["--model", "MODEL", "--shape", "x=8x32", "--vs", "tensorflow"], "unknown runtime tensorflow"),
        (["--threads", "4096"], "cores are available"),
        (["--seconds", "0"], "must be positive"),
    ],
)
def test_errors(document, model, capsys, arguments, message):
    arguments = [str(model) if argument == "MODEL" else argument for argument in arguments]
    assert bench.main([document["library"], *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_model_cannot_have_a_model(model, capsys):
    assert bench.main([str(model), "--model", str(model)]) == 2
    assert "--model is for an exported .so" in capsys.readouterr().err


@pytest.mark.thorough
def test_what_is_not_installed_is_reported_and_skipped(document, model, capsys, monkeypatch):
    absent = runtimes.Runtime(lambda job: None, "no_such_package", "openvino")
    monkeypatch.setitem(runtimes.RUNTIMES, "openvino", absent)
    arguments = [document["library"], "--model", str(model), "--shape", "x=8x32", *QUICK]
    assert bench.main([*arguments, "--vs", "openvino,onnxruntime"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["runtimes"]}
    assert rows["onnxruntime"]["status"] == "ok"
    missing = {"name": "openvino", "status": "not installed", "reason": pip_command("openvino")}
    assert rows["openvino"] == missing
    assert bench.main([*arguments, "--vs", "openvino"]) == 2
    assert f"-m {'pip install openvino'}" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_library_for_an_npu_says_what_the_npu_takes(model, tmp_path, capsys):
    arguments = [str(model), "--shape", "x=8x32", "--target", "npu:edge", "--precision", "bf16"]
    arguments += ["--out", str(tmp_path), "--no-shipped-records", "--logs", str(tmp_path)]
    arguments += ["--rounds", "1", "--seconds", "0.02"]
    assert bench.main([*arguments, "--json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    ours, peer = document["runtimes"]
    npu = ours["npu"]
    assert npu["regions"] == 1 and npu["macs"] == 8 * 16 * 32 and npu["energy_joule"] > 0
    assert npu["npu_ms"] == pytest.approx(npu["cycles"] / 0.5e6)  # 0.5 GHz
    assert npu["latency_ms"] == pytest.approx(npu["npu_ms"] + npu["host_ms"]) and npu["host_ms"] >= 0
    assert peer["ratio"] == pytest.approx(npu["latency_ms"] / peer["median_ms"])
    assert 1e-5 < peer["max_rel_difference"] < 2e-2  # bf16, not f16 or f32
    assert bench.main([document["library"], "--rounds", "1", "--seconds", "0.02"]) == 0
    assert "NPU edge bf16, simulated: " in capsys.readouterr().out
