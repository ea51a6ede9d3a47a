"""Interleaved phases of transposed convolutions."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.interleave import Interleave
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.images.interleave import InterleaveSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import MACHINES, TARGET, check_shapes, compiled, exact
from tests.schedules.cpu.symbolic.helpers import check, witnesses_of
from tests.selection import named

SPACE = InterleaveSpace()
OPS = [
    Interleave(1, 1, 3, 5, 33, (2, 2), (1, 1), (8, 64)),
    Interleave(2, 2, 3, 4, 20, (2, 3), (0, 2), (8, 57)),
    Interleave(1, 1, 4, 1, 50, (1, 8), (0, 4), (1, 392)),
    Interleave(1, 1, 4, 1, 37, (1, 5), (0, 7), (1, 170)),  # a whole pixel of every phase is cut away
    Interleave(1, 1, 2, 6, 7, (3, 1), (2, 0), (15, 7)),
    Interleave(1, 1, 2, 2, 2, (1, 16), (0, 3), (2, 5)),  # no whole group
    Interleave(1, 1, 1, 1, 1, (2, 2), (0, 0), (1, 1)),
    Interleave(1, 1, 1, 1, 1, (2, 2), (0, 0), (2, 2)),
]


@pytest.mark.parametrize("machine", named(MACHINES, {"avx512"}))
def test_interleaving(machine):
    check_shapes(SPACE, OPS, machine, tolerance=0)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_bytes(machine, dtype):
    for op in (dataclasses.replace(op, dtype=dtype) for op in OPS[:3]):
        x = np.random.default_rng(0).integers(0, 256, op.inputs[0].shape).astype(np.uint8).view(dtype)
        y = tvm.runtime.tensor(np.zeros(op.output.shape, dtype))
        kernel = compile_kernels(SPACE.emit(op, SPACE.default(op, machine), machine), TARGET)
        kernel.jit()["main"](tvm.runtime.tensor(x), y)
        np.testing.assert_array_equal(y.numpy(), op.reference(x))


def test_workloads_say_the_same():
    for op, run in zip(OPS, compiled((op.workload(), op.output.shape) for op in OPS), strict=True):
        arrays = sample_inputs(op)
        np.testing.assert_array_equal(run(*arrays), exact(op, arrays).astype(np.float32), err_msg=str(op))


def test_one_phase_is_a_cut():
    op = Interleave(1, 1, 2, 3, 4, (1, 1), (1, 1), (2, 3))
    (x,) = sample_inputs(op)
    np.testing.assert_array_equal(op.reference(x), x[:, :, 1:, 1:])


def test_refusals():
    machine = MACHINES["avx2"]
    assert SPACE.refuses(Softmax((3,), 4), machine) == "not an interleaving of phases"
    assert "17 phases" in SPACE.refuses(Interleave(1, 1, 1, 1, 3, (1, 17), (0, 0), (1, 51)), machine)
    assert "float16" in SPACE.refuses(
        Interleave(1, 1, 1, 1, 3, (1, 2), (0, 0), (1, 6), dtype="float16"), machine
    )


@pytest.mark.parametrize(
    "strides, cut", [((2, 2), (0, 0)), ((2, 3), (1, 2)), ((1, 8), (0, 5)), ((3, 1), (2, 0))]
)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_images_of_any_size(machine, strides, cut):
    def make(b, s):
        (sh, sw), (top, left) = strides, cut
        return Interleave(b, 1, 3, 5, s, strides, cut, (5 * sh - top, max(1, s * sw - left)))

    witnesses = witnesses_of(make)
    function = kernels.emit(witnesses, SPACE, SPACE.default(witnesses.largest, machine), machine)
    check(make, function)
