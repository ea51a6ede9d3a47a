"""Generic kernels as tensor expressions, through a design space to the emulated GPU, against NumPy."""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.tvm import te
from hetero_tvm.ops.tensor_program import TensorProgram
from tests.schedules.cuda.running import MACHINE, compiled
from tests.schedules.cuda.spaces import check_machine_code, points


def tensor(name, *shape, dtype="float32"):
    return te.placeholder(shape, dtype, name)


def program(arguments, result, index_dtype="int64"):
    """The operator, with the index type of Relax's kernels."""
    return TensorProgram.of(te.create_prim_func([*arguments, result], index_dtype), "program", 1)


def random_arrays(op, seed=0):
    generator = np.random.default_rng(seed)
    return [
        np.asarray(generator.integers(0, 2 if x.dtype == "bool" else 9, x.shape)).astype(x.dtype)
        if np.dtype(x.dtype).kind in "iub"
        else np.asarray(generator.standard_normal(x.shape)).astype(x.dtype)
        for x in op.inputs
    ]


def check(space, cases, every=False, tolerance=2e-6):
    """``{name: (arguments, result, NumPy)}`` at the default point, or at several, in one module."""
    runs = []
    for name, (arguments, result, reference) in cases.items():
        op = program(arguments, result)
        assert space.refuses(op, MACHINE) is None, f"{name}: {space.refuses(op, MACHINE)}"
        chosen = points(space, op) if every else [space.default(op, MACHINE)]
        runs += [(name, op, point, reference) for point in chosen]
    functions = [space.emit(op, point, MACHINE) for _, op, point, _ in runs]
    for (name, op, point, reference), call in zip(runs, compiled(functions), strict=True):
        space.check(op, point, MACHINE)
        arrays = random_arrays(op)
        (result,) = call(arrays, [np.full(op.output.shape, 7).astype(op.output.dtype)])
        expected = np.asarray(reference(*arrays))
        assert result.shape == expected.shape, name
        np.testing.assert_allclose(result, expected, tolerance, tolerance, err_msg=f"{name} at {point}")


def machine_code(space, cases, arch="sm_80"):
    """The default points compiled, without spills; the device module."""
    return check_machine_code(space, [(program(*case), None) for case in cases], arch)[0]
