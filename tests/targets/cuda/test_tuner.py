"""Tuning on a GPU, the emulated one: which device, which records, what a broken kernel costs."""

import pytest

from hetero_tvm import tune as tune_command
from hetero_tvm.api import build_model, import_model, optimize_model, record_store, tune_model
from hetero_tvm.errors import TargetError
from hetero_tvm.records.record import RANKED
from hetero_tvm.records.store import read_records
from hetero_tvm.targets.registry import parse_target

DEVICE = "CPU emulation of sm_80"


@pytest.mark.thorough
def test_of_several_architectures_the_one_that_is_there_is_measured(emulated, tmp_path):
    plan = optimize_model(import_model("zoo:minilm-l6-tiny"), target="cuda:sm_90,sm_80", precision="f16")
    tuned = tune_model(plan, trials=1, logs=tmp_path, use_shipped=False)
    assert tuned.report.trials == 1 and not tuned.report.failures
    assert any("only sm_80 was measured: sm_90" in text for text in tuned.report.warnings)
    assert any(f"measured on {DEVICE}" in text for text in tuned.report.notes)
    (path,) = tmp_path.iterdir()
    assert path.name == "cuda-emulated-sm_80.jsonl"  # never taken for times of a GPU
    assert {(record.device, record.mcpu) for record in read_records(path)} == {(DEVICE, "sm_80")}
    assert all(choice.origin == "default" for choice in tuned.choices.values())  # of sm_90, the first


def test_a_device_that_no_architecture_serves(emulated, monkeypatch):
    target = parse_target("cuda:sm_90")
    assert list(target.devices_here()) == []
    with pytest.raises(TargetError, match="is sm_80, the target has sm_90") as caught:
        target.arch_on({"name": "A100", "capability": 80})
    assert caught.value.hint == "--target cuda:sm_90,sm_80"


@pytest.mark.thorough
def test_what_is_ranked_is_marked_and_never_beats_what_is_measured(tmp_path, compiler):
    plan = optimize_model(import_model("zoo:llama-160m-tiny"), target="cuda:sm_80", precision="f16")
    (variant,) = plan.variants()
    task = next(task for task in plan.tasks if task.space is not None and task.space.name == "cuda.matmul")
    knobs = task.space.knobs(task.op, plan.machine)
    default = dict(task.space.default(task.op, plan.machine))
    store = record_store(plan, tmp_path, False)
    from hetero_tvm.records.choose import choose_one
    from hetero_tvm.records.record import TRIAL, UNMEASURED, VERIFIED, new_record

    def choice(device=""):
        return choose_one(task, plan.machine, record_store(plan, tmp_path, False, device))

    ranked = {name: knob.choices[-1] for name, knob in ((knob.name, knob) for knob in knobs)}
    store.append(new_record(task, store.site, {"point": ranked}, status=UNMEASURED, role=RANKED))
    assert choice().point == ranked and "not measured" in choice().origin and choice().seconds is None
    there = record_store(plan, tmp_path, False, "NVIDIA H200")
    there.append(new_record(task, there.site, {"point": default}, seconds=1.0, role=TRIAL))
    assert choice().point == default and choice("NVIDIA H200").point == default
    # Of another product of the architecture: better than what nobody measured, and said so.
    assert choice("NVIDIA H100").point == default and "of NVIDIA H200" in choice("NVIDIA H100").origin
    here = record_store(plan, tmp_path, False, "NVIDIA H100")
    here.append(new_record(task, here.site, {"point": ranked}, seconds=2.0, role=VERIFIED))
    assert choice("NVIDIA H100").point == ranked and choice("NVIDIA H200").point == default
    assert not here.measured(task).get("ranked") and len(here.trials(task)) == 0
    built = build_model(variant, logs=tmp_path, use_shipped=False)
    row = next(row for row in built.kernels if row["kernel"] == task.name)
    assert row["record"].startswith("record") and "verified" in row["record"]


@pytest.mark.thorough
def test_the_command_says_what_it_found(emulated, tmp_path, capsys):
    arguments = ["zoo:minilm-l6-tiny", "--target", "cuda", "--precision", "f16", "--trials", "1"]
    arguments += ["--out", str(tmp_path), "--logs", str(tmp_path), "--no-check", "--no-shipped-records"]
    assert tune_command.main(arguments) == 0
    out = capsys.readouterr().out
    assert "CUDA compiler: Found emulator" in out and f"GPU: Found {DEVICE} (sm_80; it runs sm_80)" in out
    assert f"measured on {DEVICE}" in out
