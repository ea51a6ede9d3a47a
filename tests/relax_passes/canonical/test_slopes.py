"""PReLU as sums and products."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.canonical.slopes import SlopesAsProducts
from tests.frontend.onnx.helpers import add_weight, text_model
from tests.relax_passes.compiled import module_of, result, rewritten
from tests.relax_passes.graphs import constant, op, weights
from tests.relax_passes.rewrite import Rewrite, bind

SLOPES = weights(3)


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 4, 5), 1), ((4, 3), -1)])
def test_the_numbers_stay(shape, axis):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    x.reshape(-1)[:3] = [np.inf, -np.inf, -0.0]

    def build(x):
        return op.nn.prelu(x, constant(SLOPES), axis)

    after, _ = rewritten(build, [x], [SlopesAsProducts()])
    assert "prelu" not in str(after["main"])
    np.testing.assert_array_equal(result(after, [x]), result(module_of(build, x), [x]))


def test_nan_stays(tmp_path):
    """By this project's code: TVM's own largest value of NaN and zero is zero."""
    source = text_model("g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = PRelu(x, s) }")
    add_weight(source, "s", SLOPES.reshape(3, 1))
    optimized = hetero_tvm.optimize_model(hetero_tvm.import_model(source), "cpu")
    net = hetero_tvm.load(hetero_tvm.build_model(optimized, use_shipped=False).export(tmp_path / "m.so"))
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    x.reshape(-1)[:4] = [np.nan, np.inf, -np.inf, -0.0]
    wanted = np.where(x > 0, x, x * SLOPES.reshape(3, 1))
    np.testing.assert_array_equal(net(x), wanted)


def test_computed_slopes_stay():
    x, slopes = np.zeros((2, 3), "float32"), SLOPES
    after, _ = rewritten(lambda x, a: op.nn.prelu(x, a, 1), [x, slopes], [SlopesAsProducts()])
    assert "prelu" in str(after["main"])


def test_one_slope_is_a_leaky_unit():
    x = np.zeros((2, 3), "float32")
    after, _ = rewritten(lambda x: op.nn.prelu(x, constant([0.25] * 3), 1), [x], [SlopesAsProducts()])
    assert "leakyrelu(x0, alpha=0.25)" in str(after["main"])


class TestSlopesAsProducts(Rewrite):
    rule = SlopesAsProducts()
    inputs = {"x": (2, 3, 4, 5)}

    def before(self, x):
        return op.nn.prelu(x, constant(SLOPES), 1)

    def expected(self, x):
        below = bind(op.multiply(op.minimum(x, relax.const(0.0)), constant(SLOPES.reshape(1, 3, 1, 1))))
        return op.add(op.nn.relu(x), below)
