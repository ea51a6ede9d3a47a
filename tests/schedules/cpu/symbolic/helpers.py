"""Kernels for all sizes run on arrays, and what they must give."""

import numpy as np

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import s_tir, tirx, tvm, tvm_ffi
from hetero_tvm.schedules.symbolic import Witnesses
from tests.schedules.cpu.running import TARGET, UNWRITTEN, exact

SIZES = ({"b": 3, "s": 64}, {"b": 2, "s": 64}, {"b": 3, "s": 51}, {"b": 2, "s": 37})
LENGTHS = ({"b": 1, "s": 1}, {"b": 2, "s": 7}, {"b": 3, "s": 64}, {"b": 1, "s": 33}, {"b": 2, "s": 50})
"""Ends of the range, lengths around vectors and tiles, and more rows than threads take alone."""


def witnesses_of(make):
    return Witnesses(tuple(make(**sizes) for sizes in SIZES), SIZES)


def choices_after_simplifying(function):
    """Number of the choices in a kernel that TVM's simplifier has been over."""
    simplified = s_tir.transform.StmtSimplify()(tvm.IRModule({"main": function}))["main"]
    found = []
    tvm_ffi.structural_walk(simplified.body, (tirx.Select, found.append))
    return len(found)


def check(make, function, packers=None, tolerance=1e-5):
    """Compare one kernel with the contract's reference at all lengths; ``tolerance`` is relative to the
    largest value, or to 1."""
    run = compile_kernels(function, TARGET).jit()["main"]
    generator = np.random.default_rng(0)
    for sizes in LENGTHS:
        op = make(**sizes)
        dtype = "float64" if op.output.dtype == "float64" else "float32"
        arrays = [generator.standard_normal(o.shape).astype(dtype) for o in op.inputs]
        arrays = op.admissible(arrays)
        given = [packers[n](a) if packers and n in packers else a for n, a in enumerate(arrays)]
        result = tvm.runtime.tensor(np.full(op.output.shape, UNWRITTEN, dtype))
        run(*(tvm.runtime.tensor(np.ascontiguousarray(a)) for a in given), result)
        wanted = exact(op, arrays)
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(
            result.numpy(), wanted, atol=tolerance * max(1.0, scale), err_msg=str(sizes)
        )
