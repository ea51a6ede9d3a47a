"""Convolutions of StableHLO: they agree with JAX for every stride, window, padding and group."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

from jax import lax  # noqa: E402

from hetero_tvm.frontend.stablehlo.importer import import_stablehlo  # noqa: E402
from tests.frontend.stablehlo.test_importer import drawn, exported  # noqa: E402

onnxruntime = pytest.importorskip("onnxruntime")


def run(model, inputs):
    """Results of the ONNX form of a program."""
    data = model.onnx_model.SerializeToString()
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, inputs)


def agrees(function, shapes):
    """Compare a program with JAX: float32 sums of some dozen terms in another order."""
    model = import_stablehlo(exported(function, shapes))
    inputs = drawn(model)
    found, expected = run(model, inputs), jax.tree.leaves(function(*inputs.values()))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("stride", "window", "padding"), [(1, 3, "SAME"), (3, 2, "VALID"), (2, 5, "SAME")])
def test_transposed_convolutions(stride, window, padding):
    def function(x, w):
        return lax.conv_transpose(x, w, (stride, stride), padding)

    agrees(function, [(1, 5, 6, 2), (window, window, 2, 3)])


NUMBERS = ("NHWC", "HWIO", "NHWC")
ODD = {
    "strides and groups of its own": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 2), [(1, 0), (2, 1)], (2, 1), (1, 2), NUMBERS, feature_group_count=2
        ),
        [(1, 6, 9, 4), (3, 2, 2, 6)],
    ),
    "padding beyond its window": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), [(4, 1), (0, 5)], (2, 3), (1, 1), NUMBERS),
        [(1, 4, 5, 2), (3, 2, 2, 3)],
    ),
    "negative padding": (
        lambda x, w: lax.conv_general_dilated(x, w, (2, 1), [(-1, 1), (2, -2)], None, None, NUMBERS),
        [(2, 7, 8, 2), (3, 2, 2, 3)],
    ),
    "groups of the batch": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW"), batch_group_count=2
        ),
        [(4, 3, 8, 8), (6, 3, 3, 3)],
    ),
    "gradients by images and weights": (
        jax.grad(
            lambda x, w: (
                lax.conv_general_dilated(
                    x, w, (2, 2), "SAME", dimension_numbers=NUMBERS, feature_group_count=4
                )
                ** 2
            ).sum(),
            (0, 1),
        ),
        [(2, 7, 6, 4), (3, 3, 1, 4)],
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_other_convolutions(name):
    function, shapes = ODD[name]
    agrees(function, shapes)


def test_windows_that_are_reversed(tmp_path):
    def function(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=NUMBERS)

    given = exported(function, [(1, 5, 6, 2), (3, 2, 2, 3)]).mlir_module()
    text = given.replace("window = {}", "window = {reverse = [true, false]}")
    assert text != given, given
    (tmp_path / "reversed.mlir").write_text(text)
    model = import_stablehlo(tmp_path / "reversed.mlir")
    inputs = drawn(model)
    x, w = inputs.values()
    np.testing.assert_allclose(run(model, inputs)[0], np.asarray(function(x, w[::-1])), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("small", ["int8", "uint8"])
def test_small_integers_are_summed_in_the_type_that_is_asked_for(small):
    def function(x, w):
        x, w = (abs(x) * 9).astype(small), (abs(w) * 9).astype(small)
        return lax.conv_general_dilated(
            x, w, (1, 2), ((1, 0), (0, 2)), dimension_numbers=NUMBERS, preferred_element_type=np.int32
        ).astype("float32")

    agrees(function, [(1, 5, 6, 3), (3, 2, 3, 4)])
