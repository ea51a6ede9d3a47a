"""Elements at computed places as the CPU's kernel: every axis, both ends of it, few lines, types, errors."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.errors import LibraryError
from hetero_tvm.frontend import import_model
from hetero_tvm.relax_passes.rewriting.fused import is_check
from tests.frontend.onnx.helpers import text_model
from tests.selection import named

RNG = np.random.default_rng(0)
CASES = {
    "last axis": ((70, 33), (70, 129), 1, "float", "int64"),
    "first axis": ((33, 70), (129, 70), 0, "float", "int32"),
    "middle axis": ((3, 9, 11), (3, 200, 11), 1, "float", "int64"),
    "one line": ((1, 500), (1, 4097), 1, "float", "int64"),
    "one column": ((500, 1), (5000, 1), 0, "double", "int64"),
    "bytes": ((64, 64), (64, 64), 1, "uint8", "int32"),
    "one place to take": ((80, 1), (80, 64), 1, "int64", "int64"),
    "not finite": ((16, 300), (16, 300), -1, "float", "int64"),
}
NUMPY = {"float": "float32", "double": "float64", "uint8": "uint8", "int64": "int64"}


def model(shape, places, axis, dtype, index):
    extents = [",".join(map(str, extents)) for extents in (shape, places)]
    return import_model(
        text_model(
            f"agraph ({dtype}[{extents[0]}] x, {index}[{extents[1]}] i) => ({dtype}[{extents[1]}] y) "
            f"{{ y = GatherElements<axis={axis}>(x, i) }}",
            "victim",
        )
    )


@pytest.mark.parametrize(
    "shape, places, axis, dtype, index",
    named(CASES, {"last axis", "first axis", "middle axis", "bytes", "not finite"}),
)
def test_every_element_is_taken_and_every_wrong_place_is_an_error(
    shape, places, axis, dtype, index, tmp_path
):
    optimized = optimize_model(model(shape, places, axis, dtype, index))
    assert not any(is_check(function) for function in optimized.module.functions.values())
    net = hetero_tvm.load(build_model(optimized).export(tmp_path))
    extent = shape[axis]
    x = RNG.normal(size=shape).astype(NUMPY[dtype]) if dtype in ("float", "double") else None
    x = RNG.integers(0, 200, shape).astype(NUMPY[dtype]) if x is None else x
    if dtype == "float":
        x.reshape(-1)[:3] = np.nan, np.inf, -np.inf
    i = RNG.integers(-extent, extent, places).astype(index)
    np.testing.assert_array_equal(net(x, i), np.take_along_axis(x, np.where(i < 0, i + extent, i), axis))
    for at in (0, i.size // 2, i.size - 1):
        for wrong in (extent, -extent - 1, np.iinfo(index).max, np.iinfo(index).min):
            bad = i.copy()
            bad.reshape(-1)[at] = wrong
            with pytest.raises(LibraryError, match=rf"victim.*outside \[-{extent}, {extent}\)"):
                net(x, bad)
    np.testing.assert_array_equal(net(x, i), np.take_along_axis(x, np.where(i < 0, i + extent, i), axis))
