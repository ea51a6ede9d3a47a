"""Machine descriptions: presets, TOML files, and all problems at once."""

import dataclasses

import pytest

from hetero_tvm.errors import TargetError
from hetero_tvm.machines.npu.spec import KIB, Energy, NPUSpec, presets

PRESETS = {
    "edge": ((8, 8, 16), 32, 0.5, (256, 16, 16, 32, 64), (128, 64, 64), (16, 100), 4),
    "mobile": ((16, 16, 16), 128, 1.0, (1024, 64, 64, 256, 256), (512, 256, 256), (51.2, 200), 4),
    "datacenter": ((32, 32, 16), 256, 1.0, (2048, 128, 128, 512, 512), (1024, 512, 512), (400, 400), 4),
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    block, lanes, clock, sizes, ports, dram, issue = PRESETS[name]
    s = NPUSpec.preset(name)
    assert (s.matrix_block, s.vector_lanes, s.clock_ghz, s.issue_cycles) == (block, lanes, clock, issue)
    assert tuple(s.scratchpad(m) // KIB for m in ("l1", "l0a", "l0b", "l0c", "ub")) == sizes
    assert (s.l1_to_l0a, s.l1_to_l0b, s.l0c_to_ub) == ports
    assert (s.dram_bytes_per_cycle, s.dram_latency) == dram
    assert s.transcendental_divisor == 4 and s.block("i8") == (block[0], block[1], 2 * block[2])
    assert s.macs_per_cycle("i8") == 2 * s.macs_per_cycle("bf16")


def test_there_are_three_and_others_are_refused_by_name():
    assert presets() == ("edge", "mobile", "datacenter")
    with pytest.raises(TargetError, match="no NPU preset 'phone'.*\n.*edge, mobile, datacenter"):
        NPUSpec.preset("phone")


TOML = """
name = "mine"
matrix_block = [4, 8, 32]
vector_lanes = 64
clock_ghz = 0.8
l1_kib = 128
l0a_kib = 8
l0b_kib = 8
l0c_kib = 16
ub_kib = 32
l1_to_l0a = 64
l1_to_l0b = 64
l0c_to_ub = 32
dram_bytes_per_cycle = 12.8
dram_latency = 80
issue_cycles = 2
"""


def write(tmp_path, text):
    path = tmp_path / "chip.toml"
    path.write_text(text)
    return path


def test_a_toml_file(tmp_path):
    spec = NPUSpec.from_toml(write(tmp_path, TOML + "[energy_pj]\ndram_byte = 3\n"))
    assert spec.name == "mine" and spec.matrix_cycles(5, 8, 33) == 2 * 1 * 2
    assert spec.ub_bytes_per_cycle == 8 * 64
    assert spec.energy_pj == Energy(dram_byte=3)
    assert NPUSpec.from_toml(write(tmp_path, TOML.replace('name = "mine"', ""))).name == "chip"


def test_all_problems_at_once(tmp_path):
    wrong = TOML
    broken = {"vector_lanes = 64": "vector_lanes = 4", "l1_to_l0a = 64": "l1_to_l0a = 65"}
    broken |= {"[4, 8, 32]": "[4, 8]", "12.8": "-1.0", "l1_kib = 128": "l1_kib = true"}
    for good, bad in broken.items():
        wrong = wrong.replace(good, bad)
    with pytest.raises(TargetError) as error:
        NPUSpec.from_toml(write(tmp_path, wrong))
    for key in ("vector_lanes", "l1_to_l0a", "matrix_block", "dram_bytes_per_cycle", "l1_kib"):
        assert f"  - {key} must be " in str(error.value)
    other = TOML.replace("ub_kib = 32", "l4_kib = 3") + "[energy_pj]\ndram_byte = -1\n"
    reasons = "unknown key 'l4_kib'(.|\n)*missing key 'ub_kib'(.|\n)*energy_pj.dram"
    with pytest.raises(TargetError, match=reasons):
        NPUSpec.from_toml(write(tmp_path, other))


def test_files_that_are_not_specs(tmp_path):
    with pytest.raises(TargetError, match="cannot read"):
        NPUSpec.from_toml(tmp_path / "none.toml")
    with pytest.raises(TargetError, match="is not TOML"):
        NPUSpec.from_toml(write(tmp_path, "matrix = ["))


WRONG = [
    ("alignment", 24),
    ("dma_outstanding", 0),
    ("events", 1000),
    ("clock_ghz", float("nan")),
    ("name", "a\nb"),
    ("name", ""),
    ("clock_ghz", 10**400),
    ("clock_ghz", 1e-300),
    ("dram_bytes_per_cycle", 1e-30),
    ("ub_bytes_per_cycle", 72),
]


@pytest.mark.parametrize("key, value", WRONG, ids=[f"{key}{n}" for n, (key, _) in enumerate(WRONG)])
def test_single_values(key, value):
    with pytest.raises(TargetError, match=key):
        dataclasses.replace(NPUSpec.preset("edge"), **{key: value})


@pytest.mark.parametrize("cost", [True, "3", -1, 1e13, 10**400, float("inf")])
def test_energies(cost):
    values = NPUSpec.preset("edge").to_json()
    with pytest.raises(TargetError, match="energy_pj.dram_byte must be a number from 0 to 1e.12"):
        NPUSpec.from_dict(values | {"energy_pj": {"dram_byte": cost}}, "mine")


def test_what_follows_from_a_wrong_value_is_not_a_second_problem(tmp_path):
    with pytest.raises(TargetError) as error:
        NPUSpec.from_toml(write(tmp_path, TOML.replace("vector_lanes = 64", 'vector_lanes = "64"')))
    assert len(error.value.problems) == 1
    with pytest.raises(TargetError, match="8 times vector_lanes.*, got 72"):
        NPUSpec.from_toml(write(tmp_path, TOML.replace("vector_lanes = 64", "vector_lanes = 9")))
