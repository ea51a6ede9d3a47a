"""Epilogues: what the way out of the accumulators takes, and the activations behind it."""

import numpy as np
import pytest

from hetero_tvm.ops.activations import ACTIVATIONS as CONTRACTS
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from tests.schedules.npu.running import machine, run_function


@pytest.mark.parametrize(
    "steps, taken, rest",
    [
        (("bias", "residual", "relu", "tanh"), (True, True, True), ("tanh",)),
        (("residual", "bias", "relu"), (False, True, False), ("bias", "relu")),
        (("gelu_erf", "bias"), (False, False, False), ("gelu_erf", "bias")),
        ((), (False, False, False), ()),
    ],
)
def test_the_way_out_takes_bias_residual_and_relu_in_this_order(steps, taken, rest):
    split = epilogue.split(steps)
    assert (split.bias, split.residual, split.relu) == taken and split.rest == rest


def test_unknown_steps_are_named():
    assert epilogue.supported(("bias", "mish", "relu", "swirl")) == "no vector code for mish, swirl"


@pytest.mark.parametrize("name", epilogue.ACTIVATIONS)
def test_activations_are_those_of_the_contracts(name):
    x = np.linspace(-9, 9, 256, dtype=np.float32).astype(np.float16).reshape(4, 64)
    k = Kernel()
    with k:
        a, y = k.argument("X", x.shape, "float16"), k.argument("Y", x.shape, "float16")
        tile = k.alloc(UB, x.shape, "float16")
        whole = At(tile, lambda *i: i)
        k.load(x.shape, whole, At(a, lambda *i: i))
        epilogue.apply(k, (name,), tile, x.shape, "float16", epilogue.Operands(lambda buffer: None))
        k.store(x.shape, At(y, lambda *i: i), whole)
    expected = CONTRACTS[name](x.astype(np.float64))
    actual = run_function(k.function, machine(), [x], x.shape, "float16")
    np.testing.assert_allclose(actual, expected, rtol=4e-3, atol=4e-3)
