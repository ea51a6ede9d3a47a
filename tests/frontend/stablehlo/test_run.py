"""The judge of a StableHLO program is the program."""

import numpy as np
import onnx
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

from hetero_tvm import build_model, import_model, optimize_model  # noqa: E402
from hetero_tvm.errors import ModelError  # noqa: E402
from hetero_tvm.frontend.stablehlo.load import read_program  # noqa: E402
from hetero_tvm.frontend.stablehlo.run import StableHloProgram  # noqa: E402


def test_results_and_their_types():
    shape = jax.ShapeDtypeStruct((3,), "float32")
    module = read_program(jax.export.export(jax.jit(lambda x: (x * 2, x > 0)))(shape))
    judge = StableHloProgram(module, onnx.ModelProto())
    x = np.array([-1, 0.5, 2], "float32")
    doubled, positive = judge.run({"x": x}, double=True)
    assert (doubled.dtype, positive.dtype) == ("float64", "bool")
    np.testing.assert_array_equal(doubled, x * 2)
    np.testing.assert_array_equal(positive, x > 0)
    assert judge.tensors({"x": x}, ["y"]) == {}
    with pytest.raises(ModelError, match="cannot run this program"):
        judge.run({"x": np.zeros((4, 4), "float32")})


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_judge_that_rounds_to_16_bits_judges_the_translation_alone(kind):
    """As flax computes with ``dtype=jnp.bfloat16``: parameters and results of 32 bits."""

    def block(x, w, v):
        hidden = jax.nn.gelu(x.astype(kind) @ w.astype(kind))
        return (hidden @ v.astype(kind)).astype("float32"), hidden.sum(0)

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((6, 8), (8, 5), (5, 3))]
    built = build_model(optimize_model(import_model(jax.export.export(jax.jit(block))(*shapes)), "cpu"))
    built.check()
