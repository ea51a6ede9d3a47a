"""Target texts, what the CPU target says about this machine, and targets from other packages."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from hetero_tvm import host
from hetero_tvm.errors import TargetError, UsageError
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.decoding.storage import Storage
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.targets import registry
from hetero_tvm.targets.cpu.target import CpuTarget
from hetero_tvm.targets.registry import parse_target


def test_this_machine():
    target = parse_target("cpu")
    here = host.detect()
    assert isinstance(target, CpuTarget) and target.kind == "cpu"
    assert target.describe()["cpu"] == here.microarchitecture
    assert target.describe()["threads"] == len(here.cores)
    assert (target.machine.l1, target.machine.l2, target.machine.l3) == (here.l1d, here.l2, here.l3)


def test_a_target_object_is_returned_as_it_is():
    target = parse_target("cpu")
    assert parse_target(target) is target


@pytest.mark.parametrize("text", ["tpu", "", "CPU", "zzz:variant"])
def test_unknown_kinds_list_the_known(text):
    with pytest.raises(TargetError, match="there is no target") as caught:
        parse_target(text)
    assert "cpu" in caught.value.hint


def test_a_gpu_is_called_cuda():
    with pytest.raises(TargetError, match="there is no target 'gpu'") as caught:
        parse_target("gpu")
    assert "cuda:sm_" in caught.value.hint


def test_targets_as_tvm_writes_them():
    for text, ours in (("llvm", "is cpu here"), ("llvm -mcpu=skylake-avx512", "is cpu:skylake-avx512 here")):
        with pytest.raises(TargetError) as caught:
            parse_target(text)
        assert ours in caught.value.hint


def test_unknown_variant_suggests():
    with pytest.raises(TargetError, match="LLVM knows no CPU 'znver33'") as caught:
        parse_target("cpu:znver33")
    assert "znver3" in caught.value.hint


def test_two_variants():
    with pytest.raises(TargetError, match="one microarchitecture"):
        parse_target("cpu:znver3,znver4")


@pytest.mark.parametrize(
    ("variant", "lanes", "registers", "present", "absent"),
    [
        ("skylake-avx512", 16, 32, "avx512f", "avx512_bf16"),
        ("haswell", 8, 16, "avx2", "avx512f"),
        ("nehalem", 4, 16, "sse4_2", "avx"),
    ],
)
def test_other_machines(variant, lanes, registers, present, absent):
    target = parse_target(f"cpu:{variant}")
    machine = target.machine
    assert (machine.mcpu, machine.lanes, machine.registers) == (variant, lanes, registers)
    assert present in target.features and absent not in target.features
    assert list(target.features) == sorted(target.features)
    assert str(target.tvm_target.attrs["mcpu"]) == variant


def test_features_are_named_as_in_cpuinfo():
    if host.detect().architecture != "x86_64":
        pytest.skip("the names are those of x86")
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    flags = set(flags.split(":")[1].split())
    assert set(parse_target("cpu").features) <= flags
    # every feature of another CPU is spelled as some kernel would spell it: no dots, no dashes
    assert not any("." in name or "-" in name for name in parse_target("cpu:sapphirerapids").features)


def test_features_that_a_hypervisor_hides_are_switched_off(monkeypatch):
    here = host.detect()
    if here.architecture != "x86_64":
        pytest.skip("the names are those of x86")
    monkeypatch.setattr(host, "detect", lambda: dataclasses.replace(here, features=here.features - {"bmi2"}))
    target = CpuTarget()
    assert "bmi2" not in target.features
    assert "-bmi2" in [str(name) for name in target.tvm_target.attrs["mattr"]]
    # for another machine nothing is known to be hidden
    assert "bmi2" in CpuTarget("haswell").features or here.microarchitecture == "haswell"


def test_machine_json_round_trip():
    machine = dataclasses.replace(parse_target("cpu").machine, features=("a", "b"))
    again = CpuModel.from_json(machine.to_json())
    assert again == machine and isinstance(again.features, tuple)


def test_space_for_gives_reasons():
    target = parse_target("cpu")
    space, reasons = target.space_for(Matmul((3,), 4, 5))
    assert space.name == "cpu.matmul" and not reasons
    space, reasons = target.space_for(Attention(1, 1, 3, 60000, 8, 1.0, 1))
    assert space is None and len(reasons) == len(target.spaces)
    assert any(reason.startswith("cpu.attention: 60000 keys") for reason in reasons)


class _Entry:
    def __init__(self, name, factory):
        self.name, self._factory = name, factory

    def load(self):
        return self._factory


def test_targets_of_other_packages(monkeypatch):
    variants = []

    class Toy(CpuTarget):
        kind = "toy"

    def factory(variant):
        variants.append(variant)
        return Toy()

    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group: [_Entry("toy", factory)] if group == "hetero_tvm.targets" else [],
    )
    assert isinstance(parse_target("toy:big,slow"), Toy) and variants == ["big,slow"]
    assert isinstance(parse_target("toy"), Toy) and variants[-1] == ""
    with pytest.raises(TargetError) as caught:
        parse_target("tou")
    assert "did you mean 'toy'?" in caught.value.hint
    assert {"cpu", "cuda", "toy"} <= set(caught.value.hint.rpartition(": ")[2].split(", "))
    assert parse_target("cpu").kind == "cpu"  # built in: no entry point can replace it


def test_low_precision_of_cpus():
    target = CpuTarget()
    half = target.with_precision("bf16")
    assert half.storage == Storage("bf16") and half.describe()["precision"] == "bf16"
    assert "stored_weights" in {rule.name for rule in half.keeping({"a"}).fusions}
    four = target.storing(Storage.named("int4", 32, True)).keeping({"a"})
    assert four.describe()["precision"] == "int4g32z" and four.kept == {"a"}
    assert four.least_cosine < half.least_cosine
    smooth = target.smoothing({"b": np.ones(3)}).keeping({"a"})
    assert smooth.precision == "int8" and set(smooth.factors) == {"b"} and smooth.storage is None
    assert four.with_precision("f32").storage is None


def test_other_targets_refuse_what_they_lack():
    target = parse_target("npu:edge")
    with pytest.raises(UsageError, match="no weights of few bits"):
        target.storing(Storage.named("int8"))
    with pytest.raises(UsageError, match="smooths no operands"):
        target.smoothing({})
