"""Places of extremes on the GPU: axes, ties, NaN and infinities, dtypes, threads that share a row."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import topi
from hetero_tvm.schedules.cuda.tensor_program.arg_reduce import CudaArgReduceSpace
from hetero_tvm.schedules.cuda.tensor_program.reduce import CudaReduceSpace
from tests.schedules.cuda.programs import check, machine_code, program, tensor
from tests.schedules.cuda.running import MACHINE, compiled

SPACE = CudaArgReduceSpace()
X, LONG, IMAGE = tensor("x", 5, 37), tensor("r", 2, 1000), tensor("m", 2, 3, 4, 5)
HALF, INT = tensor("h", 3, 67, dtype="float16"), tensor("i", 4, 50, dtype="int32")
CASES = {
    "rows": ([X], topi.argmax(X, axis=1), lambda x: x.argmax(1)),
    "smallest": ([X], topi.argmin(X, axis=1, keepdims=True), lambda x: x.argmin(1)[:, None]),
    "columns": ([X], topi.argmax(X, axis=0), lambda x: x.argmax(0)),
    "long rows": ([LONG], topi.argmin(LONG, axis=1), lambda x: x.argmin(1)),
    "channels": ([IMAGE], topi.argmax(IMAGE, axis=1), lambda x: x.argmax(1)),
    "of all": ([IMAGE], topi.argmax(IMAGE, axis=None), lambda x: x.argmax()),
    "half": ([HALF], topi.argmax(HALF, axis=1), lambda x: x.argmax(1)),
    "ties of integers": ([INT], topi.argmax(INT, axis=1), lambda x: x.argmax(1)),
    "of a chain": (
        [X],
        topi.cast(topi.argmax(topi.tanh(X), axis=1), "int64"),
        lambda x: np.tanh(x).argmax(1),
    ),
}


@pytest.mark.thorough
def test_numbers(emulated):
    check(SPACE, CASES)
    check(SPACE, {name: CASES[name] for name in ("long rows", "ties of integers")}, every=True)


@pytest.mark.parametrize("make", [topi.argmax, topi.argmin])
def test_ties_infinities_and_nan(make, emulated):
    x = np.zeros((6, 64), "float32")
    x[1], x[2] = -np.inf, np.inf
    x[3, [9, 40]] = np.nan
    x[4, [63, 5]] = 3
    x[5, [33, 34]] = -3
    rows = tensor("x", *x.shape)
    op = program([rows], make(rows, axis=1))
    point = {"threads": 32}
    (call,) = compiled([SPACE.emit(op, point, MACHINE)])
    (result,) = call([x], [np.full(6, -7, op.output.dtype)])
    assert np.array_equal(result, getattr(np, make.__name__)(x, 1))


def test_the_last_of_equal_values_is_another_operator():
    op = program([X], topi.argmax(X, axis=1, select_last_index=True))
    assert SPACE.refuses(op, MACHINE)
    assert "place and value" in CudaReduceSpace().refuses(program(*CASES["rows"][:2]), MACHINE)
    assert "argmax" in SPACE.refuses(program([X], topi.sum(X, axis=1)), MACHINE)


def test_machine_code(compiler):
    wide = tensor("w", 8, 50257, dtype="float16")
    op = program([wide], topi.argmax(wide, axis=1))
    assert SPACE.default(op, MACHINE) == {"threads": 1024}
    machine_code(SPACE, [([wide], topi.argmax(wide, axis=1)), CASES["channels"][:2]])
