"""Fourier transforms of audio models give LiteRT's numbers."""

import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

import numpy as np  # noqa: E402

from tests.frontend.tflite.judge import assert_same  # noqa: E402
from tests.frontend.tflite.written import Call, T, const, file  # noqa: E402


@pytest.mark.parametrize("lengths", [(1, 16), (1, 32), (4, 8)])
@pytest.mark.parametrize("part", ["REAL", "IMAG", "COMPLEX_ABS"])
def test_transforms(lengths, part):
    rows, bins = lengths[0], lengths[1] // 2 + 1
    frames = [T((3, 4 if rows == 4 else 1, 20)), const(np.array(lengths, "int32"))]
    shape = const(np.array((3 * rows, bins), "int32"))
    values = [T((3, rows, bins), "complex64"), shape, T((3 * rows, bins), "complex64"), T((3 * rows, bins))]
    options = {"REAL": "", "IMAG": "", "COMPLEX_ABS": ""}[part]
    calls = [
        Call("RFFT2D", (0, 1), (2,), "Rfft2dOptions"),
        Call("RESHAPE", (2, 3), (4,)),
        Call(part, (4,), (5,), options),
    ]
    assert_same(file([*frames, *values], calls, [0], [5]))
