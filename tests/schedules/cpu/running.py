"""Compile design points, many in one module, and run them on arrays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tirx, tvm, tvm_ffi
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.integers.bf16_conv2d import HALVES
from hetero_tvm.runtime.arrays import numpy_dtype
from hetero_tvm.targets.registry import parse_target
from tests.ops.helpers import sample_inputs

TARGET = parse_target("cpu").tvm_target

MACHINES = {
    "sse": CpuModel("a", lanes=4, registers=16, threads=2, l2=256 << 10),
    "avx2": CpuModel("b", lanes=8, registers=16, threads=2),
    "avx512": CpuModel("c", lanes=16, registers=32, threads=3, l2=1 << 20, fma_units=1.0),
}
"""Machines to emit for; LLVM splits vectors that this CPU lacks, so every kernel runs everywhere."""

UNWRITTEN = 7.5
"""Value of every element of a result before a kernel runs, which it must overwrite."""

MOST_ROWS = {
    16: {1: 14, 2: 6, 3: 4, 4: 2, 5: 2, 6: 1, 7: 1},
    32: {1: 30, 2: 14, 3: 9, 4: 6, 5: 5, 6: 4, 7: 3, 8: 2},
}
"""Vector registers of a machine -> vectors of a register tile -> the most rows that do not spill."""

SWEPT = [
    pytest.param(machine, id=name, marks=() if name == "avx2" else pytest.mark.exhaustive)
    for name, machine in MACHINES.items()
]
"""Parameters of tests that take every choice: one machine by default."""


def shapes_of(op):
    """The shape of an operator's result; a list when there are several."""
    shapes = [output.shape for output in op.outputs]
    return shapes if len(shapes) > 1 else shapes[0]


def exact(op, arrays):
    """The reference in float64: an array, or a tuple of them."""
    return op.reference(*(a.astype(np.float64) for a in arrays))


def compiled(functions) -> list:
    """Callables ``arrays -> array``, one per (PrimFunc, output shape); a tuple of arrays for a list of
    shapes."""
    functions = list(functions)
    module = tvm.IRModule(
        {f"f{i}": function.with_attr("global_symbol", f"f{i}") for i, (function, _) in enumerate(functions)}
    )
    library = compile_kernels(module, TARGET).jit()

    def caller(name, function, shape):
        dtypes = [str(buffer.dtype) for buffer in function.params]
        wide = "float64" in dtypes

        def call(*arrays):
            several = isinstance(shape, list)
            shapes = shape if several else [shape]
            dtype = "float64" if wide else numpy_dtype(dtypes[-1]) if dtypes[-1] == HALVES else "float32"
            outs = [tvm.runtime.tensor(np.full(s, UNWRITTEN, dtype)) for s in shapes]
            library[name](*(tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arrays), *outs)
            return tuple(out.numpy() for out in outs) if several else outs[0].numpy()

        return call

    return [caller(f"f{i}", *each) for i, each in enumerate(functions)]


def llvm_of(function) -> str:
    """The LLVM IR of one kernel."""
    return str(compile_kernels(function, TARGET).mod.inspect_source("ll"))


def point_runners(space, op, points, machine) -> list:
    """For each point a callable on the op's plain arrays (it packs the constants)."""
    points = list(points)
    kernels = compiled((space.emit(op, point, machine), shapes_of(op)) for point in points)

    def runner(kernel, point):
        packers = space.pack(op, point, machine)

        def run(*arrays):
            assert all(op.inputs[index].constant for index in packers)
            return kernel(*(packers[i](a) if i in packers else a for i, a in enumerate(arrays)))

        return run

    return [runner(kernel, point) for kernel, point in zip(kernels, points, strict=True)]


def covering(space, op, machine, seen: set) -> list[dict]:
    """The default and few more points in which every choice of every knob occurs that is not in ``seen``."""
    knobs = space.knobs(op, machine)
    default = dict(space.default(op, machine))
    space.check(op, default, machine)
    points = [default]
    seen |= set(default.items())
    columns = [[c for c in knob.choices if (knob.name, c) not in seen] for knob in knobs]
    turns = [itertools.cycle(column or knob.choices) for column, knob in zip(columns, knobs, strict=True)]
    for _ in range(max(len(column) for column in columns)):
        points.append({knob.name: next(turn) for knob, turn in zip(knobs, turns, strict=True)})
    seen |= {item for point in points for item in point.items()}
    return points


def check_points(space, op, points, machine, arrays=None, tolerance: float = 2e-6) -> None:
    """All points against the float64 reference, relative to its largest value."""
    arrays = sample_inputs(op) if arrays is None else arrays
    several = len(op.outputs) > 1
    truth = exact(op, arrays)
    for point, run in zip(points, point_runners(space, op, points, machine), strict=True):
        result = run(*arrays)
        for one, wanted in zip(result, truth, strict=True) if several else [(result, truth)]:
            error = np.abs(one - wanted).max(initial=0) / np.abs(wanted).max(initial=1e-30)
            assert error <= tolerance, f"{op} at {point}: relative error {error:.3g}"


def check_shapes(space, ops, machine, tolerance: float = 2e-6) -> None:
    """Every choice of every knob of every shape occurs in a point that computes the right numbers."""
    seen: set = set()
    for op in ops:
        assert space.refuses(op, machine) is None
        check_points(space, op, covering(space, op, machine, seen), machine, tolerance=tolerance)
        assert {(knob.name, c) for knob in space.knobs(op, machine) for c in knob.choices} <= seen


def prefetches_beyond(function):
    """Prefetches of a kernel that may be of no element of their buffer, whatever open loops count."""
    analyzer, bad = tvm.sym.Analyzer(), []

    def inner(loop):
        if loop.kind != tirx.ForKind.PARALLEL and isinstance(loop.extent, tirx.IntImm):
            analyzer.bind(loop.loop_var, tvm.ir.Range(loop.min, loop.extent))
        return loop

    def check(call):
        if isinstance(call.op, tvm.ir.Op) and call.op.name == "tirx.address_of":
            load = call.args[0]
            bounds = [analyzer.const_int_bound(index) for index in load.indices]
            if any(b.max_value >= int(e) for b, e in zip(bounds, load.source.shape, strict=True)):
                bad.append(load)
        return call

    def prefetch(statement):
        if "llvm.prefetch" in str(statement):
            tvm_ffi.structural_map(statement, (tvm.ir.Call, check))
        return statement

    tvm_ffi.structural_map(function.body, (tirx.For, inner), order="pre")
    tvm_ffi.structural_map(function.body, (tirx.Evaluate, prefetch))
    return bad
