"""Places of maxima, deformable convolutions, blocks and n-grams: equal to ONNX's own evaluator."""

import numpy as np
import pytest

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import against_reference, run_onnxruntime, text_model


def noise(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@pytest.mark.parametrize("storage_order", [0, 1])
def test_places_of_maxima(storage_order):
    model = text_model(
        f"""g (float[2,3,5,6] x) => (float[2,3,3,3] y, int64[2,3,3,3] z) {{
          y, z = MaxPool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 1, 0],
                          storage_order = {storage_order}> (x)
        }}"""
    )

    against_reference(model, {"x": noise(2, 3, 5, 6)}, judge="onnxruntime")


def test_places_of_the_least_number_lie_in_the_image():
    model = text_model(
        """g (uint8[1,2,3,3] x) => (uint8[1,2,4,4] y, int64[1,2,4,4] z) {
          y, z = MaxPool <kernel_shape = [2, 2], pads = [1, 1, 1, 1]> (x)
        }"""
    )

    x = np.zeros((1, 2, 3, 3), np.uint8)
    x[0, 1, 1] = 5
    against_reference(model, {"x": x}, judge="onnxruntime")


def test_deformable_convolution():
    model = text_model(
        """g (float[2,4,6,5] x, float[6,2,3,2] w, float[2,24,3,4] o, float[6] b, float[2,12,3,4] m)
           => (float[2,6,3,4] y) {
          y = DeformConv <offset_group = 2, group = 2, strides = [2, 1], pads = [1, 0, 1, 0]> (x, w, o, b, m)
        }""",
        opset=22,
        ir=10,
    )
    shapes = {"x": (2, 4, 6, 5), "w": (6, 2, 3, 2), "o": (2, 24, 3, 4), "b": (6,), "m": (2, 12, 3, 4)}
    # Sums of 12 products of order one.
    against_reference(model, {name: noise(*shape) for name, shape in shapes.items()}, atol=1e-5)


def test_a_sample_infinitely_far_from_the_image_is_zero():
    model = text_model(
        "g (float[1,1,4,5] x, float[1,1,1,1] w, float[1,2,4,5] o) => (float[1,1,4,5] y) "
        "{ y = DeformConv (x, w, o) }",
        opset=22,
        ir=10,
    )
    offsets = np.zeros((1, 2, 4, 5), np.float32)
    offsets[0, 0, 1, :2] = np.inf, -np.inf
    offsets[0, 1, 2, :3] = np.inf, -np.inf, 3e38
    offsets[0, 0, 3, :2] = offsets[0, 1, 3, 1:3] = np.nan
    inputs = {"x": noise(1, 1, 4, 5), "w": np.ones((1, 1, 1, 1), np.float32), "o": offsets}
    against_reference(model, inputs, judge="onnxruntime")


def test_blocks_of_sizes_that_come_at_run_time():
    model = text_model(
        """g (float[1,12,6] x, int64[2] image, int64[2] block) => (float[1,2,4,5] y) {
          y = Col2Im <strides = [1, 2]> (x, image, block)
        }""",
        opset=18,
    )
    x = noise(1, 12, 6)
    for block in ([2, 3], [3, 2]):
        expected = np.zeros((1, 2, 4, 5), np.float32)
        rows, columns = 4 - block[0] + 1, (5 - block[1]) // 2 + 1
        if rows * columns != 6:
            continue
        taps = x.reshape(1, 2, *block, rows, columns)
        for i, j in np.ndindex(*block):
            expected[:, :, i : i + rows, j : j + 2 * columns : 2] += taps[:, :, i, j]
        inputs = {"x": x, "image": np.array([4, 5]), "block": np.array(block)}
        (got,) = run_onnxruntime(import_onnx(model).onnx_model, inputs)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_n_grams(mode):
    model = text_model(
        f"""g (int64[2,6] x) => (float[2,7] y) {{
          y = TfIdfVectorizer <max_gram_length = 2, max_skip_count = 3, min_gram_length = 1, mode = "{mode}",
            ngram_counts = [0, 4], ngram_indexes = [0, 1, 2, 3, 6, 5, 4],
            pool_int64s = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
            weights = [1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0]> (x)
        }}"""
    )
    against_reference(model, {"x": np.array([[1, 5, 6, 7, 8, 6], [2, 3, 3, 5, 6, 7]])})


def test_refusals():
    with pytest.raises(UnsupportedOperatorError, match="3 spatial axes"):
        import_onnx(
            text_model(
                """g (float[1,1,3,3,3] x, float[1,1,2,2,2] w, float[1,24,2,2,2] o) => (float[1,1,2,2,2] y) {
                  y = DeformConv (x, w, o)
                }""",
                opset=22,
                ir=10,
            )
        )
