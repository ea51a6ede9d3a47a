"""Convolutions of StableHLO: the transposed ones agree with JAX for every stride, window and padding."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

from jax import lax  # noqa: E402

from hetero_tvm.errors import UnsupportedOperatorError  # noqa: E402
from hetero_tvm.frontend.stablehlo.importer import import_stablehlo  # noqa: E402
from tests.frontend.stablehlo.test_importer import drawn, exported  # noqa: E402

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(("stride", "window", "padding"), [(1, 3, "SAME"), (3, 2, "VALID"), (2, 5, "SAME")])
def test_transposed_convolutions(stride, window, padding):
    def function(x, w):
        return lax.conv_transpose(x, w, (stride, stride), padding)

    model = import_stablehlo(exported(function, [(1, 5, 6, 2), (window, window, 2, 3)]))
    inputs = drawn(model)
    session = onnxruntime.InferenceSession(
        model.onnx_model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = np.asarray(function(*inputs.values()))
    np.testing.assert_allclose(session.run(None, inputs)[0], expected, rtol=1e-4, atol=1e-4)


def test_gradients_of_convolutions_by_their_weights_are_refused():
    def groups(x, w):
        numbers = ("NCHW", "OIHW", "NCHW")
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=numbers, batch_group_count=2)

    with pytest.raises(UnsupportedOperatorError, match="groups of the batch"):
        import_stablehlo(exported(groups, [(4, 3, 8, 8), (2, 3, 3, 3)]))
