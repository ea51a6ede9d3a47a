"""``python -m hetero_tvm.inspect``: the report as JSON and as text, IR after each pass."""

import importlib.util
import json

import pytest

from hetero_tvm import inspect
from hetero_tvm.cli import library_report as inspect_library
from hetero_tvm.host.native import compile_shared
from hetero_tvm.host.terminal import console
from hetero_tvm.runtime.manifest import Manifest, TargetInfo, embed_source
from hetero_tvm.runtime.signature import Signature, TensorSpec

MODEL = "zoo:minilm-l6-tiny"


def test_json_tells_fusions_misses_and_anchors(capsys):
    assert inspect.main([MODEL, "--json", "--disable", "gelu"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fusions"]["attention"] == document["fusions"]["qkv"] == 2
    assert "gelu" not in document["fusions"]
    assert document["anchors"]["gelu"] == {"fused": 0, "all": 2}
    erf = [miss for miss in document["misses"] if miss["rule"] == "gelu"]
    assert len(erf) == 2 and all(set(miss) == {"rule", "node", "reason"} for miss in erf)
    assert all("Erf" in miss["node"] for miss in erf)
    assert document["inputs"][0]["name"] == "input_ids" and document["kernels"]
    assert document["seconds"]["attention"] >= 0


def test_text(capsys):
    assert inspect.main([MODEL]) == 0
    text = capsys.readouterr().out
    assert "softmax: 2 of 2 inside fused operators" in text
    assert "attention" in text and "time of the passes" in text
    assert inspect.main([MODEL, "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_passes_that_take_no_time_share_a_line():
    rows = inspect._slow_passes({"fold": 0.5, "quick": 0.001, "attention": 0.4, "none": 0.0})
    assert rows == [
        ("fold", "500.0"),
        ("attention", "400.0"),
        ("2 others, under 1% each", "1.0"),
        ("all", "901.0"),
    ]
    assert inspect._slow_passes({"fold": 0.5}) == [("fold", "500.0"), ("all", "500.0")]


def test_a_library_is_read_and_not_loaded(tmp_path, capsys):
    """Here for GPUs: no driver is needed to see registers and records."""
    facts = {"registers": 40, "stack": 0, "shared": 2048, "threads": 128, "grid": None, "occupancy": 0.75}
    row = {"kernel": "softmax_4x4", "calls": 2, "space": "cuda.softmax", "record": "default"}
    manifest = Manifest(
        "net",
        Signature((TensorSpec("x", (4, 4), "float32"),), (TensorSpec("y", (4, 4), "float32"),)),
        TargetInfo("cuda", archs=("sm_80", "sm_90")),
        kernels=[row],
        device={arch: {f"softmax_{arch}": facts} for arch in ("sm_80", "sm_90")},
    )
    source = tmp_path / "manifest.cc"
    source.write_text(embed_source(manifest))
    library = compile_shared([source], name="manifest")
    assert inspect.main([str(library)]) == 0
    text = capsys.readouterr().out
    for part in ("net for cuda sm_80 sm_90", "x: 4x4 float32", "never compared", "cuda.softmax", "75%"):
        assert part in text
    assert inspect.main([str(library), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["device"]["sm_90"]["softmax_sm_90"] == facts and document["kernels"] == [row]
    inspect_library.show({**document, "accuracy": [{"relative_error": 2e-6}]}, console())
    assert "largest error 2.0e-06" in capsys.readouterr().out
    assert inspect.main([str(library), "-q"]) == 0 and capsys.readouterr().out == ""
    assert inspect.main([str(library), "--memory"]) == 2
    assert "is a built library" in capsys.readouterr().err
    assert inspect.main([str(tmp_path)]) == 2 and "no .so" in capsys.readouterr().err


def test_ir_after_each_pass_is_numbered(tmp_path, capsys):
    assert inspect.main([MODEL, "--dump-ir", str(tmp_path / "ir")]) == 0
    files = sorted(path.name for path in (tmp_path / "ir").iterdir())
    assert files[0] == "000_import.py" and files[-1].endswith("_lower.py")
    assert [int(name.split("_")[0]) for name in files] == list(range(len(files)))
    attention = next(path for path in (tmp_path / "ir").iterdir() if path.name.endswith("_attention.py"))
    assert "attention_b1h" in attention.read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([MODEL, "--disable", "gelo"], "there are no fusions called gelo"),
        (["nothing.onnx"], "nothing.onnx"),
        ([MODEL, "--dump-ir", "/dev/null/ir"], "cannot write"),
    ],
)
def test_bad_options_are_told(arguments, told, capsys):
    assert inspect.main(arguments) == 2
    assert told in capsys.readouterr().err


def test_a_picture_that_cannot_be_drawn_is_told_before_the_work(monkeypatch, capsys):
    assert inspect.main(["nothing.onnx", "--plot", "arena.gif"]) == 2
    assert "cannot plot to 'arena.gif'" in capsys.readouterr().err
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "matplotlib" else found(name, *more)
    )
    assert inspect.main(["nothing.onnx", "--plot", "arena.png"]) == 2
    assert "drawing needs matplotlib" in capsys.readouterr().err


@pytest.mark.thorough
def test_memory_is_planned_verified_and_drawn(tmp_path, capsys):
    plot = tmp_path / "arena.png"
    assert inspect.main([MODEL, "--memory", "--verify", "--plot", str(plot)]) == 0
    text = capsys.readouterr().out
    assert "StaticPlanBlockMemory" in text and "lower bound" in text and "nothing live overlaps" in text
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert inspect.main([MODEL, "--memory", "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory["lower_bound"] <= memory["peak"] <= memory["static_plan"] <= memory["naive"]


def test_no_memory_plan_unless_asked(capsys):
    assert inspect.main([MODEL, "--json"]) == 0
    assert "memory" not in json.loads(capsys.readouterr().out)
