"""Pooling on the GPU: windows at borders, blocks of channels, windows that threads share."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.ops.pool2d import AVERAGE, MAX, Pool2d
from hetero_tvm.schedules.cuda.images.pool2d import CudaPool2dSpace
from tests.schedules.cuda.running import MACHINE, compiled
from tests.schedules.cuda.spaces import HALF, check_machine_code, check_numbers, points

SPACE = CudaPool2dSpace()
NONE = (0, 0, 0, 0)
BLOCKED = {"x_layout": "NCHW8c", "y_layout": "NCHW8c"}
POOLS = [
    Pool2d(2, 5, 9, 8, (3, 3), (2, 2), (1, 1, 1, 1), (5, 4), MAX),
    Pool2d(1, 5, 9, 8, (3, 2), (2, 2), (1, 0, 1, 1), (5, 4), AVERAGE),
    Pool2d(1, 5, 5, 5, (3, 3), (1, 1), (1, 1, 1, 1), (5, 5), AVERAGE, True),
    Pool2d(1, 3, 5, 5, (2, 2), (2, 2), NONE, (3, 3), AVERAGE),  # the last window is cut
    Pool2d(1, 1, 1, 1, (1, 1), (1, 1), NONE, (1, 1), MAX),
    Pool2d(2, 12, 17, 19, (17, 19), (1, 1), NONE, (1, 1), AVERAGE),  # global
    Pool2d(2, 3, 13, 11, (9, 7), (4, 4), (3, 3, 3, 3), (3, 3), MAX),
]
"""(batch, channels, height, width, kernel, strides, padding, out, mode, counts padding)."""


@pytest.mark.thorough
def test_numbers(emulated):
    ops = [*POOLS, *(dataclasses.replace(op, **BLOCKED) for op in POOLS)]
    cases = [(op, point, None) for op in ops for point in points(SPACE, op)[:: 1 if op is ops[5] else 2]]
    check_numbers(SPACE, cases, 1e-6)
    halves = [dataclasses.replace(op, dtype=d) for op in ops[7:9] for d in ("float16", "bfloat16")]
    check_numbers(SPACE, [(op, None, None) for op in halves[::2]], HALF)
    check_numbers(SPACE, [(op, None, None) for op in halves[1::2]], 8 * HALF)


def test_infinities(emulated):
    lowest = np.full((1, 2, 4, 4), -np.inf, "float32")
    lowest[0, 1, 2, 2] = np.inf
    op = Pool2d(1, 2, 4, 4, (2, 2), (2, 2), NONE, (2, 2), MAX)
    (call,) = compiled([SPACE.emit(op, {"lanes": 1}, MACHINE)])
    (result,) = call([lowest], [np.zeros(op.output.shape, "float32")])
    assert np.array_equal(result, op.reference(lowest))


def test_large_windows_are_shared_and_vectors_are_whole(compiler):
    large = Pool2d(1, 64, 56, 56, (56, 56), (1, 1), NONE, (1, 1), AVERAGE, **BLOCKED)
    assert SPACE.default(large, MACHINE)["lanes"] >= 32
    small = Pool2d(64, 64, 112, 112, (3, 3), (2, 2), (1, 1, 1, 1), (56, 56), MAX, False, **BLOCKED)
    assert SPACE.default(small, MACHINE) == {"lanes": 1}
    half = dataclasses.replace(small, dtype="float16")
    module, _ = check_machine_code(SPACE, [(small, None), (half, None), (large, None)])
    assert module.source.count("htvm_load<8>") and module.source.count("htvm_load<4>")


def test_refusals():
    assert "float64" in SPACE.refuses(dataclasses.replace(POOLS[0], dtype="float64"), MACHINE)
    assert "different layouts" in SPACE.refuses(dataclasses.replace(POOLS[0], y_layout="NCHW8c"), MACHINE)
