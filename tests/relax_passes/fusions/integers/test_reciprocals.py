"""Quantisers without a division give the bytes of those with one, between two steps as well."""

import numpy as np
import pytest

from hetero_tvm import host
from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.relax_passes.fusions.integers.reciprocals import QuantizeByReciprocal
from tests.relax_passes.compiled import rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, any_kernel
from tests.schedules.cpu.running import TARGET

needs_fma = pytest.mark.skipif("fma" not in host.cpu_features(), reason="this CPU has no FMA")


def quantized(x, scale, zero, dtype):
    """ONNX's definition, in float32."""
    limits = np.iinfo(dtype)
    with np.errstate(over="ignore"):
        steps = np.rint(x.astype(np.float32) / np.float32(scale)).astype(np.float64) + zero
    return np.clip(steps, limits.min, limits.max).astype(dtype)


def compiled(x, scale, zero, dtype):
    after, _ = rewritten(
        lambda x: op.quantize(x, constant(scale), constant(zero, dtype), axis=0, out_dtype=dtype),
        [x],
        [QuantizeByReciprocal()],
    )
    assert "R.quantize" not in str(after["main"])
    (function,) = [f for g, f in after.functions.items() if g.name_hint != "main"]
    run = compile_kernels(function.with_attr("global_symbol", "main"), TARGET).jit()["main"]
    y = tvm.runtime.tensor(np.full(x.shape, 7).astype(dtype))
    run(tvm.runtime.tensor(x), y)
    return y.numpy()


@needs_fma
@pytest.mark.parametrize("dtype, zero", [("int8", -7), ("uint8", 131), ("uint8", 0), ("int8", 127)])
def test_the_bytes_are_those_of_a_division(dtype, zero):
    rng = np.random.default_rng(abs(zero))
    for scale in (*rng.uniform(1e-4, 3.0, 12), 2.0**-7, 1 / 255, 1e-20, 1e20):
        step = np.float32(scale)
        between = (np.arange(-400, 400) + np.float32(0.5)) * step
        near = [np.nextafter(between, np.float32(side)) for side in (-np.inf, np.inf)]
        random = rng.uniform(-300, 300, 4096).astype(np.float32) * step
        ends = np.array([0.0, -0.0, np.inf, -np.inf, 3e38, -3e38, 1e-45], np.float32)
        x = np.concatenate([between, *near, random, ends]).astype(np.float32)
        np.testing.assert_array_equal(compiled(x, step, zero, dtype), quantized(x, step, zero, dtype))


@pytest.mark.parametrize(
    "scale, zero, dtype",
    [(np.full(4, 0.1), np.zeros(4), "int8"), (1e-35, 0, "int8"), (0.1, 0, "int16")],
    ids=["steps by channel", "a tiny step", "16 bits"],
)
def test_others_keep_the_division(scale, zero, dtype):
    x = np.zeros((2, 4), "float32")
    after, _ = rewritten(
        lambda x: op.quantize(x, constant(scale), constant(zero, dtype), axis=1, out_dtype=dtype),
        [x],
        [QuantizeByReciprocal()],
    )
    assert "R.quantize" in str(after["main"])


def test_one_behind_another_keeps_the_division():
    """They are one kernel, in which twelve copies of twelve copies took minutes to compile."""

    def bytes_of(x):
        return op.quantize(x, constant(0.1), constant(3, "uint8"), axis=0, out_dtype="uint8")

    def build(x):
        gate = op.dequantize(bytes_of(op.sigmoid(x)), constant(0.1), constant(3, "uint8"), axis=0)
        return bytes_of(op.multiply(gate, x))

    after, _ = rewritten(build, [np.zeros((2, 4), "float32")], [QuantizeByReciprocal()])
    assert str(after["main"]).count("R.quantize") == 1


class TestQuantizeByReciprocal(Rewrite):
    rule = QuantizeByReciprocal()
    inputs = {"x": (2, 3)}

    def before(self, x):
        return op.quantize(x, constant(0.1), constant(3, "uint8"), axis=0, out_dtype="uint8")

    def expected(self, x):
        return any_kernel("quantize", (2, 3), "uint8", x)
