"""Convolutions of volumes whose depth, height and width are known at run time: windows have all slices."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.campaign.graphs.judge import by_onnxruntime
from tests.selection import thorough


def check(filters, channels, slices, taps, pads, strides, spans, shapes, depths=(None,), **more):
    """Compare one convolution with ONNX Runtime's at some sizes, and at some depths where slices are open."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((filters, channels, *taps)).astype("float32")
    options = {"kernel_shape": taps, "pads": pads, "strides": strides, **more}
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", **options)
    deep = slices if isinstance(slices, int) else "d"
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", channels, deep, "h", "w"])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "volumes", [x], [y], [numpy_helper.from_array(values, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    given = {"x": [spans[0], channels, slices, *spans[1:]]}
    built = build_model(optimize_model(import_model(model, shapes=given), "cpu"), use_shipped=False)
    for (batch, *image), depth in itertools.product(shapes, depths):
        values = {"x": rng.standard_normal((batch, channels, depth or slices, *image)).astype("float32")}
        expected = by_onnxruntime(model, values)[0]
        np.testing.assert_allclose(built.run(values)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("slices", "taps", "pads"),
    [(1, (3, 1, 3), (0, 0, 1, 2, 0, 1)), (1, (3, 3, 3), (1,) * 6), (3, (3, 3, 3), (1,) * 6)],
)
def test_open_images_of_volumes_of_few_slices(slices, taps, pads):
    spans = [Span(1, 2), Span(3, 6), Span(3, 6)]
    check(4, 2, slices, taps, pads, (1, 1, 1), spans, [(1, 3, 3), (2, 5, 4), (2, 6, 6)])


@pytest.mark.parametrize("lifted", [False, *thorough([True])])
def test_halves_of_rows_are_told_from_rows(lifted, monkeypatch):
    """A kernel of fixed sizes that is lifted from odd ones alone has the planes of odd ones at all."""
    if lifted:
        monkeypatch.delitem(kernels._WRITTEN, "cpu.conv2d_blocked")
    rows = [(1, height, 4) for height in range(2, 9)]
    check(1, 16, 3, (3, 2, 1), (1, 0, 0, 1, 0, 0), (1, 2, 1), [1, Span(2, 8), 4], rows)


@pytest.mark.parametrize(
    ("taps", "strides", "dilations", "pads"),
    [
        *thorough([((1, 3, 3), (2, 1, 1), (1, 1, 1), (0, 1, 1, 0, 1, 1))]),
        ((3, 1, 1), (2, 1, 1), (2, 1, 1), (2, 0, 0, 1, 0, 0)),
        *thorough([((3, 3, 3), (3, 1, 1), (1, 1, 1), (1, 1, 1, 1, 1, 1))]),
        ((2, 2, 2), (2, 1, 1), (1, 1, 1), (0, 0, 0, 0, 0, 0)),  # a view where the step divides the depth
    ],
)
def test_open_depths_of_which_windows_are_steps_apart(taps, strides, dilations, pads):
    """Windows whose text at one size is simpler where the step divides the depth."""
    depths = (5, 6, 7, 8, 9, 11)
    check(7, 5, Span(5, 11), taps, pads, strides, [1, 6, 7], [(1, 6, 7)], depths=depths, dilations=dilations)


@pytest.mark.thorough
def test_open_depths_of_several_volumes():
    strides, pads, spans = (2, 1, 1), (1, 0, 0, 1, 0, 0), [Span(1, 3), Span(2, 6), 5]
    check(7, 5, Span(5, 11), (3, 1, 1), pads, strides, spans, [(3, 2, 5), (2, 5, 5)], depths=(5, 6, 11))


@pytest.mark.thorough
def test_open_batches_of_open_depths_whose_windows_are_read_where_they_lie():
    """A kernel that divides by the number of windows, which is zero for all that TVM knows."""
    strides, pads, spans = (2, 2, 2), (0, 1, 1, 0, 1, 1), [Span(1, 3), 10, 11]
    shapes = [(1, 10, 11), (3, 10, 11)]
    check(7, 5, Span(5, 11), (1, 3, 3), pads, strides, spans, shapes, depths=(5, 6, 11))
