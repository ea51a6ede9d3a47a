"""The kernels at the ends of a loop."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.ops.loops import rounds as loop
from tests.plain import PLAIN
from tests.selection import thorough

STATES = [((2, 3), "float32"), ((), "int64"), ((0, 4), "bool")]
ROWS = [((3, 2), "float32"), ((3,), "bool")]


def run(function, *arrays):
    """Call a kernel with arrays, of which it changes what it writes to."""
    module = tvm.IRModule({"kernel": function.with_attr("global_symbol", "kernel")})
    tensors = [tvm.runtime.tensor(np.asarray(array)) for array in arrays]
    tvm.compile(module, PLAIN)["kernel"](*tensors)
    return [tensor.numpy() for tensor in tensors]


def held():
    states = [np.zeros(shape, dtype) for shape, dtype in STATES]
    rows = [np.zeros(shape, dtype) for shape, dtype in ROWS]
    return [*states, *rows, np.array(False), np.array(7)]


@pytest.mark.parametrize("begin, limit, runs", [(True, 1, True), (True, 0, False), (False, 5, False)])
def test_enter(begin, limit, runs):
    given = [np.arange(6, dtype="float32").reshape(2, 3), np.array(4), np.zeros((0, 4), bool)]
    found = run(loop.enter("l", STATES, ROWS), *given, np.array(begin), np.array(limit), *held())[5:]
    for state, expected in zip(found, given, strict=False):
        np.testing.assert_array_equal(state, expected)
    assert found[-2] == runs and found[-1] == 0


@pytest.mark.parametrize(
    "goes_on, limit, runs", [(True, 9, True), (True, 3, False), *thorough([(False, 9, False)])]
)
def test_step(goes_on, limit, runs):
    new = [np.ones((2, 3), "float32"), np.array(5), np.zeros((0, 4), bool)]
    rows = [np.array([8, 9], "float32"), np.array(True)]
    before = held()
    before[-1] = np.array(2)
    token = np.ones(1, "int32")
    given = [*new, *rows, np.array(goes_on), *before, np.array(limit), token]
    found = run(loop.step("l", STATES, ROWS), *given)[len(new) + len(rows) + 1 :]
    np.testing.assert_array_equal(found[0], new[0])
    assert found[1] == 5
    np.testing.assert_array_equal(found[3], [[0, 0], [0, 0], [8, 9]])
    np.testing.assert_array_equal(found[4], [False, False, True])
    assert found[5] == runs and found[6] == 3


def test_leave_and_names():
    results = [((2,), "float32"), ((), "bool")]
    function = loop.leave("a loop", results)
    assert loop.loop_of(function) == ("a loop", "leave")
    assert loop.loop_of(relax.transform) is None
    token, values = np.zeros(1, "int32"), [np.array([1, 2], "float32"), np.array(True)]
    found = run(function, token, *values, np.zeros(2, "float32"), np.array(False))[3:]
    for ours, expected in zip(found, values, strict=True):
        np.testing.assert_array_equal(ours, expected)
