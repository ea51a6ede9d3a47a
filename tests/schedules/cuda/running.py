"""Compile scheduled kernels for the emulated GPU and run them on arrays."""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.tvm import tvm
from hetero_tvm.targets.cuda import codegen, kernel_facts
from hetero_tvm.targets.registry import parse_target
from tests.ops.helpers import sample_inputs

TARGET = parse_target("cuda:sm_80")
MACHINE = TARGET.machine


def compiled(functions, target=TARGET) -> list:
    """Callables ``(arrays, outputs) -> outputs``, one per scheduled PrimFunc; all in one module."""
    module = tvm.IRModule(
        {
            f"f{i}": target.stamp(function).with_attr("global_symbol", f"f{i}")
            for i, function in enumerate(functions)
        }
    )
    library = codegen.compile_kernels(module, target.tvm_target)
    device = tvm.cuda(0)

    def caller(name):
        def call(arrays, outputs):
            results = [tvm.runtime.tensor(array, device) for array in outputs]
            library[name](*(tvm.runtime.tensor(np.array(a, order="C"), device) for a in arrays), *results)
            return [result.numpy() for result in results]

        return call

    return [caller(f"f{i}") for i in range(len(module.functions))]


def check_points(space, cases, machine, tolerance, given=None, target=TARGET) -> list:
    """Results of (op, point) pairs, compiled as one module, each compared with float64.

    Parameters
    ----------
    tolerance : op -> largest error relative to the largest result; None compares nothing.
    given : operands for each case (default: normal random numbers; integers for int8).
    """
    functions = [space.emit(op, point, machine) for op, point in cases]
    results = []
    for number, ((op, point), call) in enumerate(zip(cases, compiled(functions, target), strict=True)):
        arrays = list(given[number]) if given else arrays_of(op)
        with np.errstate(all="ignore"):
            truth = op.reference(*(a.astype("float64") for a in arrays))
        for index, pack in space.pack(op, point, machine).items():
            arrays[index] = pack(arrays[index])
        integer = np.dtype(op.output.dtype).kind == "i"
        blank = np.full(op.output.shape, -7 if integer else np.nan, op.output.dtype)
        (result,) = call(arrays, [blank])
        results.append(result)
        if tolerance is not None:
            error = np.abs(result.astype("float64") - truth).max() / max(np.abs(truth).max(), 1e-6)
            assert error <= tolerance(op), f"{op} at {point}: {error:.3g}"
    return results


def arrays_of(op, seed=0) -> list:
    """Random operands."""
    if hasattr(op, "x_layout"):  # zeros in halos and in lanes past the channels
        return [a.astype(x.dtype) for a, x in zip(sample_inputs(op, seed), op.inputs, strict=True)]
    generator = np.random.default_rng(seed)
    return [
        generator.integers(-128, 128, x.shape).astype(x.dtype)
        if x.dtype == "int8"
        else np.asarray(generator.standard_normal(x.shape)).astype(x.dtype)
        for x in op.inputs
    ]


def compiled_facts(space, cases, machine, tools, spills=0) -> str:
    """PTX of (op, point) pairs compiled as one module, after their machine code was checked."""
    target = parse_target(f"cuda:{machine.arch}")
    with codegen.collect() as made:
        compiled([space.emit(op, point, machine) for op, point in cases], target)
    (module,) = made
    for name, kernel in kernel_facts.of_module(module).items():
        assert kernel["stack"] <= spills, f"registers of {name} spill: {kernel} at {cases}"
        assert kernel["registers"] * kernel["threads"] <= 65536 and kernel["threads"] <= 1024
        assert kernel["shared"] <= machine.shared_per_block and kernel["occupancy"] > 0
    return tools.ptx(module.source, machine.arch)
