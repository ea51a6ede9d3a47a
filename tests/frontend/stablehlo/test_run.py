"""The judge of a StableHLO program is the program."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

from hetero_tvm.errors import ModelError  # noqa: E402
from hetero_tvm.frontend.stablehlo.load import read_program  # noqa: E402
from hetero_tvm.frontend.stablehlo.run import StableHloProgram  # noqa: E402


def test_results_and_their_types():
    shape = jax.ShapeDtypeStruct((3,), "float32")
    module = read_program(jax.export.export(jax.jit(lambda x: (x * 2, x > 0)))(shape))
    judge = StableHloProgram(module, None)
    x = np.array([-1, 0.5, 2], "float32")
    doubled, positive = judge.run({"x": x}, double=True)
    assert (doubled.dtype, positive.dtype) == ("float64", "bool")
    np.testing.assert_array_equal(doubled, x * 2)
    np.testing.assert_array_equal(positive, x > 0)
    assert judge.tensors({"x": x}, ["y"]) == {}
    with pytest.raises(ModelError, match="cannot run this program"):
        judge.run({"x": np.zeros((4, 4), "float32")})
