"""Images of another size: rows and columns first, blocks of rows, neighbours that are alone."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.cpu.images.resize import emit_copies, emit_resize, neighbours
from tests.schedules.cpu.running import SWEPT, TARGET


def between(before, after, mode):
    """Weights [after, before], by ONNX's formulas of coordinates in float64."""
    at, scale = np.arange(after, dtype="float64"), after / before
    places = {
        "align_corners": at * (before - 1) / max(after - 1, 1),
        "asymmetric": at / scale,
        "half_pixel": (at + 0.5) / scale - 0.5,
    }[mode]
    places = places.clip(0, before - 1)
    return np.maximum(0, 1 - np.abs(places[:, None] - np.arange(before)))


CASES = [
    (3, (4, 5), (9, 13), "align_corners"),
    (1, (64, 33), (150, 31), "half_pixel"),
    (2, (20, 40), (7, 9), "asymmetric"),
    (1, (3, 2), (3, 50), "align_corners"),  # the rows stay
    (2, (1, 20), (1, 37), "half_pixel"),
    (2, (7, 29), (15, 29), "half_pixel"),  # the columns stay
    (3, (9, 1), (4, 1), "asymmetric"),
    (2, (5, 43), (10, 86), "half_pixel"),  # all pixels grow alike
    (1, (3, 37), (9, 111), "half_pixel"),
    (2, (1, 33), (1, 132), "asymmetric"),
    (1, (2, 70), (4, 700), "half_pixel"),
    (1, (2, 3), (4, 6), "half_pixel"),
    (1, (2, 9), (1, 1), "align_corners"),
]


@pytest.mark.parametrize("machine", SWEPT)
def test_sums_of_neighbours(machine):
    functions, tables = {}, []
    # A small cache: rows of an image are cut into blocks.
    machine = dataclasses.replace(machine, l2=1 << 12)
    for n, (planes, before, after, mode) in enumerate(CASES):
        axes = zip(before, after, strict=True)
        tables.append([None if a == b else neighbours(a, b, mode) for a, b in axes])
        function = emit_resize(machine, (planes, *before), *tables[-1])
        functions[f"f{n}"] = function.with_attr("global_symbol", f"f{n}")
    library = compile_kernels(tvm.IRModule(functions), TARGET).jit()
    for n, (planes, before, after, mode) in enumerate(CASES):
        x = np.random.default_rng(n).standard_normal((planes, *before)).astype("float32")
        rows, columns = (between(a, b, mode) for a, b in zip(before, after, strict=True))
        y = tvm.runtime.tensor(np.full((planes, *after), 7, "float32"))
        constants = [array for axis in tables[n] if axis is not None for array in axis]
        library[f"f{n}"](*(tvm.runtime.tensor(a) for a in (x, *constants)), y)
        np.testing.assert_allclose(y.numpy(), rows @ x @ columns.T, 1e-5, 1e-6)


def test_a_neighbour_of_no_weight_is_not_read():
    places, weights = neighbours(3, 5, "align_corners")
    assert places.tolist() == [[0, 0, 1, 1, 2], [0, 1, 1, 2, 2]]
    assert (weights == 0.5).all()


def test_other_modes_have_no_neighbours():
    assert neighbours(3, 5, "tf_half_pixel_for_nn") is None


@pytest.mark.parametrize("machine", SWEPT)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_copies(machine, dtype):
    cases = [
        ((2, 3, 4, 37), (2, 2)),
        ((1, 2, 5, 16), (1, 3)),
        ((1, 1, 7, 50), (3, 1)),
        ((1, 1, 1, 1), (4, 16)),
    ]
    functions = {}
    for n, (image, copies) in enumerate(cases):
        function = emit_copies(machine, image, copies, dtype)
        functions[f"f{n}"] = function.with_attr("global_symbol", f"f{n}")
    library = compile_kernels(tvm.IRModule(functions), TARGET).jit()
    for n, (image, (down, across)) in enumerate(cases):
        x = np.random.default_rng(n).integers(0, 255, image).astype(dtype)
        wanted = x.repeat(down, axis=2).repeat(across, axis=3)
        y = tvm.runtime.tensor(np.zeros_like(wanted))
        library[f"f{n}"](tvm.runtime.tensor(x), y)
        np.testing.assert_array_equal(y.numpy(), wanted)
    assert emit_copies(machine, (1, 1, 2, 2), (1, 17), dtype) is None
