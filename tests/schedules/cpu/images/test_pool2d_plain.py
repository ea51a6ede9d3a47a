"""Pooling of plain images."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.images.pool2d_plain import PlainPool2dSpace
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import MACHINES, TARGET, check_shapes, point_runners
from tests.selection import named

SPACE = PlainPool2dSpace()
PAD, NONE = (1, 1, 1, 1), (0, 0, 0, 0)
SHAPES = [
    (2, 3, 9, 11, (3, 3), (2, 2), PAD, (5, 6), "max"),
    (2, 3, 9, 11, (3, 3), (2, 2), PAD, (5, 6), "avg"),
    (1, 4, 10, 11, (3, 3), (2, 2), PAD, (6, 6), "avg", True),  # rounded up: windows past the padding
    (1, 2, 20, 37, (5, 5), (1, 1), (2, 2, 2, 2), (20, 37), "max"),
    (1, 2, 20, 37, (5, 4), (1, 3), (2, 1, 2, 1), (20, 12), "avg", True),
    (1, 3, 40, 70, (2, 2), (2, 2), NONE, (20, 35), "max"),
    (1, 2, 18, 90, (3, 2), (4, 4), NONE, (4, 23), "avg"),
    (1, 2, 30, 90, (11, 7), (1, 5), (5, 3, 5, 3), (30, 18), "max"),
    (1, 2, 7, 100, (1, 40), (1, 2), (0, 20, 0, 20), (7, 51), "avg"),
    (1, 2, 5, 50, (3, 1), (1, 1), (1, 0, 1, 0), (5, 50), "max"),
    (1, 2, 5, 50, (2, 1), (2, 1), NONE, (2, 50), "avg"),
    (1, 16, 3, 12, (2, 9), (1, 1), NONE, (2, 4), "max"),
    (1, 5, 1, 64, (1, 3), (1, 2), (0, 1, 0, 1), (1, 32), "max"),
    (1, 1, 1, 2, (1, 1), (1, 1), NONE, (1, 2), "max"),
    (1, 1, 2, 1, (1, 1), (1, 1), NONE, (2, 1), "avg"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_pooling(machine):
    check_shapes(SPACE, [Pool2d(*shape) for shape in SHAPES], machine)


@pytest.mark.parametrize("machine", named(MACHINES, {"avx2", "avx512"}))
@pytest.mark.parametrize("stride", [1, 2])
def test_maximum_of_nan_infinite_and_negative_values(machine, stride):
    out = (20 if stride == 1 else 10, 36 if stride == 1 else 18)
    op = Pool2d(1, 3, 20, 36, (3, 3), (stride, stride), PAD, out, "max")
    (x,) = sample_inputs(op)
    x[0, 0, 7, 5] = x[0, 0, 12, 35] = x[0, 0, 0, 16] = np.nan
    x[0, 1] = -np.inf
    x[0, 2] = -2 - np.abs(x[0, 2])
    points = [{"rows": rows} for rows in (1, 4)]
    for run in point_runners(SPACE, op, points, machine):
        np.testing.assert_array_equal(run(x), op.reference(x))


def test_windows_outside_of_the_image():
    op = Pool2d(1, 1, 3, 20, (2, 2), (3, 3), (2, 2, 3, 4), (3, 9), "max")
    machine = MACHINES["avx2"]
    (x,) = sample_inputs(op)
    (run,) = point_runners(SPACE, op, [SPACE.default(op, machine)], machine)
    np.testing.assert_array_equal(run(x), op.reference(x))
    assert np.isneginf(run(x)).any()


def test_refusals():
    machine = MACHINES["avx2"]
    assert SPACE.refuses(Softmax((3,), 4), machine) == "not a pooling"
    blocked = Pool2d(*SHAPES[0], x_layout="NCHW8c", y_layout="NCHW8c")
    assert "not plain" in SPACE.refuses(blocked, machine)
    whole = Pool2d(1, 17, 10, 11, (10, 11), (1, 1), NONE, (1, 1), "avg")
    assert "reduction" in SPACE.refuses(whole, machine)
    assert "float16" in SPACE.refuses(Pool2d(*SHAPES[0], dtype="float16"), machine)


@pytest.mark.parametrize("machine", named(MACHINES, {"avx2", "avx512"}))
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_largest_of_bytes(machine, dtype):
    functions, wanted, arrays = {}, [], []
    for number, shape in enumerate(shape for shape in SHAPES if shape[8] == "max"):
        op = Pool2d(*shape, dtype=dtype)
        assert SPACE.refuses(op, machine) is None
        function = SPACE.emit(op, SPACE.default(op, machine), machine)
        functions[f"f{number}"] = function.with_attr("global_symbol", f"f{number}")
        limits = np.iinfo(dtype)
        arrays.append(
            np.random.default_rng(number)
            .integers(limits.min, limits.max + 1, op.inputs[0].shape)
            .astype(dtype)
        )
        wanted.append(op.reference(arrays[-1]))
    library = compile_kernels(tvm.IRModule(functions), TARGET).jit()
    for number, (array, expected) in enumerate(zip(arrays, wanted, strict=True)):
        result = tvm.runtime.tensor(np.full(expected.shape, 7, dtype))
        library[f"f{number}"](tvm.runtime.tensor(array), result)
        np.testing.assert_array_equal(result.numpy(), expected)
