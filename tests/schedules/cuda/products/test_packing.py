"""Packed constants of products: rounding to tf32, and shapes that architectures share."""

import numpy as np

from hetero_tvm.machines.gpu import MODELS
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cuda.products.matmul import CudaMatmulSpace
from hetero_tvm.schedules.cuda.products.packing import round_to_tf32

SPACE = CudaMatmulSpace()


def test_tf32_rounds_to_nearest():
    values = np.array([1.0, 1 + 2.0**-11, 1 + 2.0**-12, -1 - 2.0**-11, np.inf, np.nan, 3.4e38], "float32")
    wanted = np.array([1.0, 1 + 2.0**-10, 1.0, -1 - 2.0**-10, np.inf, np.nan], "float32")
    np.testing.assert_array_equal(round_to_tf32(values)[:6], wanted)


def test_architectures_share_packed_weights():
    """The output layer of a language model must not be in the library once for each of its tiles."""
    w = np.zeros((64, 1000), "float16")
    op = Matmul((128,), 1000, 64, (), "float16")
    shapes = set()
    for arch in ("sm_80", "sm_86", "sm_90", "sm_90a"):
        for choice in SPACE.knobs(op, MODELS[arch])[0].choices:
            point = {"tile": choice, "splits": 1}
            shapes.add(SPACE.pack(op, point, MODELS[arch])[1](w).shape)
    assert shapes == {(1024, 64)}
