"""Rounding of float32 to bfloat16 inside kernels."""

import numpy as np

from hetero_tvm.codegen.bf16_vectors import bf16_bits
from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.emit import Kernel


def test_single_numbers_that_are_products():
    """Ties go to even, and NaN stays NaN."""
    x = np.array([1.0, -3.7, 1 + 2**-8, 1 + 3 * 2**-8, np.inf, np.nan, 0.0], np.float32)
    kernel = Kernel()
    with kernel as k:
        source, target = k.argument("X", x.shape), k.argument("Y", x.shape, "uint16")
        with k.serial(len(x)) as i:
            k.store(target, bf16_bits(k.load(source, [i]) * k.splat(2.0, 1), 1), [i])
    out = tvm.runtime.tensor(np.zeros(x.shape, np.uint16))
    compile_kernels(kernel.function, tvm.target.Target("llvm")).jit()["main"](tvm.runtime.tensor(x), out)
    got = (out.numpy().astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(got, np.array([2, -7.40625, 2, 2 + 2**-5, np.inf, np.nan, 0], np.float32))
