"""Code generation: hoisted loads pass nothing that they conflict with; what has no code is refused."""

import pytest

from hetero_tvm.errors import BuildError
from hetero_tvm.host.tvm import tirx
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.targets.npu.isa import instructions as isa
from hetero_tvm.targets.npu.regions.codegen import generate, hoist_loads
from hetero_tvm.targets.npu.spaces import NPU_SPACES
from tests.schedules.npu.running import machine

MACHINE = machine("edge")
OPS = [
    Matmul((65,), 130, 300, ("bias", "residual", "gelu_erf")),
    Conv2d(1, 20, 30, 30, 24, (3, 3), (2, 2), (1, 1, 1, 1), epilogue=("bias", "silu")),
]


def conflict(one, other):
    """Whether two instructions touch a common byte of a memory, and one of them writes it."""
    return any(
        where == other_where and (write or other_write) and low < other_high and other_low < high
        for where, low, high, write, *_ in one.accesses
        for other_where, other_low, other_high, other_write, *_ in other.accesses
    )


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.kind)
def test_hoisted_loads_pass_nothing_that_they_conflict_with(op):
    space = next(s for s in NPU_SPACES if s.refuses(op, MACHINE) is None)
    program = generate(space.emit(op, space.default(op, MACHINE), MACHINE), MACHINE.spec)
    before = list(program.instrs)
    constant = [False] + [True] * (program.parameters - 2) + [False]
    hoist_loads(program, constant, depth=400)
    position = {id(instr): n for n, instr in enumerate(program.instrs)}
    assert sorted(position) == sorted(map(id, before)) and 0 < program.front < 400
    for instr in program.instrs[: program.front]:
        assert isa.QUEUES[instr.queue] == "dma_in" and constant[instr.reference[0]]
    for n, late in enumerate(before[:400]):
        for early in before[:n]:
            if position[id(late)] < position[id(early)]:
                assert not conflict(early, late)


def copy_kernel(index):
    """A kernel that copies 16 elements from ``index(i)`` on to the unified buffer."""
    k = Kernel()
    with k:
        x, y = k.argument("X", (64,), "float16"), k.argument("Y", (16,), "float16", UB)
        k.load((16,), At(y, lambda i: (i,)), At(x, lambda i: (index(i),)))
    return k.function


def test_an_access_that_is_not_affine_is_refused():
    assert len(generate(copy_kernel(lambda i: 3 * i + 1), MACHINE.spec).instrs) == 1
    with pytest.raises(BuildError, match="access to X is not affine"):
        generate(copy_kernel(lambda i: tirx.Min(i, 2)), MACHINE.spec)
    with pytest.raises(BuildError, match="address or extent of an NPU kernel contains Mod"):
        generate(copy_kernel(lambda i: tirx.Mod(i, 7)), MACHINE.spec)
