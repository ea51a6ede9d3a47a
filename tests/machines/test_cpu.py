"""The description of a CPU: its JSON and the target that code is generated with."""

import dataclasses

from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.cpu import CpuModel

MACHINE = CpuModel("znver3", ("avx2", "fma"), threads=6, disabled=("sse4a",), variant="dot")


def test_json_keeps_every_field():
    text = MACHINE.to_json()
    assert CpuModel.from_json(text) == MACHINE
    assert hash(CpuModel.from_json(text)) == hash(MACHINE), "lists become tuples again"
    for field in dataclasses.fields(CpuModel):
        assert f'"{field.name}"' in text


def test_masked_features_are_switched_off_in_code():
    assert MACHINE.codegen_target() == {
        "kind": "llvm",
        "mcpu": "znver3",
        "num-cores": 6,
        "mattr": ["-sse4a"],
    }
    target = tvm.target.Target(MACHINE.codegen_target())
    has = tvm.target.codegen.target_has_features
    assert has("avx2", target) and not has("sse4a", target)
    assert "mattr" not in CpuModel("znver3").codegen_target()


def test_code_for_zen_with_512_bits_is_scheduled_as_for_another_core_and_keeps_its_features():
    has = tvm.target.codegen.target_has_features
    for name in ("znver4", "znver5"):
        machine = CpuModel(name, lanes=16, registers=32, disabled=("gfni",))
        config, own = machine.codegen_target(), tvm.target.Target({"kind": "llvm", "mcpu": name})
        assert config["mcpu"] != name
        for feature in ("avx512f", "avx512vl", "avx512vnni", "avx512bf16", "avx512vbmi2", "avxvnni", "fma"):
            assert has(feature, tvm.target.Target(config)) == has(feature, own), feature
        assert not has("gfni", tvm.target.Target(config)) and "+prefer-no-gather" in config["mattr"]
        masked = CpuModel(name, disabled=("avx512bf16",)).codegen_target()
        assert not has("avx512bf16", tvm.target.Target(masked))


def test_code_for_512_bits_goes_without_what_llvm_gets_wrong():
    """And without that alone; see ``tests/end_to_end/test_signs_of_vectors.py`` for what it got wrong."""
    listed = tvm.target.codegen.llvm_get_cpu_features
    for name in ("skylake-avx512", "znver4", "sapphirerapids"):
        config = CpuModel(name, lanes=16, registers=32).codegen_target()
        whole = {**config, "mattr": [change for change in config["mattr"] if change != "-avx512dq"]}
        ours, all_of_it = (set(map(str, listed(tvm.target.Target(t)))) for t in (config, whole))
        assert all_of_it - ours == {"avx512dq"} and not ours - all_of_it
    assert "mattr" not in CpuModel("haswell", lanes=8).codegen_target()


def test_loads_per_cycle():
    """Vectors of 64 bytes that pass in two halves are loaded in two halves."""
    assert [CpuModel("x", lanes=lanes).load_cycles for lanes in (4, 8, 16)] == [0.5, 0.5, 0.5]
    assert CpuModel("znver4", lanes=16, fma_units=1.0).load_cycles == 1.0


def test_transforms_by_whole_vectors():
    whole, halves = (CpuModel("x", lanes=16, fma_units=units) for units in (2.0, 1.0))
    assert whole.transform_cycles < halves.transform_cycles == CpuModel("x", lanes=8).transform_cycles


def test_second_caches_keep_up_with_halves_of_vectors():
    whole, halves = (CpuModel("x", lanes=16, fma_units=units) for units in (2.0, 1.0))
    assert whole.l2_bytes < halves.l2_bytes == float("inf")
    assert whole.exposed_lines > halves.exposed_lines == 0


def test_broadcasts_to_two_halves_are_slow():
    whole, halves = CpuModel("x", lanes=8), CpuModel("znver1", lanes=8, fma_units=1.0)
    assert whole.broadcast_cycles < halves.broadcast_cycles
    assert CpuModel("x", lanes=16, fma_units=1.0).broadcast_cycles == whole.broadcast_cycles
