"""Integers that overflow wrap around, also where they are divided, compared or widened; indices stay."""

import re

import numpy as np
import onnx
import pytest

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.codegen.wrapping import wrapping
from hetero_tvm.host.tvm import te, tirx, tvm
from hetero_tvm.schedules.cpu import generic
from tests.schedules.cpu.running import MACHINES, TARGET, llvm_of
from tests.selection import thorough

COUNT = 64


def truncated(x, divisor):
    """The quotient rounded towards zero."""
    return (x - np.fmod(x, divisor)) // divisor


# What is computed first, what of it, and the same by NumPy.
CASES = {
    "half of a double": (
        lambda x, y, c: x + x,
        lambda s, x, c: tirx.truncdiv(s, c(2)),
        lambda x, y, c: truncated(x + x, c(2)),
    ),
    "a product divided": (
        lambda x, y, c: x * c(7),
        lambda s, x, c: tirx.truncdiv(s, c(7)),
        lambda x, y, c: truncated(x * c(7), c(7)),
    ),
    "remainder of a product": (
        lambda x, y, c: x * c(7),
        lambda s, x, c: tirx.truncmod(s, c(7)),
        lambda x, y, c: np.fmod(x * c(7), c(7)),
    ),
    "remainder of a hash": (
        lambda x, y, c: x * c(1103515245) + y,
        lambda s, x, c: tirx.truncmod(s, c(1009)),
        lambda x, y, c: np.fmod(x * c(1103515245) + y, c(1009)),
    ),
    "the larger one": (
        lambda x, y, c: x + c(1),
        lambda s, x, c: tirx.max(s, x),
        lambda x, y, c: np.maximum(x + c(1), x),
    ),
    "whether a square is negative": (
        lambda x, y, c: x * x,
        lambda s, x, c: tirx.Select(s < c(0), c(1), c(0)),
        lambda x, y, c: (x * x < 0).astype(x.dtype),
    ),
    "whether a sum of squares is negative": (
        lambda x, y, c: x * x + y * y,
        lambda s, x, c: tirx.Select(s < c(0), c(1), c(0)),
        lambda x, y, c: (x * x + y * y < 0).astype(x.dtype),
    ),
    "whether it is larger": (
        lambda x, y, c: x + c(1),
        lambda s, x, c: tirx.Select(s > x, c(1), c(0)),
        lambda x, y, c: (x + c(1) > x).astype(x.dtype),
    ),
    "a sum less itself": (
        lambda x, y, c: x + y,
        lambda s, x, c: s - s + x,
        lambda x, y, c: x,
    ),
}


def kernel(first, then, dtype):
    """Two stages, of which schedules make one expression."""

    def c(value):
        return tirx.const(value, dtype)

    x, y = (te.placeholder((COUNT,), dtype, name) for name in "xy")
    stage = te.compute((COUNT,), lambda i: first(x[i], y[i], c), "stage")
    return te.create_prim_func([x, y, te.compute((COUNT,), lambda i: then(stage[i], x[i], c), "z")])


def scheduled(first, then, dtype):
    return generic.schedule(kernel(first, then, dtype), MACHINES["avx2"])


def results(function, x, y, dtype):
    z = tvm.runtime.tensor(np.zeros(COUNT, dtype))
    compile_kernels(function, TARGET)["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y), z)
    return z.numpy()


def numbers(dtype):
    random, limits = np.random.default_rng(0), np.iinfo(dtype)
    x, y = (random.integers(limits.min, limits.max, COUNT, dtype, endpoint=True) for _ in range(2))
    x[:2] = limits.min, limits.max
    return x, y


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
@pytest.mark.parametrize("name", CASES)
def test_integers_wrap_around(name, dtype):
    first, then, expected = CASES[name]
    x, y = numbers(dtype)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            results(scheduled(first, then, dtype), x, y, dtype), expected(x, y, np.dtype(dtype).type)
        )


@pytest.mark.parametrize("dtype", ["uint16", "uint8"])
def test_sums_of_short_unsigned_numbers_are_compared(dtype):
    """TVM refused to compile them."""
    first, then, expected = CASES["whether it is larger"]
    x, y = numbers(dtype)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            results(scheduled(first, then, dtype), x, y, dtype), expected(x, y, np.dtype(dtype).type)
        )


CHAINS = {
    "a sum times its constant": (lambda x, k: x + k, lambda x, k: x * k),
    "three sums": (lambda x, k: x + k,) * 3,
    "three products": (lambda x, k: x * k,) * 3,
    "differences": (lambda x, k: k - x, lambda x, k: x - k, lambda x, k: x - k),
    "doubled": (lambda x, k: x * k, lambda x, k: x + x),
}


def applied(step, stage, constant):
    """The next stage of a chain."""
    return te.compute((COUNT,), lambda i: step(stage[i], constant))


@pytest.mark.parametrize("dtype", ["int32", *thorough(["int64"]), "uint32", "uint64"])
@pytest.mark.parametrize("name", CHAINS)
def test_constants_that_leave_their_type_together(name, dtype):
    """The simplifier refused those of signed numbers, and made other numbers of unsigned ones."""
    limits = np.iinfo(dtype)
    x, y = numbers(dtype)
    for value in {limits.min, limits.max, limits.max // 2 + 3, int(limits.max**0.5) + 7}:
        inputs = [te.placeholder((COUNT,), dtype, name) for name in "xy"]
        stage, expected = inputs[0], x
        constant = tirx.const(value, dtype)
        for step in CHAINS[name]:
            stage = applied(step, stage, constant)
            with np.errstate(over="ignore"):
                expected = step(expected, np.dtype(dtype).type(value))
        function = generic.schedule(te.create_prim_func([*inputs, stage]), MACHINES["avx2"])
        np.testing.assert_array_equal(results(function, x, y, dtype), expected)


def test_widened_products():
    x, y = numbers("int32")
    function = scheduled(lambda x, y, c: x * y, lambda s, x, c: tirx.Cast("int64", s), "int32")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(results(function, x, y, "int64"), (x * y).astype("int64"))


def test_indices_and_accumulators_have_no_fence():
    x = tirx.decl_buffer((8,), "int64", "x")
    i, eight = tirx.Var("i", "int64"), tirx.const(8, "int64")
    for plain in (x[tirx.floormod(x[i] + eight, eight)], tirx.floordiv(i + 3, eight), x[i] + x[i + 1] * x[i]):
        assert wrapping(plain).same_as(plain)
    assert not wrapping(tirx.floordiv(x[i] + eight, eight)).same_as(plain)


def test_a_fence_costs_no_vector():
    """The maximum behind it is that of whole vectors."""
    first, then, _ = CASES["the larger one"]
    assert re.search(r"call <\d+ x i32> @llvm.smax", llvm_of(scheduled(first, then, "int32")))


@pytest.mark.parametrize(
    "given, wanted", [("uint8", "int8"), ("int8", "uint32"), ("uint16", "int8"), ("uint64", "int64")]
)
@pytest.mark.parametrize("compute", ["Mod", "Less"])
def test_conversions_of_what_does_not_fit(given, wanted, compute):
    """The simplifier took the sign of a byte for one of 0 to 127: its remainder was that of C."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(wanted))
    source = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({given}[6] x) => '
        f"({wanted if compute == 'Mod' else 'bool'}[6] y) <{wanted} c = {{16}}> "
        f"{{ q = Cast<to={kind}>(x) y = {compute}(q, c) }}"
    )
    limits = np.iinfo(given)
    x = np.array([0, 5, limits.min, limits.min + 3, limits.max, limits.max - 5], given)
    (y,) = build_model(optimize_model(import_model(source))).run({"x": x})
    function = np.mod if compute == "Mod" else np.less
    assert np.array_equal(y, function(x.astype(wanted), np.array(16, wanted)))


@pytest.mark.parametrize(
    "dtype, result, constants, nodes, expected",
    [
        ("int64", "bool", "c = {-128}", "a = Abs(x) y = Less(a, c)", lambda x: np.abs(x) < -128),
        (
            "int64",
            "int64",
            "c = {4611686018427387904}, d = {127}, e = {3}",
            "a = BitwiseAnd(x, c) b = Mul(a, d) y = Mod(b, e)",
            lambda x: np.mod((x & 2**62) * np.int64(127), np.int64(3)),
        ),
        (
            "uint32",
            "uint32",
            "c = {2147483648}, d = {4294967295}",
            "a = Add(x, c) y = Sub(d, a)",
            lambda x: np.uint32(2**32 - 1) - (x + np.uint32(2**31)),
        ),
        (
            "uint32",
            "uint32",
            "c = {7}, d = {2147483648}",
            "a = Mul(x, c) b = Add(a, d) y = BitwiseNot(b)",
            lambda x: ~(x * np.uint32(7) + np.uint32(2**31)),
        ),
        (
            "int32",
            "int32",
            "c = {-2}, d = {-16}, e = {31}",
            "a = Div(x, c) b = Mul(a, d) s = BitwiseOr(b, e) y = Sign(s)",
            lambda x: np.sign((truncated(x, np.int32(-2)) * np.int32(-16)) | np.int32(31)),
        ),
        (
            "uint8",
            "bool",
            "c = {0}, d = {254}",
            "a = Sub(c, x) y = LessOrEqual(a, d)",
            lambda x: np.uint8(0) - x <= np.uint8(254),
        ),
        (
            "uint8",
            "bool",
            "c = {0}, d = {5}",
            "a = Sub(c, x) s = Min(a, c) y = Less(s, d)",
            lambda x: np.full(x.shape, True),
        ),
        (
            "uint64",
            "uint64",
            "c = {0}, d = {9}",
            "a = BitwiseAnd(x, c) s = Greater(a, d) y = Where(s, x, d)",
            lambda x: np.full(x.shape, 9, np.uint64),
        ),
    ],
)
@pytest.mark.thorough
@pytest.mark.parametrize("dim", ["24", "N"])
def test_what_reads_a_number_that_has_wrapped(dtype, result, constants, nodes, expected, dim):
    """Bits, signs and absolute values were those of numbers that do not overflow."""
    constants = ", ".join(f"{dtype} {one.strip()}" for one in constants.split(","))
    source = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g ({dtype}[{dim}] x) => ({result}[{dim}] y) '
        f"<{constants}> {{ {nodes} }}"
    )
    x = np.concatenate([numbers(dtype)[0][:20], np.array([0, 1, 3, np.iinfo(dtype).max // 2 + 1], dtype)])
    (y,) = build_model(
        optimize_model(import_model(source, shapes={"x": (Span(1, 64),) if dim == "N" else (24,)}))
    ).run({"x": x})
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, expected(x))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_what_is_nothing_behind_a_fence(dtype):
    """The simplifier makes a 0 of ``x - x``, and TVM's code generator refused the bits of it as a float."""
    source = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g ({dtype}[3, 2] x) => ({dtype}[3, 2] y) '
        f"<{dtype} c = {{1}}> {{ z = Sub(x, x) e = Equal(x, c) y = Where(e, z, x) }}"
    )
    x = np.array([[1, 2], [np.iinfo(dtype).min, 1], [-1, 0]], dtype)
    (y,) = build_model(optimize_model(import_model(source)), use_shipped=False).run({"x": x})
    np.testing.assert_array_equal(y, np.where(x == 1, 0, x))
