import pytest

from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.npu.matmul.choices import candidates, ranked
from hetero_tvm.schedules.npu.matmul.cost import estimate
from hetero_tvm.schedules.npu.matmul.space import NpuMatmulSpace
from hetero_tvm.schedules.npu.matmul.tiles import fits
from tests.schedules.npu.running import machine


@pytest.mark.parametrize("preset", ["edge", "datacenter"])
def test_candidates_fit_and_the_best_come_first(preset):
    op, spec = Matmul((77,), 200, 300, ("bias", "gelu_erf")), machine(preset).spec
    assert all(fits(op, t, spec) for t in candidates(op, spec))
    whole = [t for t in ranked(op, spec) if t.parts == 1]
    costs = [estimate(op, t, spec) for t in whole]
    assert costs == sorted(costs) and costs[0] == min(estimate(op, t, spec) for t in candidates(op, spec))


@pytest.mark.parametrize("room", [16 << 10, 64 << 10])
def test_points_for_a_place_fit_there_and_alone(room):
    """A record of one is kept, whatever is held when the model is built."""
    op, mach, held = Matmul((64,), 96, 64, ("bias",)), machine("edge"), frozenset({0})
    space = NpuMatmulSpace()
    found = space.in_place(op, mach, held, room, 4)
    assert 1 < len(found) <= 4 and len({str(point) for point in found}) == len(found)
    for point in found:
        space.check(op, point, mach)
        kept = space.fitted(op, point, mach, held, room)["tiles"]
        assert kept[:6] == point["tiles"][:6] and kept[6] >= point["tiles"][6]
