import pytest

from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.npu.matmul.space import NpuMatmulSpace, WholeMatmulSpace
from tests.schedules.npu.running import machine

SPACE = NpuMatmulSpace()


def test_a_point_that_does_not_fit_is_refused():
    op = Matmul((512,), 512, 512)
    with pytest.raises(ValueError, match="do not fit edge"):
        SPACE.check(op, {"tiles": ("x", 512, 512, 512, 1, 1, 2, 8)}, machine("edge"))


def test_refusals_say_why():
    mach = machine()
    assert SPACE.refuses(Softmax((4,), 8), mach) == "is for matmul, not softmax"
    assert SPACE.refuses(Matmul((4,), 8, 8, ("softsign",)), mach) == "no vector code for softsign"


def test_reductions_in_parts_keep_nothing_on_chip():
    op, mach = Matmul((37,), 72, 2048, ("bias", "residual")), machine()
    split = next(t for t in SPACE.knobs(op, mach)[0].choices if len(t) == 9)
    assert SPACE.on_chip_at(op, {"tiles": split}) == frozenset()
    assert SPACE.on_chip_at(op, SPACE.default(op, mach)) == frozenset({0, 1, 3, 4})
    assert SPACE.family({"tiles": split}) == ("x", split[8])
    whole = WholeMatmulSpace()
    assert all(len(t) == 8 for t in whole.knobs(op, mach)[0].choices)
    with pytest.raises(ValueError, match="do not fit"):
        whole.check(op, {"tiles": split}, mach)
