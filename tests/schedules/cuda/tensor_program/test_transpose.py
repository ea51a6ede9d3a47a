"""Transposes through shared memory on the GPU."""

import numpy as np

from hetero_tvm.host.tvm import topi
from hetero_tvm.schedules.cuda.tensor_program.transpose import CudaTransposeSpace
from tests.schedules.cuda.programs import check, machine_code, program, tensor
from tests.schedules.cuda.running import MACHINE

SPACE = CudaTransposeSpace()
X, BIAS, LIKE = tensor("x", 45, 36), tensor("b", 45), tensor("w", 36, 45)
IMAGE = tensor("q", 2, 3, 40, 33, dtype="float16")
WHOLE = tensor("e", 2, 32, 64)
CASES = {
    "plain": ([X], topi.transpose(X), lambda x: x.T),
    "in a chain": (
        [X, BIAS, LIKE],
        topi.nn.relu(topi.add(topi.add(topi.transpose(X), BIAS), LIKE)),
        lambda x, b, w: np.maximum(x.T + b + w, 0),
    ),
    "last two": ([IMAGE], topi.transpose(IMAGE, [0, 1, 3, 2]), lambda q: q.transpose(0, 1, 3, 2)),
    "last to front": ([IMAGE], topi.transpose(IMAGE, [3, 0, 1, 2]), lambda q: q.transpose(3, 0, 1, 2)),
    "whole tiles": ([WHOLE], topi.transpose(WHOLE, [0, 2, 1]), lambda x: x.transpose(0, 2, 1)),
}


def test_numbers(emulated):
    check(SPACE, CASES)


def test_every_choice(emulated):
    check(SPACE, {"in a chain": CASES["in a chain"]}, every=True)


def test_compiled_code(compiler):
    x = tensor("x", 64, 512, 768)
    module = machine_code(SPACE, [([x], topi.transpose(x, [0, 2, 1]))])
    ptx = compiler.ptx(module.source, "sm_80")
    assert ptx.count("ld.global") == ptx.count("st.global") == 4  # 32 x 8 threads, 32 x 32 values
    assert ptx.count("bar.sync") == 1


def test_refusals():
    for case in (topi.exp(X), topi.transpose(IMAGE, [0, 2, 1, 3]), topi.sum(X, axis=0)):
        assert SPACE.refuses(program([X if case.ndim < 3 else IMAGE], case), MACHINE)
    narrow = tensor("n", 100, 3)  # three lanes of a tile's 32
    assert SPACE.refuses(program([narrow], topi.transpose(narrow)), MACHINE)
