"""Tables that are resized to the sizes of a call, and images between two open grids, beside ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.frontend import Span
from tests.frontend.onnx.helpers import operators, text_model
from tests.selection import thorough

TABLE = np.random.default_rng(0).standard_normal((1, 3, 4, 5)).astype("float32")
POSITIONS = """
net (float[1, 3, h, w] x) => (float[1, 3, p, q] y)
{{
    shape = Shape(x)
    roi = Constant<value_floats = [0.0]>()
    starts = Constant<value_ints = [0]>()
    two = Constant<value_ints = [2]>()
    front = Slice(shape, starts, two)
    four = Constant<value_ints = [4]>()
    sides = Slice(shape, two, four)
    patches = Div(sides, four)
    sizes = Concat<axis = 0>(front, patches)
    placed = Resize<mode = "{mode}", coordinate_transformation_mode = "half_pixel", cubic_coeff_a = -0.75>
        (table, none, none, sizes)
    pooled = MaxPool<kernel_shape = [4, 4], strides = [4, 4]>(x)
    y = Add(pooled, placed)
}}
"""
BETWEEN = """
net (float[1, 2, h, w] x) => (float[1, 2, p, q] y)
{
    small = AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x)
    shape = Shape(x)
    back = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(small, none, none, shape)
    y = Add(x, back)
}
"""


def with_arrays(text, **arrays):
    model = text_model(text, opset=18)
    arrays["none"] = np.zeros(0, "float32")
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def check(model, spans, sizes, folder):
    channels = 3 if len(model.graph.initializer) > 1 else 2
    imported = import_model(model, shapes={"x": (1, channels, *spans)})
    assert operators(imported)["Resize"] == 1
    net = hetero_tvm.load(build_model(optimize_model(imported)).export(folder / "net.so"))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for height, width in sizes:
        x = np.random.default_rng(height).standard_normal((1, channels, height, width)).astype("float32")
        # Places are float32 numbers that are reached in another order.
        np.testing.assert_allclose(net(x), session.run(None, {"x": x})[0], atol=2e-5)


@pytest.mark.parametrize("mode", ["cubic", *thorough(["linear"])])
def test_positions_are_resized_to_the_image(tmp_path, mode):
    model = with_arrays(POSITIONS.format(mode=mode), table=TABLE)
    spans = (Span(8, 64, 4), Span(8, 64, 4))
    check(model, spans, [(8, 8), (64, 64), (8, 64), (16, 20), (44, 12), (60, 32)], tmp_path)


@pytest.mark.thorough
def test_the_size_of_a_table_is_a_size_like_others(tmp_path):
    """At its own size a table is not resized: the import found another network there."""
    table = np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype("float32")
    model = with_arrays(POSITIONS.format(mode="cubic"), table=table)
    spans = (Span(8, 32, 8), Span(8, 32, 8))
    check(model, spans, [(8, 8), (16, 16), (32, 32), (8, 24), (16, 32)], tmp_path)


@pytest.mark.thorough
def test_images_are_resized_between_two_open_grids(tmp_path):
    check(
        with_arrays(BETWEEN),
        (Span(5, 40), Span(5, 40)),
        [(5, 5), (40, 40), (5, 40), (31, 8)],
        tmp_path,
    )


def test_a_table_for_a_fixed_image_is_a_constant():
    imported = import_model(
        with_arrays(POSITIONS.format(mode="cubic"), table=TABLE), shapes={"x": (1, 3, 16, 24)}
    )
    assert "Resize" not in operators(imported)
