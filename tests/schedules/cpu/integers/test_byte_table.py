"""Tables of bytes: every way to look up, every choice, tails, and sizes known at run time."""

import numpy as np
import pytest

from hetero_tvm import host
from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.ops.integers.byte_table import ByteTable
from hetero_tvm.schedules.cpu.integers.byte_table import ByteTableSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import TARGET, covering
from tests.schedules.cpu.symbolic.helpers import LENGTHS, witnesses_of
from tests.schedules.cpu.test_dots import machine

SPACE = ByteTableSpace()
WAYS = {
    "permutations": (16, "avx512bw", "avx512vbmi"),
    "shuffles of 64": (16, "avx512bw"),
    "shuffles of 32": (8, "avx2"),
    "shuffles of 16": (4, "ssse3"),
    "one by one": (4,),
}
"""Way to look up -> lanes and features of a machine that takes it."""


@pytest.fixture(params=WAYS)
def here(request):
    lanes, *features = WAYS[request.param]
    if missing := [name for name in features if name not in host.cpu_features()]:
        pytest.skip(f"this CPU has no {', '.join(missing)}")
    return machine(lanes, *features)


def check(op, run):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, op.shape).astype(np.uint8)
    x.reshape(-1)[:256] = np.arange(256)[: x.size]
    arrays = [x.view(op.x_dtype), rng.permutation(256).astype(np.uint8).view(op.y_dtype)]
    result = tvm.runtime.tensor(np.full(op.shape, 7).astype(op.y_dtype))
    run(*(tvm.runtime.tensor(a) for a in arrays), result)
    np.testing.assert_array_equal(result.numpy(), op.reference(*arrays), err_msg=str(op))


def test_every_choice_and_every_tail(here):
    seen: set = set()
    for shape, dtypes in (
        ((1,), ("int8", "uint8")),
        ((63,), ("uint8", "int8")),
        ((7, 64), ("int8", "int8")),
        ((3, 5, 73), ("uint8", "uint8")),
        ((2, 16411), ("int8", "int8")),
    ):
        op = ByteTable(shape, *dtypes)
        assert SPACE.refuses(op, here) is None
        for point in covering(SPACE, op, here, seen):
            check(op, compile_kernels(SPACE.emit(op, point, here), TARGET).jit()["main"])


def test_any_size(here):
    def make(b, s):
        return ByteTable((b, s, 173), "int8", "uint8")

    witnesses = witnesses_of(make)
    function = kernels.emit(witnesses, SPACE, SPACE.default(witnesses.largest, here), here)
    run = compile_kernels(function, TARGET).jit()["main"]
    for sizes in LENGTHS:
        check(make(**sizes), run)


def test_refusals():
    here = machine(8, "avx2")
    assert SPACE.refuses(Elementwise((3,), "silu"), here) == "not a function of one byte"
    assert SPACE.refuses(ByteTable((0, 3)), here) == "an extent is zero"
