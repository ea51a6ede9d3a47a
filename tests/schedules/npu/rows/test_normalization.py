import numpy as np
import pytest

from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.schedules.npu.rows.normalization import NpuNormalizationSpace
from tests.schedules.npu.running import assert_close, machine


@pytest.mark.parametrize(
    "op",
    [
        Normalization((3, 7), 100, 1e-5),
        Normalization((1,), 768, 1e-12, shifted=False),
        Normalization((33,), 17, 1e-5, centered=False, shifted=False),
        Normalization((5,), 1, 1e-5),
    ],
    ids=lambda op: op.label,
)
def test_normalize_keeps_its_contract_with_any_rows(op):
    space, mach = NpuNormalizationSpace(), machine()
    for rows in space.knobs(op, mach)[0].choices[:4]:
        assert_close(space, op, mach, point={"rows": rows})


def test_statistics_are_float32():
    """Values around 100 with a spread of 1: a float16 sum of squares would be lost."""
    rng = np.random.default_rng(0)
    op = Normalization((8,), 512, 1e-5)
    x = (100 + rng.standard_normal((8, 512))).astype(np.float16).astype(np.float32)
    assert_close(NpuNormalizationSpace(), op, machine(), [x, np.ones(512, "f4"), np.zeros(512, "f4")])
