"""Instructions as TensorIR: the simulator and LLVM's code for a CPU compute what NumPy does."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.npu.emit import L0A, L0B, L0C, L1, UB, At, Kernel
from tests.plain import PLAIN
from tests.schedules.npu.running import machine, run_function

RNG = np.random.default_rng(0)


def half(*shape):
    return RNG.standard_normal(shape).astype(np.float16)


def plain(*index):
    return index


def both_give(k, arrays, expected, tolerance=0.0):
    """One kernel on the simulator, and compiled for the host."""
    shape, dtype = expected.shape, expected.dtype.name
    simulated = run_function(k.function, machine(), arrays, shape, dtype)
    module = tvm.IRModule({"main": k.function.with_attr("global_symbol", "main")})
    result = tvm.runtime.tensor(np.zeros(shape, dtype))
    tvm.compile(module, target=PLAIN)["main"](*map(tvm.runtime.tensor, arrays), result)
    for actual in (simulated, result.numpy()):
        actual, wanted = actual.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance)


def vector_kernel(inputs, out, work):
    """Tiles of whole operands in the unified buffer; ``work`` says what is done with them."""
    k = Kernel()
    with k:
        arguments = [k.argument(f"X{n}", a.shape, a.dtype.name) for n, a in enumerate(inputs)]
        y = k.argument("Y", out.shape, out.dtype.name)
        tiles = [At(k.alloc(UB, a.shape, a.dtype.name), plain) for a in inputs]
        for array, tile, argument in zip(inputs, tiles, arguments, strict=True):
            k.load(array.shape, tile, At(argument, plain))
        result = At(k.alloc(UB, out.shape, out.dtype.name), plain)
        work(k, result, *tiles)
        k.store(out.shape, At(y, plain), result)
    return k


UNARY = {
    "copy": lambda x: x,
    "neg": np.negative,
    "relu": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "round": np.rint,
    "square": np.square,
}


@pytest.mark.parametrize("op", UNARY)
def test_unary(op):
    x = half(5, 24)
    expected = UNARY[op](x.astype(np.float64) * 0.5 + 0.25).astype(np.float16)
    k = vector_kernel([x], expected, lambda k, out, a: k.unary(op, (5, 24), out, a, mul=0.5, add=0.25))
    both_give(k, [x], expected, 1e-3)


BINARY = {"add": np.add, "div": np.divide, "min": np.minimum, "lt": np.less}


@pytest.mark.parametrize("op, function", BINARY.items())
def test_binary_of_a_tile_and_a_row(op, function):
    x, row = half(5, 24), half(24)
    expected = function(x.astype(np.float64), row).astype(np.float16)

    def work(k, out, a, b):
        k.binary(op, (5, 24), out, a, At(b.buffer, lambda i, j: (j,)))

    both_give(vector_kernel([x, row], expected, work), [x, row], expected, 1e-3)


def test_ternary_and_immediates():
    x, y = half(5, 24), half(5, 24)
    expected = (x.astype(np.float64) * y + 2.0).astype(np.float16)
    k = vector_kernel([x, y], expected, lambda k, out, a, b: k.ternary("muladd", (5, 24), out, a, b, 2.0))
    both_give(k, [x, y], expected, 1e-3)


@pytest.mark.parametrize("op, function", [("sum", np.sum), ("max", np.max), ("min", np.min)])
def test_reductions_by_parts(op, function):
    """Onto what the first half left."""
    x = half(6, 32)
    expected = function(x.astype(np.float64), axis=1).astype(np.float32)

    def work(k, out, a):
        out = At(out.buffer, lambda i, j: (i,))
        for part in (0, 16):
            source = At(a.buffer, lambda i, j, part=part: (i, part + j))
            k.reduce(op, (6, 16), [1], out, source, first=part == 0)

    both_give(vector_kernel([x], expected, work), [x], expected, 1e-3)


def test_padded_loads():
    x = half(3, 16)
    expected = np.pad(x, ((1, 2), (0, 0)), constant_values=1.5)
    k = Kernel()
    with k:
        a, y = k.argument("X", x.shape, "float16"), k.argument("Y", expected.shape, "float16")
        tile = At(k.alloc(UB, expected.shape, "float16"), plain)
        source = At(a, lambda i, j: (i - 1, j))
        k.load_padded(expected.shape, tile, source, lambda i, j: (i >= 1, i < 4), 1.5)
        k.store(expected.shape, At(y, plain), tile)
    both_give(k, [x], expected)


def test_gathered_rows():
    table, indices = half(9, 16), np.array([3, 0, 8, 3], np.int32)
    expected = table[indices]
    k = Kernel()
    with k:
        flat, given = k.argument("T", (9 * 16,), "float16"), k.argument("I", (4,), "int32")
        y = k.argument("Y", expected.shape, "float16")
        index, tile = k.alloc(UB, (4,), "int32"), At(k.alloc(UB, (4, 16), "float16"), plain)
        k.load((4,), At(index, plain), At(given, plain))
        k.gather((4, 16), tile, index, flat, 0, 16, 9)
        k.store((4, 16), At(y, plain), tile)
    both_give(k, [table.reshape(-1), indices], expected)


def test_a_product_in_two_parts_with_bias_scale_and_relu():
    a, b, bias = half(8, 32), half(32, 16), RNG.standard_normal(16).astype(np.float32)
    product = 0.5 * (a.astype(np.float64) @ b.astype(np.float64)) + bias
    expected = np.maximum(product, 0).astype(np.float16)
    k = Kernel()
    with k:
        x, w = k.argument("A", a.shape, "float16"), k.argument("B", b.shape, "float16")
        v, y = k.argument("bias", (16,), "float32"), k.argument("Y", expected.shape, "float16")
        row = k.alloc(UB, (16,), "float32")
        k.load((16,), At(row, plain), At(v, plain))
        c = k.alloc(L0C, (8, 16), "float32")
        with k.loop(2, buffers=2) as r:
            a1, b1 = k.alloc(L1, (8, 16), "float16"), k.alloc(L1, (16, 16), "float16")
            a0, b0 = k.alloc(L0A, (8, 16), "float16"), k.alloc(L0B, (16, 16), "float16")
            k.load((8, 16), At(a1, plain), At(x, lambda i, j: (i, r * 16 + j)))
            k.load((16, 16), At(b1, plain), At(w, lambda i, j: (r * 16 + i, j)))
            k.move((8, 16), At(a0, plain), At(a1, plain))
            k.move((16, 16), At(b0, plain), At(b1, plain))
            sums = At(c, lambda i, j, q: (i, j))
            left, right = At(a0, lambda i, j, q: (i, q)), At(b0, lambda i, j, q: (q, j))
            k.mmad((8, 16, 16), sums, left, right, r == 0)
        out = At(k.alloc(UB, (8, 16), "float16"), plain)
        columns = At(row, lambda i, j: (j,))
        k.move_out((8, 16), out, At(c, plain), scale=0.5, bias=columns, relu=True)
        k.store((8, 16), At(y, plain), out)
    both_give(k, [a, b, bias], expected, 2e-3)
