"""Images of another size: rows and columns first, blocks of rows, neighbours that are alone."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.cpu.images.resize import emit_resize, neighbours
from tests.schedules.cpu.running import SWEPT, TARGET


def between(before, after):
    """Weights [after, before] of pixels between two others, their corners aligned."""
    places = np.linspace(0, before - 1, after)
    weights = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(before)))
    return np.where(weights < 1e-6, 0, weights).astype("float32")


CASES = [(3, (4, 5), (9, 13)), (1, (64, 33), (150, 31)), (2, (20, 40), (7, 9)), (1, (3, 2), (3, 50))]


@pytest.mark.parametrize("machine", SWEPT)
def test_sums_of_neighbours(machine):
    functions, tables = {}, []
    # A small cache: rows of an image are cut into blocks.
    machine = dataclasses.replace(machine, l2=1 << 12)
    for n, (planes, before, after) in enumerate(CASES):
        tables.append([neighbours(between(a, b)) for a, b in zip(before, after, strict=True)])
        function = emit_resize(machine, (planes, *before), *(places for places, _ in tables[-1]))
        functions[f"f{n}"] = function.with_attr("global_symbol", f"f{n}")
    library = compile_kernels(tvm.IRModule(functions), TARGET).jit()
    for n, (planes, before, after) in enumerate(CASES):
        x = np.random.default_rng(n).standard_normal((planes, *before)).astype("float32")
        rows, columns = (between(a, b).astype("float64") for a, b in zip(before, after, strict=True))
        y = tvm.runtime.tensor(np.full((planes, *after), 7, "float32"))
        constants = [array for axis in tables[n] for array in axis]
        library[f"f{n}"](*(tvm.runtime.tensor(a) for a in (x, *constants)), y)
        np.testing.assert_allclose(y.numpy(), rows @ x @ columns.T, rtol=1e-5, atol=1e-6)


def test_a_neighbour_of_no_weight_is_not_read():
    places, weights = neighbours(np.float32([[1, 0, 0], [0, 0.25, 0.75], [0, 0, 1]]))
    assert places.tolist() == [[0, 1, 2], [0, 2, 2]]
    assert weights.tolist() == [[0.5, 0.25, 0.5], [0.5, 0.75, 0.5]]


def test_other_matrices_have_no_neighbours():
    assert neighbours(np.float32([[1, 1, 1]])) is None
    assert neighbours(np.float32([[0, 0, 0]])) is None
    assert neighbours(np.float32([[0, 1], [1, 0]])) is None
