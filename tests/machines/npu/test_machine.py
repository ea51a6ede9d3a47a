"""The NPU as records and reports see it."""

import dataclasses
import json

import numpy as np
import pytest

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import NPUSpec


def machine(preset="mobile", dtype="float16"):
    return NpuMachine(NPUSpec.preset(preset), dtype, CpuModel("znver3"))


def test_packed_constants_are_in_the_machines_type():
    assert machine().numpy_dtype == np.float16
    assert machine(dtype="bfloat16").numpy_dtype.name == "bfloat16"


def test_records_tell_machines_apart():
    mach = machine()
    other = dataclasses.replace(mach, spec=dataclasses.replace(mach.spec, l1_kib=512))
    keys = {m.features for m in (mach, other, machine(dtype="bfloat16"), machine("edge"))}
    assert len(keys) == 4 and mach.mcpu == "mobile" and mach.threads == 1
    assert dataclasses.replace(mach, host=CpuModel("znver4")).features == mach.features


def test_roofs_of_the_mobile_preset():
    """16 x 16 x 16 products per cycle of 1 GHz; 51.2 bytes per cycle, of which tasks count two for each."""
    roofs = machine().roofs()
    assert roofs.peak_gflops == pytest.approx(2 * 4096)
    assert roofs.bandwidth_gbs == pytest.approx(2 * 51.2)


def test_json_names_the_spec_and_the_host():
    text = json.loads(json.dumps(machine().to_json()))
    assert text["spec"]["matrix_block"] == [16, 16, 16] and text["dtype"] == "float16"
    assert "znver3" in text["host"]
