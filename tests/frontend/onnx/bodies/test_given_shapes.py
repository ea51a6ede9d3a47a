"""Shapes that come at run time: the declared ones, equal to ONNX's own evaluator."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import LibraryError
from tests.frontend.onnx.helpers import against_reference, text_model


def ints(*values):
    return np.array(values, np.int64)


def test_views_and_copies():
    model = text_model(
        """g (float[2,3,4] x, int64[3] shape, int64[2] zeros, int64[2] axes, int64[1] axis, int64[3] wide,
            int64[3] times, float[1,4] row)
           => (float[4,1,6] a, float[2,12] b, float[2,1,3,4,1] c, float[3,4] d, float[2,3,4] e,
               float[4,3,8] f) {
          a = Reshape (x, shape)
          b = Reshape (x, zeros)
          c = Unsqueeze (x, axes)
          part, other = Split <num_outputs=2> (x)
          d = Squeeze (part, axis)
          e = Expand (row, wide)
          f = Tile (x, times)
        }""",
        opset=18,
    )
    against_reference(
        model,
        {
            "x": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
            "shape": ints(4, 1, -1),
            "zeros": ints(0, -1),
            "axes": ints(-1, 1),
            "axis": ints(0),
            "wide": ints(2, 3, 1),
            "times": ints(2, 1, 2),
            "row": np.arange(4, dtype=np.float32)[None],
        },
    )


BROKEN = {
    "another axis of extent 1": ("Squeeze", (1, 5, 1), (5, 1), ints(2)),
    "one axis twice": ("Squeeze", (1, 1, 5), (5,), ints(0, 0)),
    "no extent that fits": ("Expand", (3, 1), (3, 2), ints(2, 2)),
    "two extents left open": ("Reshape", (3, 4), (2, 6), ints(-1, -1)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_values_that_another_shape_or_none_belongs_to_are_errors(case):
    kind, given, declared, values = BROKEN[case]
    shapes = (",".join(map(str, shape)) for shape in (given, declared))
    x, y = (f"float[{shape}]" for shape in shapes)
    model = text_model(
        f"g ({x} x, int64[{len(values)}] values) => ({y} y) {{ y = {kind} (x, values) }}", opset=18
    )
    built = build_model(optimize_model(import_model(model)))
    with pytest.raises(LibraryError, match=f"{kind}.*the values of values must give the shapes"):
        built.run({"x": np.zeros(given, np.float32), "values": values})


def test_counts_and_parts():
    model = text_model(
        """g (float[5] x, int64[1] k, int64[2] parts, int64[2] size, int64[3] at, int64 depth, float[2] onoff,
            float start, float limit, float delta, int64 first, int64 last, int64 step, int64[2] crop,
            float[3,6] image)
           => (float[2] a, int64[2] ai, float[4] b, float[1] c, int64[2,3] d, float[3,4] e, float[3] f,
               int64[3] h, float[5,4] i) {
          a, ai = TopK (x, k)
          b, c = Split (x, parts)
          d = ConstantOfShape <value = int64[1] {7}> (size)
          e = OneHot (at, depth, onoff)
          f = Range (start, limit, delta)
          h = Range (first, last, step)
          i = CenterCropPad (image, crop)
        }""",
        opset=18,
    )
    against_reference(
        model,
        {
            "x": np.array([3, 1, 4, 1, 5], np.float32),
            "k": ints(2),
            "parts": ints(4, 1),
            "size": ints(2, 3),
            "at": ints(0, 3, -1),
            "depth": np.int64(4),
            "onoff": np.array([-1, 2], np.float32),
            "start": np.float32(1),
            "limit": np.float32(6.5),
            "delta": np.float32(2),
            "first": np.int64(5),
            "last": np.int64(-1),
            "step": np.int64(-2),
            "crop": ints(5, 4),
            "image": np.arange(18, dtype=np.float32).reshape(3, 6),
        },
    )


def test_sizes_of_grids_and_unpooling():
    model = text_model(
        """g (float[1,2,3] theta, int64[4] size) => (float[1,4,5,2] y) { y = AffineGrid (theta, size) }""",
        opset=20,
    )
    theta = np.array([[[1, 0.5, 0.1], [0, 2, -1]]], np.float32)
    against_reference(model, {"theta": theta, "size": ints(1, 7, 4, 5)})
