"""The embedding kernel: every choice, tails, broadcast operands, indices at and beyond the ends."""

import numpy as np
import pytest

from hetero_tvm.ops.base import from_json
from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.rows.embedding_norm import EmbeddingNormSpace
from tests.schedules.cpu.running import MACHINES, SWEPT, compiled, covering, point_runners

SPACE = EmbeddingNormSpace()


def arrays_of(op, low=None, high=None):
    generator = np.random.default_rng(5)
    rows = iter(x.rows for x in op.lookups)
    arrays = []
    for operand in op.inputs:
        if operand.dtype.startswith("int"):
            most = next(rows)
            lowest, highest = (-most if low is None else low), (most if high is None else high)
            arrays.append(generator.integers(lowest, highest, operand.shape).astype(operand.dtype))
        else:
            arrays.append(generator.standard_normal(operand.shape, dtype=np.float32))
    return arrays


def check(op, points, machine, arrays):
    truth = op.reference(*(a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays))
    for run in point_runners(SPACE, op, points, machine):
        np.testing.assert_allclose(run(*arrays), truth, rtol=0, atol=4e-6 * np.abs(truth).max())


@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice(machine):
    lanes, seen = machine.lanes, set()
    word, place = Lookup(50, (2, 7)), Lookup(9, (1, 7), "int32")
    for op in (
        EmbeddingNorm((2, 7), 5 * lanes + 3, (word, place, Lookup(2, (2, 1))), (), 1e-5),
        EmbeddingNorm((2, 7), 4 * lanes, (word,), (1, 7, 4 * lanes), 1e-12, shifted=False),
        EmbeddingNorm((2, 7), 1, (word,), (1,), 1e-5),
        EmbeddingNorm((2, 7), lanes - 1, (Lookup(5, (2, 7), factor=2.5),), (2, 1, lanes - 1), 1e-5, False),
        EmbeddingNorm((14,), lanes, (Lookup(3, (14,)),), (14, lanes), 1e-5, False, False),
    ):
        check(op, covering(SPACE, op, machine, seen), machine, arrays_of(op))


def test_indices_beyond_the_table_wrap_around():
    machine = MACHINES["avx2"]
    op = EmbeddingNorm((4, 3), 16, (Lookup(5, (4, 3)), Lookup(3, (1, 3))), (), 1e-5)
    check(op, [SPACE.default(op, machine)], machine, arrays_of(op, -(2**40), 2**40))


def test_the_plain_form_computes_the_same():
    op = EmbeddingNorm((2, 3), 8, (Lookup(5, (2, 3)), Lookup(4, (1, 3), factor=0.5)), (3, 8), 1e-5)
    arrays = arrays_of(op)
    (run,) = compiled([(op.workload(), op.output.shape)])
    np.testing.assert_allclose(run(*arrays), op.reference(*arrays), rtol=1e-5, atol=1e-5)


def test_json_and_cost():
    op = EmbeddingNorm((2, 3), 8, (Lookup(5000, (2, 3)), Lookup(4, (1, 3), "int32", 0.5)), (3, 8), 1e-5)
    assert from_json(op.to_json()) == op and hash(op) == hash(from_json(op.to_json()))
    assert op.nbytes < 5000 * 8 * 4, "only rows that are looked up count"


def test_refusals():
    machine = MACHINES["avx2"]
    assert SPACE.refuses(Softmax((3,), 4), machine) == "not an embedding with its norm"
    huge = EmbeddingNorm((2,), 1024, (Lookup(2**21, (2,)),), (), 1e-5)
    assert "2**31" in SPACE.refuses(huge, machine)
    empty = EmbeddingNorm((0,), 8, (Lookup(5, (0,)),), (), 1e-5)
    assert SPACE.refuses(empty, machine) == "an extent is zero"
