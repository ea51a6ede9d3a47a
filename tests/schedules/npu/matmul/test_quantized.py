"""8-bit products and convolutions: the same bits as NumPy."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.quantized import QuantConv2d, QuantMatmul
from hetero_tvm.schedules.npu.matmul.quantized import NpuQuantizedMatmulSpace
from hetero_tvm.targets.npu.spaces import NPU_SPACES
from tests.schedules.npu.running import machine, run

OPS = [
    QuantMatmul("int8", "int32", 0, False, (3, 7), 33, 65),
    QuantMatmul("uint8", "uint8", 117, False, (70,), 100, 300),
    QuantMatmul("int8", "int8", -5, True, (1,), 1, 1),
    QuantMatmul("int8", "int32", 0, True, (5,), 17, 2000),
    QuantMatmul("uint8", "int8", 100, False, (16,), 16, 4096),
    QuantConv2d("uint8", "uint8", 3, True, 1, 6, 9, 11, 17, (3, 3), (2, 1), (1, 1, 0, 2), (1, 1), -20),
    QuantConv2d("int8", "int32", 0, False, 2, 5, 8, 8, 9, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 7),
    QuantConv2d("int8", "int8", 9, False, 1, 16, 7, 7, 24, (1, 1)),
    QuantConv2d("int8", "uint8", 9, False, 1, 3, 33, 33, 24, (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), -128),
    QuantConv2d("uint8", "uint8", 3, True, 2, 40, 9, 11, 40, (3, 3), (2, 1), (1, 1, 0, 2), (1, 1), -20, 40),
    QuantConv2d("int8", "int32", 0, True, 1, 3, 8, 8, 3, (5, 2), (1, 2), (2, 2, 2, 2), (2, 2), 7, 3),
    QuantConv2d("uint8", "int8", 9, False, 1, 8, 7, 9, 12, (3, 3), (1, 2), (1, 1, 1, 1), (1, 1), 11, 4),
    QuantConv2d("int8", "int32", 0, True, 1, 3, 5, 5, 6, (2, 2), groups=3),
]


def space_of(op):
    return next(space for space in NPU_SPACES if space.refuses(op, machine()) is None)


def drawn(op, saturating=False):
    """Operands over the whole of their types; results mostly inside of theirs, or mostly outside."""
    rng = np.random.default_rng(0)
    depth = op.flops / np.prod(op.output.shape) / 2
    arrays = []
    for operand in op.inputs:
        if operand.name == "scale":
            spread = (8.0 if saturating else 0.01) * rng.random(operand.shape) + 0.001
            arrays.append((spread / np.sqrt(depth)).astype(np.float32))
        elif operand.name == "bias":
            arrays.append(rng.integers(-5000, 5000, operand.shape).astype(np.int32))
        else:
            limits = np.iinfo(operand.dtype)
            drawn = rng.integers(limits.min, limits.max, operand.shape, endpoint=True)
            arrays.append(drawn.astype(operand.dtype))
    return arrays


@pytest.mark.parametrize("preset", ["edge", "mobile", "datacenter"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_the_bits_are_those_of_numpy(op, preset):
    space, mach = space_of(op), machine(preset)
    assert space.refuses(op, mach) is None
    arrays = drawn(op)
    np.testing.assert_array_equal(run(space, op, mach, arrays)[0], op.reference(*arrays))


def test_saturation():
    for out in ("int8", "uint8"):
        op = QuantMatmul("int8", out, 3, False, (9,), 20, 50)
        arrays = drawn(op, saturating=True)
        expected = op.reference(*arrays)
        limits = np.iinfo(out)
        assert (expected == limits.max).any() and (expected == limits.min).any()
        np.testing.assert_array_equal(run(NpuQuantizedMatmulSpace(), op, machine(), arrays)[0], expected)


def test_sums_wrap():
    """131072 products of -128 and -128 are 2 ** 31."""
    op = QuantMatmul("int8", "int32", 0, False, (1,), 1, 131072)
    arrays = [np.full(o.shape, -128 if o.dtype == "int8" else 5, o.dtype) for o in op.inputs]
    expected = op.reference(*arrays)
    assert expected[0, 0] == -(2**31) + 5
    np.testing.assert_array_equal(run(NpuQuantizedMatmulSpace(), op, machine("mobile"), arrays)[0], expected)


def test_float_results_are_scaled_sums():
    op = QuantMatmul("int8", "float32", 0, True, (9,), 20, 30)
    arrays = drawn(op)
    expected = op.reference(*arrays)
    actual = run(NpuQuantizedMatmulSpace(), op, machine(), arrays)[0]
    np.testing.assert_array_equal(actual, expected.astype(np.float16).astype(np.float32))


def test_every_choice_gives_the_same_bits():
    op, mach = OPS[5], machine()
    space, arrays = space_of(op), drawn(op)
    choices = space.knobs(op, mach)[0].choices
    assert len(choices) > 3
    for tiles in choices[:: max(1, len(choices) // 4)]:
        actual = run(space, op, mach, arrays, {"tiles": tiles})[0]
        np.testing.assert_array_equal(actual, op.reference(*arrays))


@pytest.mark.parametrize("op", [OPS[1], OPS[2], OPS[5], OPS[6]], ids=lambda op: op.label)
def test_the_host_computes_the_same(op):
    """The TensorIR that runs on the CPU where the NPU does not take an operator."""
    arrays = drawn(op)
    module = tvm.IRModule({"main": op.workload().with_attr("global_symbol", "main")})
    result = tvm.runtime.tensor(np.zeros(op.output.shape, op.output.dtype))
    tvm.compile(module, target="llvm")["main"](*map(tvm.runtime.tensor, arrays), result)
    np.testing.assert_array_equal(result.numpy(), op.reference(*arrays))
