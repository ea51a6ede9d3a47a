import json
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from hetero_tvm import api, build
from hetero_tvm.compile import report_page
from hetero_tvm.errors import AccuracyError
from hetero_tvm.memory import PlanError
from tests.campaign import small_models


@pytest.fixture
def built(monkeypatch):
    seen = SimpleNamespace(options=None, exported=None, failure=None, unrunnable=None, memory=None)
    kernels = [{"kernel": "matmul", "calls": 2, "record": "shipped record 2026-11-21", "nodes": ("a",)}]

    def check(inputs=None):
        if seen.failure:
            raise seen.failure
        return {"error": 1e-6}

    def export(path):
        seen.exported = path
        return path / "model.so"

    def build_model(plan, **options):
        seen.options = options
        return SimpleNamespace(
            kernels=kernels,
            check=check,
            export=export,
            unrunnable=seen.unrunnable,
            memory=seen.memory,
            step=None,
            no_step="",
        )

    monkeypatch.setattr(report_page, "report_html", lambda *arguments, **options: "page")
    monkeypatch.setattr(report_page, "write_report", lambda library, text: library.with_name("report.html"))
    monkeypatch.setattr(api, "import_model", lambda source, **options: SimpleNamespace(open=None))
    target = SimpleNamespace(placement=lambda module, tasks: None)
    plan = SimpleNamespace(target=target, module=None, tasks=())
    monkeypatch.setattr(api, "optimize_model", lambda model, **options: plan)
    monkeypatch.setattr(api, "build_model", build_model)
    monkeypatch.delenv("HETERO_TVM_DEBUG", raising=False)
    return seen


def test_table_check_and_path(built, capsys, tmp_path):
    assert build.main(["zoo:x", "--out", str(tmp_path), "--logs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "matmul" in out and " shipped 2026-11-21 " in out and "model.so" in out and "1e-06" in out
    assert built.options == {"logs": tmp_path, "use_shipped": True}


def test_records_that_are_not_there_are_told(built, capsys, tmp_path):
    assert build.main(["zoo:x", "--out", str(tmp_path), "--logs", str(tmp_path / "rns")]) == 0
    said = capsys.readouterr().err
    assert said.startswith("warning: --logs") and "rns: there is no such folder" in said


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.zeros((9, 8), np.float32), "x: dimension 0 (n) is 9, outside 1..6"),
        (np.zeros((4, 8), np.int64), "x: int64 4x8, not float32 nx8"),
    ],
)
def test_inputs_of_open_lengths_are_refused_before_anything_is_built(tmp_path, capsys, array, problem):
    source = small_models.network(rows=4, width=8)
    for value in (*source.graph.input, *source.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(source, tmp_path / "m.onnx")
    np.savez(tmp_path / "inputs.npz", x=array)
    command = [str(tmp_path / "m.onnx"), "--out", str(tmp_path / "o"), "--shape", "x=1..6x8"]
    assert build.main([*command, "--inputs", str(tmp_path / "inputs.npz")]) == 2
    told = capsys.readouterr()
    assert problem in told.err and "kernel" not in told.out


def test_json(built, capsys, tmp_path):
    assert build.main(["zoo:x", "--out", str(tmp_path), "--json", "--no-check"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["accuracy"] is None and document["kernels"][0]["nodes"] == ["a"]


def test_wrong_numbers_are_not_exported(built, capsys):
    built.failure = AccuracyError("beyond the tolerance", problems=["kernel matmul"])
    assert build.main([]) == 1
    assert built.exported is None
    assert "kernel matmul" in capsys.readouterr().err


def test_a_wrong_memory_plan_is_not_exported(built, capsys, monkeypatch):
    def verify():
        raise PlanError("the memory plan is wrong", problems=["'a' and 'b' overlap"])

    built.memory = SimpleNamespace(verify=verify, peak=64)
    assert build.main(["--verify"]) == 1
    assert built.exported is None and "overlap" in capsys.readouterr().err


def test_search_options_are_unknown_here(built):
    with pytest.raises(SystemExit) as stopped:
        build.main(["--trials", "3"])
    assert stopped.value.code == 2


def test_a_model_that_cannot_run_here_is_exported_and_said_to_be_unchecked(built, capsys, tmp_path):
    built.unrunnable, built.failure = "no GPU", AccuracyError("must not be asked")
    assert build.main(["zoo:x", "--out", str(tmp_path), "--json"]) == 0
    out = capsys.readouterr()
    assert "NOT CHECKED" in out.err and "no GPU" in out.err
    document = json.loads(out.out)
    assert document["accuracy"] is None and document["not_checked"] == "no GPU"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--lengths", "16:1"], "takes texts of any length"),
        (["--value", "a=1"], "--value: not for language models"),
        (["--disable", "attention", "--verify"], "--disable, --verify: not for language models"),
    ],
)
def test_options_that_mean_nothing_to_a_language_model_are_refused(given, told, tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    assert build.main([str(tmp_path), "--out", str(tmp_path / "o"), *given]) == 2
    assert told in capsys.readouterr().err


def test_steps_and_next_commands_are_told(built, capsys, tmp_path):
    assert build.main(["zoo:x", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "[2/3] compile" in told.err and "[3/3] check and export" in told.err
    assert "python -m hetero_tvm.profile" in told.out
    assert build.main(["zoo:x", "--out", str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("line", [[""], ["zoo:x", "--out", ""]])
def test_empty_names_are_refused(line, capsys):
    with pytest.raises(SystemExit):
        build.main(line)
    assert "is a variable of the shell not set?" in capsys.readouterr().err
