"""Addition of a residual and norm on the emulated GPU."""

import numpy as np
import pytest

from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.schedules.cuda.rows.add_norm import CudaAddNormSpace
from tests.schedules.cuda.rows.cases import SINGLE
from tests.schedules.cuda.running import MACHINE, compiled
from tests.schedules.cuda.spaces import (
    random_arrays,
)
from tests.selection import thorough

SKIP = CudaAddNormSpace()


@pytest.mark.parametrize("kept", [*thorough([True]), False])
def test_residual_and_norm(kept, emulated):
    ops = [
        AddNorm((2, 5), 36, (2, 5, 36), 1e-5, kept=kept),
        AddNorm((3, 4), 7, (4, 7), 1e-6, False, False, kept),
        AddNorm((1, 3), 260, (3, 260), 1e-5, kept=kept),
    ]
    functions = [SKIP.emit(op, SKIP.default(op, MACHINE), MACHINE) for op in ops]
    for op, call in zip(ops, compiled(functions), strict=True):
        arrays = random_arrays(op)
        results = call(arrays, [np.full(o.shape, np.nan, o.dtype) for o in op.outputs])
        truth = op.reference(*(a.astype("float64") for a in arrays))
        for result, expected in zip(results, truth if kept else [truth], strict=True):
            assert np.abs(result - expected).max() <= SINGLE * np.abs(expected).max()
