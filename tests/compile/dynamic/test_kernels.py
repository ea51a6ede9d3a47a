"""A kernel for all sizes: written for it, lifted from what a space emits, or from the contract."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.compile.dynamic.kernels import stated_kernel, written_kernel
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.targets.registry import parse_target

SIZES = ({"s": 40}, {"s": 31}, {"s": 23})
TARGET = parse_target("cpu")


@pytest.mark.parametrize(
    "make",
    [
        lambda s: Normalization((2, s), 20, 1e-5, True, True),  # the space's kernel, lifted
        lambda s: Softmax((2, 3), s),  # its vectors depend on the size: the contract, scheduled plainly
    ],
    ids=["rows", "lanes"],
)
def test_kernels_without_one_of_their_own(make):
    ops = [make(**sizes) for sizes in SIZES]
    space = TARGET.space_for(ops[0])[0]
    point = space.default(ops[0], TARGET.machine)
    functions = [op.workload() for op in ops]
    written = written_kernel(functions, SIZES, frozenset(), space, point, TARGET)
    if written is None:
        kernel = stated_kernel(functions, SIZES, frozenset(), TARGET)
    else:
        kernel, packers = written
        assert not packers
    run = compile_kernels(kernel, TARGET.tvm_target).jit()["main"]
    for size in (1, 5, 40):
        op = make(size)
        arrays = [np.random.default_rng(1).standard_normal(o.shape).astype("float32") for o in op.inputs]
        result = tvm.runtime.tensor(np.zeros(op.output.shape, "float32"))
        run(*map(tvm.runtime.tensor, arrays), result)
        wanted = op.reference(*(a.astype("float64") for a in arrays))
        np.testing.assert_allclose(result.numpy(), wanted, atol=1e-5)  # float32 rounds
