"""Tensors of every type on their way into a region and out of it."""

import numpy as np
import pytest

from hetero_tvm.schedules.npu.base import ROW_MAJOR
from hetero_tvm.targets.npu.device.driver import open_device
from hetero_tvm.targets.npu.regions.region import KernelCache, RegionBuilder, Value
from tests.schedules.npu.running import machine


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8", "bool", "float32"])
@pytest.mark.parametrize("size", [1, 7, 5000])
def test_values_survive_the_way_in_and_out(dtype, size):
    mach = machine("edge")
    rng = np.random.default_rng(0)
    if dtype == "bool":
        x = rng.random(size) < 0.5
    elif dtype == "float32":
        x = rng.standard_normal(size).astype(np.float16).astype(np.float32)
    else:
        limits = np.iinfo(np.int32 if dtype == "int64" else dtype)
        x = rng.integers(limits.min, limits.max, size, endpoint=True, dtype=np.int64).astype(dtype)
        x[0] = limits.min
        x[-1] = limits.max
    builder = RegionBuilder("border", mach, KernelCache(mach))
    value = builder.input("x", x.shape, dtype)
    inside = Value(x.shape, {ROW_MAJOR: builder.tensor_of(value, ROW_MAJOR, "in")}, dtype=dtype)
    builder.output("y", inside, "out")
    region = builder.finish()
    bound = {"x": x, "y": (x.shape, dtype), "constants": np.frombuffer(region.constants, np.uint8)}
    with open_device(mach.spec) as device:
        result = device.run(device.load(region.stream), bound)
    assert np.array_equal(result.outputs["y"], x)
