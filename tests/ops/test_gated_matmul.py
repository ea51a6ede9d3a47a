import numpy as np
import pytest
from scipy import special

from hetero_tvm.ops.gated_matmul import GatedMatmul
from tests.ops.helpers import check

ACTIVATIONS = {"silu": lambda x: x * special.expit(x), "gelu_erf": lambda x: x * special.ndtr(x)}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(
    "lead, n, k, biased", [((1,), 1, 1, False), ((2, 3), 5, 4, True), ((3,), 7, 2, False)]
)
def test_gate_times_value(name, lead, n, k, biased):
    def formula(x, w, bias=None):
        gate, value = x @ w[:, :n], x @ w[:, n:]
        if bias is not None:
            gate, value = gate + bias[:n], value + bias[n:]
        return ACTIVATIONS[name](gate) * value

    check(GatedMatmul(lead, n, k, name, biased), formula)


def test_half_precision():
    op = GatedMatmul((3,), 4, 6, "silu", True, "float16")
    assert [x.dtype for x in op.inputs] == ["float16", "float16", "float32"]
    check(
        op,
        lambda x, w, b: ACTIVATIONS["silu"]((x @ w + b)[:, :4]) * (x @ w + b)[:, 4:],
        tolerance=5e-4,
    )


def test_cost_and_label():
    op = GatedMatmul((2, 3), 5, 7, "silu", True)
    assert op.flops == 2 * 2 * 6 * 5 * 7
    assert op.nbytes == 4 * (6 * 7 + 7 * 10 + 10 + 6 * 5)
    assert op.label == "gated_matmul_6x7x5_bias_silu"


def test_a_gate_of_zero_closes():
    op = GatedMatmul((1,), 3, 2, "relu")
    x, w = np.ones((1, 2)), np.concatenate([-np.ones((2, 3)), np.ones((2, 3))], 1)
    assert (op.reference(x, w) == 0).all()
