import pytest

from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.npu.matmul.space import NpuMatmulSpace
from tests.schedules.npu.running import assert_close, machine

SPACE = NpuMatmulSpace()


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [("bias", "residual"), ("gelu_erf",), ("bias", "relu", "residual")])
def test_reductions_in_parts_give_the_contract(steps):
    """Sums wait in float16 between the parts; sizes that no tile divides."""
    op, mach = Matmul((37,), 72, 2048, steps), machine("edge")
    split = [t for t in SPACE.knobs(op, mach)[0].choices if len(t) == 9]
    assert {t[8] for t in split} >= {2, 4}
    for parts in {t[8] for t in split}:
        tiles = next(t for t in split if t[8] == parts)
        SPACE.check(op, {"tiles": tiles}, mach)
        assert_close(SPACE, op, mach, point={"tiles": tiles})
    assert len(SPACE.default(op, mach)["tiles"]) == 8
