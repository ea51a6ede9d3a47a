"""Products of 8-bit matrices: exact sums, every way out, every way to multiply."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.integers.dynamic_matmul import quantized_weights
from hetero_tvm.ops.integers.quantized import QuantConv2d, QuantMatmul
from hetero_tvm.schedules.cpu.integers.quant_matmul import QuantMatmulSpace
from tests.schedules.cpu.integers.test_dynamic_matmul import WAYS
from tests.schedules.cpu.running import TARGET, covering, prefetches_beyond
from tests.schedules.cpu.test_dots import machine

SPACE = QuantMatmulSpace()


def arrays_of(op, seed=0, extreme=False):
    """Operands over the whole range of their types; with ``extreme`` only its ends."""
    rng = np.random.default_rng(seed)
    limits = np.iinfo(op.x_dtype)
    x = rng.integers(limits.min, limits.max + 1, op.inputs[0].shape)
    if extreme:
        x = np.where(x > x.mean(), limits.max, limits.min)
    w, _ = quantized_weights(rng.standard_normal((op.k, op.n)).astype("float32"), op.pairs_safe)
    if extreme:
        large = 128 // 2**op.pairs_safe
        w = np.where(w > 0, large - (not op.pairs_safe), -large)
    bias = rng.integers(-1000, 1000, op.n).astype("int32")
    scale = rng.uniform(1e-4, 2e-3, op.n).astype("float32")
    return [x.astype(op.x_dtype), w.astype("int8"), bias, scale][: len(op.inputs)]


def check(op, points, here, **options):
    arrays = arrays_of(op, **options)
    wanted = op.reference(*arrays)
    for point in points:
        function = SPACE.emit(op, point, here).with_attr("global_symbol", "f")
        library = compile_kernels(tvm.IRModule({"f": function}), TARGET).jit()
        result = tvm.runtime.tensor(np.full(op.output.shape, 7).astype(op.out))
        given = [SPACE.pack(op, point, here)[1](a) if i == 1 else a for i, a in enumerate(arrays)]
        library["f"](*(tvm.runtime.tensor(np.ascontiguousarray(a)) for a in given), result)
        if op.out == "float32":
            np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-6)
        else:
            np.testing.assert_array_equal(result.numpy(), wanted, err_msg=f"{op} at {point}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("here", WAYS)
def test_every_choice_computes_the_product(here):
    lanes, seen = here.lanes, set()
    for op in (
        QuantMatmul("int8", "int8", 3, True, (2, 29), 5 * lanes + 7, 19),
        QuantMatmul("uint8", "uint8", 120, False, (1,), 3 * lanes, 8, 1),
        QuantMatmul("int8", "uint8", 7, True, (9,), 3 * lanes, 21, 2),
        QuantMatmul("uint8", "int32", 0, True, (3,), 1, 5),
        QuantMatmul("int8", "float32", 0, False, (17,), lanes - 1, 1),
    ):
        assert SPACE.refuses(op, here) is None
        check(op, covering(SPACE, op, here, seen), here)


@pytest.mark.parametrize("here", WAYS)
@pytest.mark.parametrize("x_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("safe", [0, 1, 2])
def test_nothing_saturates_at_the_extremes(here, x_dtype, safe):
    op = QuantMatmul(x_dtype, "int32", 0, False, (5,), 20, 1000, safe)
    check(op, [SPACE.default(op, here)], here, extreme=True)


@pytest.mark.parametrize("bounds", [(5, 60), (5, 100), (110, 130)])
def test_bounds_below_zero_win_over_relu(bounds):
    """100 stands for zero: what relu leaves of it is cut by a bound behind it."""
    here = machine(16, "avx512f", "avx512bw")
    op = QuantMatmul("int8", "uint8", 100, True, (5,), 20, 9, bounds=bounds)
    check(op, [SPACE.default(op, here)], here)


def test_refusals():
    here = machine(8, "avx2")
    assert SPACE.refuses(QuantConv2d(), here) == "not a quantised matmul"
    assert SPACE.refuses(QuantMatmul(lead=(0,), n=4, k=4), here) == "an extent is zero"


def test_what_is_fetched_ahead_exists():
    """Far more tiles than lines of a panel: an address beyond it may be of no memory, which takes long."""
    op, here = QuantMatmul(lead=(1024,), n=64, k=64), machine(8, "avx2")
    function = SPACE.emit(op, {**SPACE.default(op, here), "prefetch": 1}, here)
    assert "llvm.prefetch" in function.script()
    assert prefetches_beyond(function) == []
