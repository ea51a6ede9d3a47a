"""Panels packed at run time, against NumPy: whole and partial blocks, tails of zeros."""

import numpy as np
import pytest

from hetero_tvm.codegen import transpose
from hetero_tvm.schedules.cpu.products import pack
from hetero_tvm.schedules.emit import Kernel, int32
from tests.schedules.cpu.running import compiled

LANES, BASE = 8, 5


def packed(function, count, length, stride, columns, shape):
    """A kernel that packs the rows of a flat buffer, which begin at element ``BASE``."""
    k = Kernel()
    with k:
        x = k.argument("x", (BASE + count * stride,))
        y = k.argument("y", shape)
        with k.imported(transpose.ir(LANES)):
            function(k, y, pack.Rows(x, int32(BASE), stride, count, length), columns, LANES)
    return k.function, shape


def source(count, length, stride):
    flat = np.arange(BASE + count * stride, dtype="float32") + 1
    return flat, flat[BASE:].reshape(count, stride)[:, :length]


SHAPES = [(16, 8, 8), (21, 13, 20), (3, 5, 5), (40, 16, 17), (1, 1, 3), (7, 24, 24)]
"""Rows, elements of a row, distance of rows."""


@pytest.mark.parametrize("columns", (8, 16))
def test_rows_become_columns(columns):
    panels = [(-(-count // columns), length, columns) for count, length, _ in SHAPES]
    runs = compiled(
        packed(pack.columns_from_rows, *sizes, columns, shape)
        for sizes, shape in zip(SHAPES, panels, strict=True)
    )
    for sizes, shape, run in zip(SHAPES, panels, runs, strict=True):
        flat, rows = source(*sizes)
        padded = np.pad(rows, ((0, shape[0] * columns - len(rows)), (0, 0)))
        expected = padded.reshape(shape[0], columns, -1).transpose(0, 2, 1)
        np.testing.assert_array_equal(run(flat), expected, err_msg=str(sizes))


@pytest.mark.parametrize("columns", (8, 16))
def test_rows_stay_rows(columns):
    panels = [(-(-length // columns), count, columns) for count, length, _ in SHAPES]
    runs = compiled(
        packed(pack.rows_as_they_are, *sizes, columns, shape)
        for sizes, shape in zip(SHAPES, panels, strict=True)
    )
    for sizes, shape, run in zip(SHAPES, panels, runs, strict=True):
        flat, rows = source(*sizes)
        padded = np.pad(rows, ((0, 0), (0, shape[0] * columns - rows.shape[1])))
        expected = padded.reshape(len(rows), shape[0], columns).transpose(1, 0, 2)
        np.testing.assert_array_equal(run(flat), expected, err_msg=str(sizes))
