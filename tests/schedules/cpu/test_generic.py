"""The schedule for any kernel: right for a broad list of operators, and never a plain loop nest."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import te, tirx, topi, tvm
from hetero_tvm.schedules.cpu import generic
from hetero_tvm.schedules.emit import Kernel
from tests.schedules.cpu.running import MACHINES, TARGET, compile_kernels

AVX2 = MACHINES["avx2"]

# name -> (compute, shapes of the inputs); an integer input is marked by a dtype
# fmt: off
CASES = {
    "add_same": (topi.add, [(3, 40), (3, 40)]),
    "add_row": (topi.add, [(3, 5, 40), (40,)]),
    "add_column": (topi.multiply, [(12, 40), (12, 1)]),
    "add_scalar": (topi.subtract, [(7, 33), ()]),
    "broadcast_both": (topi.divide, [(4, 1, 24), (1, 9, 24)]),
    "chain": (lambda x: topi.tanh(topi.exp(topi.negative(x)) + topi.sqrt(topi.abs(x))), [(5, 48)]),
    "scalar": (lambda x: topi.exp(x), [()]),
    "one_value": (lambda x: topi.sigmoid(x), [(1, 1, 1)]),
    "prime_length": (lambda x: topi.erf(x), [(10007,)]),
    "empty": (lambda x: topi.exp(x), [(0, 5)]),
    "transpose": (lambda x: topi.transpose(x, [0, 2, 1]), [(2, 17, 24)]),
    "transpose_4d": (lambda x: topi.transpose(x, [0, 2, 1, 3]), [(2, 6, 5, 8)]),
    "reshape": (lambda x: topi.reshape(x, (6, 20)), [(2, 3, 20)]),
    "sum_last": (lambda x: topi.sum(x, -1), [(6, 37)]),
    "sum_last_keep": (lambda x: topi.sum(x, -1, keepdims=True), [(6, 64)]),
    "sum_middle": (lambda x: topi.sum(x, 1), [(3, 19, 32)]),
    "sum_first": (lambda x: topi.sum(x, 0), [(19, 6, 16)]),
    "sum_two": (lambda x: topi.sum(x, (2, 3)), [(2, 8, 7, 7)]),
    "sum_all": (lambda x: topi.sum(x), [(13, 16)]),
    "max_last": (lambda x: topi.max(x, -1), [(9, 48)]),
    "min_first": (lambda x: topi.min(x, 0), [(9, 48)]),
    "product": (lambda x: topi.prod(x, 1), [(3, 5, 8)]),
    "mean_of_squares": (lambda x: topi.sum(topi.multiply(x, x), -1) * tirx.const(0.1, "float32"), [(5, 32)]),
    "argmax_last": (lambda x: topi.argmax(x, -1), [(9, 33)]),
    "argmax_first": (lambda x: topi.argmax(x, 0), [(9, 32)]),
    "argmin_all": (lambda x: topi.argmin(x, 1), [(4, 64)]),
    "softmax": (lambda x: topi.nn.softmax(x, 1), [(3, 9, 16)]),
    "log_softmax": (lambda x: topi.nn.log_softmax(x), [(6, 40)]),
    "max_pool": (
        lambda x: topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max"), [(1, 8, 15, 15)],
    ),
    "avg_pool": (
        lambda x: topi.nn.pool2d(x, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "avg"), [(2, 4, 16, 16)],
    ),
    "global_pool": (lambda x: topi.nn.global_pool(x, "avg"), [(2, 6, 7, 7)]),
    "grouped_conv": (
        lambda x, w: topi.nn.conv(x, w, 1, 1, 1, 2, "NCHW", "OIHW", "float32"), [(1, 8, 9, 8), (6, 4, 3, 3)],
    ),
    "conv1d": (lambda x, w: topi.nn.conv1d(x, w, 1, 1, 1), [(1, 5, 24), (7, 5, 3)]),
    "matmul": (lambda x, y: topi.matmul(x, y), [(13, 19), (19, 24)]),
    "matmul_parallel": (lambda x, y: topi.matmul(x, y), [(64, 40), (40, 48)]),
    "sum_first_parallel": (lambda x: topi.sum(x, 0), [(128, 128)]),
    "long_and_odd": (lambda x: topi.exp(x), [(1, 65537)]),
    "matmul_transposed": (lambda x, y: topi.matmul(x, y, False, True), [(13, 32), (10, 32)]),
    "batch_matmul": (lambda x, y: topi.nn.batch_matmul(x, y, transpose_b=False), [(3, 7, 9), (3, 9, 16)]),
    "vector_matrix": (lambda x, y: topi.matmul(x, y), [(1, 64), (64, 1)]),
    "concatenate": (lambda x, y: topi.concatenate([x, y], 1), [(3, 5, 8), (3, 2, 8)]),
    "stack": (lambda x, y: topi.stack([x, y], 0), [(4, 8), (4, 8)]),
    "gather": (lambda x, i: topi.take(x, i, axis=0, mode="clip"), [(11, 16), ("int64", (2, 5))]),
    "one_hot_cast": (lambda i: topi.cast(topi.greater(i, tirx.const(2, "int64")), "float32"),
                     [("int64", (6, 16))]),
    "cast": (lambda x: topi.cast(x, "int32"), [(6, 40)]),
    "to_double": (lambda x: topi.exp(topi.cast(x, "float64")), [(6, 40)]),
    "slice": (lambda x: topi.strided_slice(x, [1, 3], [5, 31], [2, 1]), [(6, 40)]),
    "pad": (lambda x: topi.nn.pad(x, [0, 1, 2], [0, 3, 4]), [(2, 5, 16)]),
    "tile": (lambda x: topi.tile(x, (2, 3)), [(4, 8)]),
    "where": (lambda c, x, y: topi.where(c, x, y), [("bool", (1, 40)), (6, 40), (6, 40)]),
    "power": (lambda x: topi.power(topi.abs(x), 3.0), [(6, 40)]),
    "flipped_relu": (lambda x: topi.nn.relu(topi.flip(x, 1)), [(6, 40)]),
}
# fmt: on


def plain(compute, inputs):
    """Each input is a shape, or (dtype, shape)."""
    typed = [x if x and isinstance(x[0], str) else ("float32", x) for x in inputs]
    tensors = [te.placeholder(shape, dtype) for dtype, shape in typed]
    return te.create_prim_func([*tensors, compute(*tensors)])


def array(shape, dtype, generator):
    if "float" in dtype:
        return generator.standard_normal(shape).astype(dtype)
    return generator.integers(0, 2 if dtype == "bool" else 8, shape).astype(dtype)


@pytest.fixture(scope="module")
def libraries():
    """All cases as they are, and scheduled, each compiled in one go."""
    cases = {name: plain(*case) for name, case in CASES.items()}
    scheduled = {name: generic.schedule(function, AVX2) for name, function in cases.items()}

    def compile_all(functions):
        module = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()})
        return compile_kernels(module, TARGET).jit()

    return cases, scheduled, compile_all(cases), compile_all(scheduled)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_the_scheduled_kernel_computes_the_same(name, libraries):
    cases, scheduled, before, after = libraries
    assert len(scheduled[name].params) == len(cases[name].params)
    buffers = cases[name].params
    generator = np.random.default_rng(0)
    arrays = [array([int(e) for e in b.shape], str(b.dtype), generator) for b in buffers]
    results = []
    for library in (before, after):
        tensors = [tvm.runtime.tensor(a) for a in arrays[:-1]]
        tensors.append(tvm.runtime.tensor(np.full_like(arrays[-1], 3)))
        library[name](*tensors)
        results.append(tensors[-1].numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=2e-5, atol=2e-5)


PARALLEL, VECTORIZED = "T.parallel", "T.vectorized"


def kinds(function):
    return {kind for kind in (PARALLEL, VECTORIZED) if kind in str(function)}


BIG = {
    "add": (topi.add, [(64, 384), (64, 384)]),
    "gelu_like": (lambda x: topi.erf(x) * x, [(1, 128, 1536)]),
    "bias": (topi.add, [(2, 64, 384), (384,)]),
    "transpose": (lambda x: topi.transpose(x, [0, 2, 1, 3]), [(1, 128, 12, 64)]),
    "one_axis": (lambda x: topi.exp(x), [(65536,)]),
    "sum_last": (lambda x: topi.sum(x, -1), [(128, 384)]),
    "sum_first": (lambda x: topi.sum(x, 0), [(128, 384)]),
    "matmul": (lambda x, y: topi.matmul(x, y), [(64, 64), (64, 64)]),
    "pool": (lambda x: topi.nn.global_pool(x, "avg"), [(1, 64, 16, 16)]),
}


@pytest.mark.parametrize("name", BIG)
def test_big_kernels_are_parallel_and_vectorised(name):
    assert {PARALLEL, VECTORIZED} <= kinds(generic.schedule(plain(*BIG[name]), AVX2))


@pytest.mark.parametrize("shape", [(65537,), (1, 65537), (197, 197), (331, 3, 67)])
def test_odd_extents_are_shared_among_threads(shape):
    assert PARALLEL in kinds(generic.schedule(plain(lambda x: topi.exp(x), [shape]), AVX2))


def test_small_kernels_wake_no_thread():
    assert PARALLEL not in kinds(generic.schedule(plain(topi.add, [(8, 16), (8, 16)]), AVX2))


def test_attributes_and_name_are_kept():
    function = plain(topi.add, [(8, 16), (8, 16)]).with_attr({"mine": "yes", "global_symbol": "me"})
    result = generic.schedule(function, AVX2)
    assert str(result.attrs["mine"]) == "yes"
    unnamed = generic.schedule(function.without_attr("global_symbol"), AVX2)
    assert "global_symbol" not in unnamed.attrs


def test_hand_written_loops_come_back_as_they_are():
    k = Kernel()
    with k:
        x, y = k.argument("x", (16,)), k.argument("y", (16,))
        with k.serial(16) as i:
            k.store(y, k.load(x, [i]), [i])
    assert generic.schedule(k.function, AVX2).same_as(k.function)


def test_elementwise_producers_are_inlined():
    function = plain(lambda x: topi.tanh(topi.exp(x) + topi.sqrt(x)), [(64, 384)])
    assert "alloc_buffer" not in str(generic.schedule(function, AVX2))
