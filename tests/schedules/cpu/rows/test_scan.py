"""Running sums and products: any axis, odd lengths, types, exclusive ones, NaN."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.cpu.rows.scan import emit_scan
from tests.schedules.cpu.running import MACHINES, SWEPT, TARGET

CASES = [
    # shape, axis, given, dtype, product, exclusive
    ((3, 37), 1, "float32", "float32", False, False),
    ((3, 37), 1, "float32", "float32", False, True),
    ((3, 37), 0, "float32", "float32", False, True),
    ((2, 33, 5), 1, "int64", "int64", False, False),
    ((2, 5, 2100), 1, "float32", "float32", False, False),
    ((5, 40), 1, "bool", "int64", False, False),
    ((3, 33), 1, "float32", "float32", True, True),
    ((9, 4), 0, "int32", "int32", True, False),
    ((1, 1), 1, "float32", "float32", False, False),
    ((70,), 0, "float32", "float32", False, False),
]


@pytest.mark.parametrize("machine", SWEPT)
@pytest.mark.parametrize("ranges", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(machine, ranges, reverse):
    functions = {}
    for n, (shape, axis, given, dtype, product, exclusive) in enumerate(CASES):
        function = emit_scan(
            machine,
            shape,
            axis,
            given,
            dtype,
            product=product,
            exclusive=exclusive,
            reverse=reverse,
            ranges=ranges,
        )
        functions[f"f{n}"] = function.with_attr("global_symbol", f"f{n}")
    library = compile_kernels(tvm.IRModule(functions), TARGET).jit()
    for n, (shape, axis, given, dtype, product, exclusive) in enumerate(CASES):
        random = np.random.default_rng(n)
        numbers = random.standard_normal(shape) if given == "float32" else random.integers(0, 2, shape)
        x = numbers.astype(given)
        if given == "float32" and x.size > 60:
            x.flat[50] = np.nan
        y = tvm.runtime.tensor(np.full(shape, 7, dtype))
        library[f"f{n}"](tvm.runtime.tensor(x), y)
        wide = x.astype("float64") if dtype == "float32" else x.astype(dtype)
        wide = np.flip(wide, axis) if reverse else wide
        wanted = (np.cumprod if product else np.cumsum)(wide, axis)
        if exclusive:
            wanted = np.roll(wanted, 1, axis)
            first = [slice(None)] * x.ndim
            first[axis] = 0
            wanted[tuple(first)] = 1 if product else 0
        wanted = np.flip(wanted, axis) if reverse else wanted
        np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("product", [False, True])
@pytest.mark.parametrize("shape, axis", [((20_000, 3), 0), ((2, 20_000), 1), ((20_000, 40), 0)])
def test_long_scans_do_not_add_up_rounding_errors(product, shape, axis):
    """As PyTorch's, which are summed up in float64; a float32 sum is 1e-4 off near 1000."""
    function = emit_scan(
        MACHINES["avx2"], shape, axis, "float32", "float32", product=product, exclusive=False
    )
    library = compile_kernels(tvm.IRModule({"f": function.with_attr("global_symbol", "f")}), TARGET).jit()
    noise = np.random.default_rng(0).standard_normal(shape)
    x = (1 + noise * 1e-3 if product else 1000 + noise).astype("float32")
    y = tvm.runtime.tensor(np.zeros(shape, "float32"))
    library["f"](tvm.runtime.tensor(x), y)
    wanted = (np.cumprod if product else np.cumsum)(x.astype("float64"), axis)
    np.testing.assert_allclose(y.numpy(), wanted, rtol=5e-7)


def test_sums_stay_infinite():
    function = emit_scan(MACHINES["avx2"], (40, 3), 0, "float32", "float32", product=False, exclusive=False)
    library = compile_kernels(tvm.IRModule({"f": function.with_attr("global_symbol", "f")}), TARGET).jit()
    x, y = np.ones((40, 3), "float32"), tvm.runtime.tensor(np.zeros((40, 3), "float32"))
    x[5, 0], x[7, 1], x[20, 1] = np.inf, np.inf, -np.inf
    library["f"](tvm.runtime.tensor(x), y)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(y.numpy(), np.cumsum(x, 0))
