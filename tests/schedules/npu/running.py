"""Runs one kernel of an NPU space on the simulator, through the same builder as whole models."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import PrimFunc, tvm
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.schedules.npu.base import stored_as
from hetero_tvm.targets.npu.device.driver import Run, open_device
from hetero_tvm.targets.npu.regions.region import (
    CompiledRegion,
    KernelCache,
    RegionBuilder,
    Value,
    plain_layout,
)
from tests.plain import PLAIN

#: float16 carries 11 bits; a kernel rounds some ten times on its way.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}


def machine(preset: str = "edge", dtype: str = "float16") -> NpuMachine:
    return NpuMachine(NPUSpec.preset(preset), dtype, SimpleNamespace(to_json=dict))


def compile_kernel(space: Any, op: Any, mach: NpuMachine, arrays: Any, point: Any = None) -> CompiledRegion:
    """A region of one kernel: in and out in the types of its contract."""
    point = point or space.default(op, mach)
    cache = KernelCache(mach)
    builder = RegionBuilder("kernel", mach, cache)
    packers, (wanted, result) = space.pack(op, point, mach), space.layouts(op)
    dtypes = space.dtypes(op, mach)
    tensors = []
    for n, (operand, array) in enumerate(zip(op.inputs, arrays, strict=True)):
        if n in packers:
            tensors.append(builder.constant(packers[n](array)))
        elif operand.constant:
            tensors.append(builder.constant(array.astype(np.float32)))
        else:
            value = builder.input(operand.name, operand.shape, operand.dtype)
            tensors.append(builder.tensor_of(value, wanted[n], operand.name, dtypes[n]))
    tensors += [builder.constant(table) for table in space.tables(op, point, mach)]
    tensors += [builder.fresh(*own) for own in space.scratch(op, point, mach)]
    value = Value(op.output.shape, dtype=op.output.dtype)
    tensor = builder.fresh(op.output.shape, stored_as(op.output.dtype, mach.dtype))
    value.by_layout[plain_layout(op.output.shape, result)] = tensor
    builder.call(cache.of_space(space, op, point), [*tensors, *value.by_layout.values()], op.label)
    builder.output("out", value, "out")
    return builder.finish()


def run_function(
    function: PrimFunc, mach: NpuMachine, arrays: Sequence[np.ndarray], shape: tuple[int, ...], dtype: str
) -> np.ndarray:
    """The result of a kernel whose parameters lie in DRAM as the arrays have them, the result last."""
    cache = KernelCache(mach)
    builder = RegionBuilder("kernel", mach, cache)
    tensors = [builder.device_tensor(f"X{n}", array.nbytes, "input") for n, array in enumerate(arrays)]
    tensors.append(builder.device_tensor("out", np.zeros(shape, dtype).nbytes, "output"))
    builder.call(cache.get("kernel", lambda: function, builder.ub_end), tensors, "kernel")
    region = builder.finish()
    bound: dict[str, Any] = {f"X{n}": array for n, array in enumerate(arrays)}
    bound |= {"constants": np.frombuffer(region.constants, np.uint8), "out": (shape, dtype)}
    with open_device(mach.spec) as device:
        return device.run(device.load(region.stream), bound).outputs["out"]


def run(space: Any, op: Any, mach: NpuMachine, arrays: Any, point: Any = None) -> tuple[np.ndarray, Run]:
    """The kernel's result and what it cost."""
    region = compile_kernel(space, op, mach, arrays, point)
    packed = space.pack(op, point or space.default(op, mach), mach)
    bound: dict[str, Any] = {"constants": np.frombuffer(region.constants, np.uint8)}
    for n, (operand, array) in enumerate(zip(op.inputs, arrays, strict=True)):
        if n not in packed and not operand.constant:
            bound[operand.name] = array.astype(operand.dtype)
    bound["out"] = (op.output.shape, op.output.dtype)
    with open_device(mach.spec) as device:
        result = device.run(device.load(region.stream), bound)
    return result.outputs["out"], result


def sample(op: Any, seed: int = 0) -> list[np.ndarray]:
    """Operands with products of unit size."""
    rng = np.random.default_rng(seed)
    arrays = []
    for operand in op.inputs:
        array = rng.standard_normal(operand.shape).astype(np.float32)
        if operand.name == "W":
            fan_in = op.k if hasattr(op, "k") else int(np.prod(operand.shape[1:]))
            array /= np.sqrt(fan_in).astype(np.float32)
        arrays.append(array)
    return arrays


def sample_integers(op: Any, saturating: bool = False) -> list[np.ndarray]:
    """Operands of 8 bits over the whole of their types; results mostly inside of theirs, or outside."""
    rng = np.random.default_rng(0)
    depth = op.flops / np.prod(op.output.shape) / 2
    arrays = []
    for operand in op.inputs:
        if operand.name == "scale":
            spread = (8.0 if saturating else 0.01) * rng.random(operand.shape) + 0.001
            arrays.append((spread / np.sqrt(depth)).astype(np.float32))
        elif operand.name == "bias":
            arrays.append(rng.integers(-5000, 5000, operand.shape).astype(np.int32))
        else:
            limits = np.iinfo(operand.dtype)
            values = rng.integers(limits.min, limits.max, operand.shape, endpoint=True)
            arrays.append(values.astype(operand.dtype))
    return arrays


def assert_same_bits(space: Any, op: Any, mach: NpuMachine, point: Any = None) -> None:
    """Against the contract of an operator of 8 bits."""
    assert space.refuses(op, mach) is None
    arrays = sample_integers(op)
    np.testing.assert_array_equal(run(space, op, mach, arrays, point)[0], op.reference(*arrays))


def assert_host_computes_the_same(op: Any) -> None:
    """The TensorIR that runs on the CPU where the NPU does not take an operator of 8 bits."""
    arrays = sample_integers(op)
    module = tvm.IRModule({"main": op.workload().with_attr("global_symbol", "main")})
    result = tvm.runtime.tensor(np.zeros(op.output.shape, op.output.dtype))
    tvm.compile(module, target=PLAIN)["main"](*map(tvm.runtime.tensor, arrays), result)
    np.testing.assert_array_equal(result.numpy(), op.reference(*arrays))


def assert_close(space: Any, op: Any, mach: NpuMachine, arrays: Any = None, point: Any = None) -> Run:
    """Against the contract in float64."""
    arrays = sample(op) if arrays is None else arrays
    with np.errstate(all="ignore"):
        expected = op.reference(*(a.astype(np.float64) for a in arrays))
    actual, result = run(space, op, mach, arrays, point)
    error = np.abs(actual - expected).max()
    assert error <= TOLERANCE[mach.dtype] * np.abs(expected).max(), (op.label, point, error)
    return result
