"""Quotients and remainders of integers: those of NumPy, at the ends of their types and next to multiples."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import te, tirx, tvm
from tests.schedules.cpu.running import TARGET
from tests.selection import thorough

KINDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
OPERATIONS = {
    "truncdiv": tirx.truncdiv,
    "truncmod": tirx.truncmod,
    "floordiv": tirx.floordiv,
    "floormod": tirx.floormod,
}
COUNT = 1 << 16


def operands(kind):
    """Dividends and divisors: all pairs of bytes; else random ones, ends, and neighbours of multiples."""
    info, generator = np.iinfo(kind), np.random.default_rng(3)
    if info.bits == 8:
        numbers = np.arange(info.min, info.max + 1)
        a, b = (x.ravel().astype(kind) for x in np.meshgrid(numbers, numbers))
        return a, b
    wide = generator.integers(info.min, info.max, (2, COUNT), dtype=kind, endpoint=True)
    a, b = wide >> generator.integers(0, info.bits, (2, COUNT)).astype(kind)
    ends = np.array([info.min, info.min + 1, info.max - 1, info.max, 0, 1, 2, 3, -1 if info.min else 5], kind)
    pairs = np.stack(np.meshgrid(ends, ends)).reshape(2, -1)
    a[: pairs.shape[1]], b[: pairs.shape[1]] = pairs
    some = slice(1000, 40000)
    with np.errstate(all="ignore"):  # neighbours of multiples; those that leave the type wrap around
        a[some] = (a[some] // np.where(b[some] == 0, 1, b[some])) * b[some]
        a[some] += generator.integers(0, 3, 39000).astype(kind) - np.array(1, kind)
    return a, b


def expected(name, a, b):
    """By 0, as by 1; the smallest integer by -1 is itself."""
    a, b = (x.astype(object) for x in (a, np.where(b == 0, np.array(1, b.dtype), b)))
    quotient = a // b
    if name.startswith("trunc"):
        quotient = np.where((a < 0) == (b < 0), abs(a) // abs(b), -(abs(a) // abs(b)))
    return quotient if name.endswith("div") else a - quotient * b


def divided(operation, a, b):
    return te.compute(a.shape, lambda i: operation(a[i], b[i]))


def by_constant(operation, x, divisor):
    return te.compute(x.shape, lambda i: operation(x[i], tirx.const(divisor, x.dtype)))


@pytest.fixture(scope="module")
def library():
    module = {}
    for kind in KINDS:
        count = len(operands(kind)[0])
        for name, operation in OPERATIONS.items():
            a, b = (te.placeholder((count,), kind, side) for side in "ab")
            y = divided(operation, a, b)
            symbol = f"{name}_{kind}"
            module[symbol] = te.create_prim_func([a, b, y]).with_attr("global_symbol", symbol)
    return compile_kernels(tvm.IRModule(module), TARGET).jit()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_all_pairs(library, kind, name):
    a, b = operands(kind)
    result = tvm.runtime.tensor(np.zeros(len(a), kind))
    library[f"{name}_{kind}"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), result)
    bits = np.iinfo(kind).bits
    truth = np.array([int(value) % 2**bits for value in expected(name, a, b)], f"uint{bits}").view(kind)
    np.testing.assert_array_equal(result.numpy(), truth)


@pytest.mark.parametrize("kind", ["int8", "int64", *thorough(["int16", "int32"])])
def test_negative_constants(kind):
    """Dividends next to the ends, by constants that TVM would take the opposite of."""
    least = int(np.iinfo(kind).min)
    divisors = [-3, -7, -100, least // 2 - 1, least + 1, least]
    a = np.unique(np.concatenate([operands(kind)[0][:1000], np.arange(least, least + 9, dtype=kind)]))
    a = np.unique(np.concatenate([a, np.array(range(-least - 9, -least), kind)]))
    module = {}
    for divisor in divisors:
        for name, operation in OPERATIONS.items():
            x = te.placeholder((len(a),), kind, "x")
            symbol = f"{name}_{-divisor}"
            y = by_constant(operation, x, divisor)
            module[symbol] = te.create_prim_func([x, y]).with_attr("global_symbol", symbol)
    library = compile_kernels(tvm.IRModule(module), TARGET).jit()
    for divisor in divisors:
        for name in OPERATIONS:
            result = tvm.runtime.tensor(np.zeros(len(a), kind))
            library[f"{name}_{-divisor}"](tvm.runtime.tensor(a), result)
            wanted = expected(name, a, np.full(len(a), divisor, kind)).astype(kind)
            np.testing.assert_array_equal(result.numpy(), wanted, err_msg=f"{name} by {divisor}")
