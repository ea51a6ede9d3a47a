"""Whatever has no space of its own, as a program of affine stages."""

import functools

import numpy as np
import pytest

from hetero_tvm.host.tvm import te, topi
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.ops.rope import Rope
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.ops.tensor_program import TensorProgram
from hetero_tvm.schedules.npu.tensor_program.space import NpuProgramSpace
from tests.schedules.npu.running import assert_close, assert_same_bits, machine, run, sample

SPACE = NpuProgramSpace()

CONTRACTS = [
    Elementwise((3, 7, 5, 4, 3), "silu"),
    Elementwise((1,), "gelu_erf"),
    Softmax((3, 7), 100),
    Normalization((3, 7), 100, 1e-5),
    Rope((2, 4, 12, 16), 8, True, (1, 1, 12, 4), (2, 12, 64), (0, 768, 16, 64)),
    Rope((2, 4, 13, 32), 16, False, (1, 1, 13, 8), (2, 13, 256), (5, 13 * 256, 32, 256)),
    Rope((1, 2, 5, 6), 6, False, (1, 1, 5, 6), (1, 2, 5, 6), (0, 60, 30, 6)),
    GroupNorm((2, 12, 5, 7), 3, 1e-5, "silu"),
    GroupNorm((1, 8, 30, 30), 8, 1e-5),
    EmbeddingNorm((2, 9), 48, (Lookup(50, (2, 9)), Lookup(20, (1, 9))), (48,), 1e-5),
    Attention(1, 2, 12, 12, 16, 0.25, 2, mask=(1, 1, 1, 12)),
    Conv2d(1, 6, 9, 9, 6, (3, 3), (2, 1), (1, 1, 1, 1), groups=3),
]


def drawn(op):
    """Random operands; indices from both ends of their table."""
    rng, arrays = np.random.default_rng(1), sample(op)
    for n, operand in enumerate(op.inputs):
        if operand.dtype == "bool":
            arrays[n] = rng.random(operand.shape) < 0.5
        elif operand.dtype != "float32":
            arrays[n] = rng.integers(-5, 5, operand.shape).astype(operand.dtype)
    return arrays


@pytest.mark.parametrize("preset, dtype", [("edge", "float16"), ("datacenter", "bfloat16")])
@pytest.mark.parametrize("op", CONTRACTS, ids=lambda op: op.label)
def test_contracts_are_kept(op, preset, dtype):
    mach = machine(preset, dtype)
    assert SPACE.refuses(op, mach) is None
    assert_close(SPACE, op, mach, drawn(op))


@pytest.mark.parametrize(
    "op",
    [
        QuantConv2d("uint8", "int8", 9, False, 1, 8, 7, 9, 12, (3, 3), (1, 2), (1, 1, 1, 1), (1, 1), 11, 4),
        QuantConv2d("int8", "int32", 0, True, 1, 3, 5, 5, 6, (2, 2), groups=3),
    ],
    ids=lambda op: op.label,
)
@pytest.mark.parametrize("preset", ["edge", "mobile", "datacenter"])
def test_groups_of_8_bits_are_exact(op, preset):
    assert_same_bits(SPACE, op, machine(preset))


def tensors(*specs):
    return [te.placeholder(shape, dtype, f"A{n}") for n, (shape, dtype) in enumerate(specs)]


def program(placeholders, result):
    return TensorProgram.of(te.create_prim_func([*placeholders, result]), "program", 0)


F = "float32"


def sums_along(x):
    """Steps that each read the one before at two places: computed in place they would double each time."""

    def step(x, by):
        return te.compute(x.shape, lambda i, j: te.if_then_else(j >= by, x[i, j] + x[i, j - by], x[i, j]))

    return functools.reduce(step, (1, 2, 4, 8, 16), x)


def other_functions(x):
    small = topi.tanh(x) * 0.9
    parts = [
        topi.tan(small),
        topi.log2(topi.abs(x) + 0.1),
        topi.asinh(x),
        topi.acosh(topi.abs(x) + 1.0),
        topi.atanh(small),
        topi.trunc(x * 2.0),
    ]
    return functools.reduce(topi.add, parts)


def other_powers(x):
    return topi.power(x, 5.0) + topi.power(topi.abs(x), -0.7) + topi.power(1.5, x)


# Expressions of the thorough selection, beside others that have the same instructions.
MORE = {
    *("transpose of six axes", "repeat", "max and min", "hard swish", "other powers", "either truth"),
    *(
        "matmul transposed",
        "matmul and scale",
        "where",
        "two constants",
        "lookup inside",
        "lookup of long rows",
    ),
}


def expressions():
    """Name, operands, expression."""

    def of(name, specs, build):
        return pytest.param(specs, build, id=name, marks=pytest.mark.thorough if name in MORE else ())

    yield of("transpose", [((3, 40, 7), F)], lambda x: topi.transpose(x, (2, 0, 1)))
    yield of(
        "transpose of six axes", [((2, 3, 4, 2, 5, 3), F)], lambda x: topi.transpose(x, (0, 2, 4, 1, 3, 5))
    )
    yield of("concat", [((2, 3, 5), F), ((2, 1, 5), F), ((2, 4, 5), F)], lambda *x: topi.concatenate(x, 1))
    yield of("slice", [((5, 40), F)], lambda x: topi.strided_slice(x, [1, 3], [5, 40], [2, 3]))
    yield of("pad", [((3, 5), F)], lambda x: topi.nn.pad(x, [1, 0], [2, 3], 1.5))
    yield of("repeat", [((3, 5), F)], lambda x: topi.repeat(x, 2, 1))
    yield of("flip", [((3, 5), F)], lambda x: topi.flip(x, 1))
    yield of("broadcast", [((3, 1, 5), F), ((4, 1), F)], lambda x, y: topi.multiply(topi.add(x, y), x))
    yield of("mean", [((3, 70, 5), F)], lambda x: topi.divide(topi.sum(x, 1), 70.0))
    yield of("sum of everything", [((30, 7), F)], lambda x: topi.sum(x))
    yield of("max and min", [((4, 9), F)], lambda x: topi.subtract(topi.max(x, 1), topi.min(x, 1)))
    yield of("hard swish", [((4, 9), F)], lambda x: x * topi.clip(x + 3.0, 0.0, 6.0) / 6.0)
    yield of("powers", [((4, 9), F)], lambda x: topi.power(x, 3.0) + topi.power(topi.abs(x), 0.5))
    yield of("other powers", [((4, 9), F)], other_powers)
    yield of("other functions", [((4, 9), F)], other_functions)
    yield of("either truth", [((9,), "bool"), ((2, 9), "bool")], topi.logical_xor)
    yield of(
        "matmul",
        [((3, 20, 9), F), ((3, 9, 70), F)],
        lambda x, y: topi.nn.batch_matmul(x, y, transpose_b=False),
    )
    yield of(
        "matmul transposed",
        [((2, 9, 33), F), ((1, 70, 9), F)],
        lambda x, y: topi.nn.batch_matmul(x, y, transpose_a=True),
    )
    yield of(
        "matmul and scale",
        [((1, 20, 150), F), ((1, 150, 7), F)],
        lambda x, y: topi.multiply(topi.nn.batch_matmul(x, y, transpose_b=False), 0.1),
    )
    yield of("dot", [((7, 33), F), ((7, 33), F)], lambda x, y: topi.sum(x * y, 1))
    yield of("mask of tokens", [((2, 9), "int64")], lambda x: (1.0 - x.astype(F)) * -3.0)
    yield of("where", [((2, 9), "bool"), ((2, 9), F), ((1, 9), F)], lambda c, x, y: topi.where(c, x, y))
    yield of(
        "two constants",
        [((2, 9), "bool")],
        lambda c: te.compute(c.shape, lambda *i: te.if_then_else(c(*i), 2.0, -7.0)),
    )
    yield of(
        "integers",
        [((2, 9), "int64"), ((2, 9), "int32")],
        lambda x, y: topi.maximum(x.astype("int32"), y) + 3,
    )
    yield of(
        "truth", [((9,), "bool"), ((2, 9), "bool")], lambda x, y: topi.logical_and(x, topi.logical_not(y))
    )
    yield of("sums along", [((3, 21), "int32")], sums_along)
    yield of("to integers", [((9, 7), F)], lambda x: (x * 3.0).astype("int32"))
    yield of("lookup", [((11, 9), F), ((2, 7), "int64")], lambda t, i: topi.take(t, i, 0, mode="wrap"))
    yield of(
        "lookup inside",
        [((3, 11, 4), F), ((5,), "int32")],
        lambda t, i: topi.take(t, i, 1, mode="wrap") * 2.0,
    )
    yield of(
        "lookup of long rows",
        [((4, 40000), F), ((3,), "int64")],
        lambda t, i: topi.take(t, i, 0, mode="wrap"),
    )
    yield of("lookup of one", [((3, 11, 4), F), ((), "int64")], lambda t, i: topi.take(t, i, 1, mode="wrap"))


@pytest.mark.parametrize("specs, build", list(expressions()))
def test_expressions(specs, build):
    placeholders = tensors(*specs)
    op, mach = program(placeholders, build(*placeholders)), machine("edge")
    assert SPACE.refuses(op, mach) is None
    arrays = [np.asarray(a) for a in drawn(op)]
    expected = op.reference(*arrays)
    actual, _ = run(SPACE, op, mach, arrays)
    if expected.dtype == np.float32:
        # Operands are rounded to 11 bits; sums of many products keep that relative to their terms.
        np.testing.assert_allclose(actual, expected, rtol=4e-3, atol=4e-3 * max(1.0, np.abs(expected).max()))
    else:
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("build", [lambda x: x + x, lambda x: topi.transpose(x), lambda x: topi.sum(x, 0)])
def test_numbers_of_64_bits_are_left_to_the_host(build):
    """The machine holds 32 of them."""
    (x,) = placeholders = tensors(((3, 5), "int64"))
    assert "no int64" in SPACE.refuses(program(placeholders, build(x)), machine("edge"))


def test_large_tensors_are_cut_into_tiles():
    (x,) = placeholders = tensors(((300, 700), F))
    op = program(placeholders, topi.transpose(topi.nn.relu(x)))
    assert_close(SPACE, op, machine("edge"))
