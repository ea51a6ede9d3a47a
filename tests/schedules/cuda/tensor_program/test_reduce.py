"""Reductions on the GPU: axes, dtypes, splits, and the steps around them."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import topi
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.schedules.cuda.tensor_program.reduce import CudaReduceSpace
from hetero_tvm.schedules.cuda.tensor_program.reduction import reduction_of
from hetero_tvm.schedules.nests.program import program_nests
from tests.schedules.cuda.programs import check, machine_code, program, tensor
from tests.schedules.cuda.running import MACHINE, check_points, compiled
from tests.schedules.cuda.spaces import body_of

SPACE = CudaReduceSpace()
BLOCKED = ("NCHW8c", "NCHW8c")
X, ODD, FOUR = tensor("x", 5, 136), tensor("o", 7, 37), tensor("s", 3, 2, 5, 64)
HALF, LONG, INT = (
    tensor("h", 2, 40, 32, dtype="float16"),
    tensor("l", 6, 50, dtype="int64"),
    tensor("i", 6, 50),
)
FACTOR, BIAS, VECTOR = tensor("f", 136), tensor("b", 5), tensor("v", 3000)
# fmt: off
CASES = {
    "rows": ([X], topi.sum(X, axis=1), lambda x: x.sum(1)),
    "columns": ([X], topi.sum(X, axis=0), lambda x: x.sum(0)),
    "mean of all": ([X], topi.sum(X, axis=None) / 680.0, lambda x: x.mean()),
    "maxima": ([X], topi.max(X, axis=1), lambda x: x.max(1)),
    "minima of columns": ([ODD], topi.min(ODD, axis=0), lambda x: x.min(0)),
    "odd rows": ([ODD], topi.sum(ODD, axis=1), lambda x: x.sum(1)),
    "product": ([ODD], topi.prod(ODD, axis=1), lambda x: x.prod(1)),
    "kept axis": ([X], topi.sum(X, axis=1, keepdims=True), lambda x: x.sum(1, keepdims=True)),
    "middle axes": ([FOUR], topi.sum(FOUR, axis=[1, 2]), lambda x: x.sum((1, 2))),
    "first and last": ([FOUR], topi.sum(FOUR, axis=[0, 3]), lambda x: x.sum((0, 3))),
    "half": (
        [HALF], topi.sum(HALF, axis=2), lambda x: x.astype("float32").sum(2).astype("float16"),
    ),
    "half columns": ([HALF], topi.max(HALF, axis=1), lambda x: x.max(1)),
    "int64": ([LONG], topi.sum(LONG, axis=1), lambda x: x.sum(1)),
    "around": (
        [X, FACTOR, BIAS], topi.nn.relu(topi.add(topi.sum(topi.multiply(X, FACTOR), axis=1), BIAS)),
        lambda x, f, b: np.maximum((x * f).sum(1) + b, 0),
    ),
    "transposed": ([FOUR], topi.transpose(topi.sum(FOUR, axis=2)), lambda x: x.sum(2).T),
    "vector": ([VECTOR], topi.sum(topi.multiply(VECTOR, VECTOR), axis=0), lambda x: (x * x).sum()),
}
# fmt: on


@pytest.mark.thorough
def test_numbers(emulated):
    check(SPACE, CASES, tolerance=2e-5)


def test_extremes_of_infinities(emulated):
    ops = [program([x], reduce(x, axis=1)) for x in (ODD, HALF) for reduce in (topi.max, topi.min)]
    calls = compiled([SPACE.emit(op, SPACE.default(op, MACHINE), MACHINE) for op in ops])
    for op, call, (fill, extreme) in zip(ops, calls, 2 * [(-np.inf, np.max), (np.inf, np.min)], strict=True):
        x = np.full(op.inputs[0].shape, fill, op.inputs[0].dtype)
        x[1, 2] = 5
        (result,) = call([x], [np.zeros(op.output.shape, op.output.dtype)])
        assert np.array_equal(result, extreme(x, axis=1))


# fmt: off
POOLS = [
    Pool2d(2, 16, 9, 7, (3, 3), (2, 2), (1, 1, 1, 1), (5, 4), "max", False, *BLOCKED),
    Pool2d(1, 8, 6, 5, (3, 2), (1, 2), (1, 0, 1, 1), (6, 3), "avg", True, *BLOCKED),
    Pool2d(2, 24, 7, 7, (7, 7), (1, 1), (0, 0, 0, 0), (1, 1), "avg", False, *BLOCKED),
    Pool2d(1, 16, 8, 8, (2, 2), (2, 2), (0, 0, 0, 0), (4, 4), "max", False, "NCHW", "NCHW8c"),
]
# fmt: on


def test_pooling_of_blocks_of_channels(emulated):
    """Nine sums of float32 in another order than float64: 2**-20 is 8 roundings."""
    assert all(SPACE.refuses(op, MACHINE) is None for op in POOLS)
    check_points(SPACE, [(op, SPACE.default(op, MACHINE)) for op in POOLS], MACHINE, lambda op: 2.0**-20)
    whole = reduction_of(program_nests(POOLS[2]))
    assert (whole.rows, whole.width) == (False, 4)  # 16 bytes of neighbouring channels


def test_channels_that_fill_no_block_are_left_to_the_rules():
    padded = Pool2d(1, 12, 8, 8, (2, 2), (2, 2), (0, 0, 0, 0), (4, 4), "max", False, *BLOCKED)
    assert "another order" in SPACE.refuses(padded, MACHINE)


@pytest.mark.exhaustive
def test_every_choice(emulated):
    tall = tensor("t", 300, 33)
    cases = {"maxima": CASES["maxima"], "tall": ([tall], topi.sum(tall, axis=0), lambda x: x.sum(0))}
    check(SPACE, cases, every=True, tolerance=2e-5)


@pytest.mark.parametrize(
    ("name", "rows", "width"),
    [
        ("rows", True, 4),
        ("columns", False, 4),
        ("odd rows", True, 1),
        ("minima of columns", False, 1),
        ("middle axes", False, 4),
        ("first and last", True, 4),
        ("half", True, 8),
        ("int64", True, 2),
    ],
)
def test_how_memory_is_read(name, rows, width):
    arguments, result, _ = CASES[name]
    found = reduction_of(program_nests(program(arguments, result)))
    assert (found.rows, found.width) == (rows, width)


def test_long_reductions_of_few_results_are_split():
    x = tensor("x", 1 << 22)
    assert SPACE.default(program([x], topi.sum(x, axis=0)), MACHINE)["block"][-1] > 1
    y = tensor("y", 8192, 1024)
    assert SPACE.default(program([y], topi.sum(y, axis=1)), MACHINE)["block"][-1] == 1


def test_compiled_code(compiler):
    x, y = tensor("x", 8192, 1024), tensor("y", 1 << 22)
    module = machine_code(SPACE, [([x], topi.sum(x, axis=a)) for a in (0, 1)] + [([y], topi.max(y, axis=0))])
    ptx = compiler.ptx(module.source, "sm_80")
    for kernel in range(3):
        body = body_of(ptx, f"f{kernel}_kernel")
        assert "ld.global.nc.v4.f32" in body and body.count("ld.global") == body.count("ld.global.nc.v4")
    assert "f2_kernel_1" in module.launches


def test_refusals():
    def reason(arguments, result):
        return SPACE.refuses(program(arguments, result), MACHINE)

    assert "not one reduction" in reason([X], topi.exp(X))
    assert reason([X], topi.nn.softmax(X)) and reason([X], topi.argmax(X, axis=1))


def test_products_are_left_to_tiles():
    for op in (Matmul((8,), 32, 64), Conv2d(1, 8, 9, 9, 8, (3, 3), padding=(1, 1, 1, 1))):
        assert SPACE.refuses(op, MACHINE)
