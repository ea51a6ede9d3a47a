"""Lookups, scans and positions of extrema, and images of another size, in other forms: the same numbers."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.relax_passes.forms.index_forms import INDEX_FORMS, SplitAsSlices
from hetero_tvm.relax_passes.forms.resize_forms import RESIZE_FORMS
from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.rule import Report, run_rules

RNG = np.random.default_rng(0)
op = relax.op


def module_of(build, *arrays):
    variables = [relax.Var(f"x{n}", relax.TensorType(a.shape, str(a.dtype))) for n, a in enumerate(arrays)]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            y = builder.emit_output(build(*variables))
        builder.emit_func_output(y)
    return relax.transform.CanonicalizeBindings()(builder.get())  # no alias for the output, as imported


def result(module, arrays):
    with tvm.target.Target("llvm"):
        module = relax.backend.DispatchSortScan()(module)
    machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def rewritten(build, arrays, rules):
    graph, report = Graph(module_of(build, *arrays)), Report()
    run_rules(graph, rules, report)
    return graph.rebuild()[0], report


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def places(high, *shape):
    return RNG.integers(0, high, shape)


GRID = np.stack(np.meshgrid([0, 1], np.arange(5), indexing="ij"), -1).reshape(2, 1, 5, 2)
CASES = {
    "sums along": (lambda x: op.cumsum(x, 1), [floats(2, 7)]),
    "sums of integers": (lambda x: op.cumsum(x, 0, "int64"), [RNG.integers(-9, 9, (13, 2))]),
    "sums of truth values": (lambda x: op.cumsum(x, 1, "int64"), [RNG.integers(0, 2, (2, 9)) > 0]),
    "sums before": (lambda x: op.cumsum(x, 1, exclusive=True), [floats(2, 5, 3)]),
    "sums of one": (lambda x: op.cumsum(x, 1), [floats(3, 1)]),
    "products along": (lambda x: op.cumprod(x, -1), [floats(2, 6)]),
    "argmax": (lambda x: op.argmax(x, 1), [floats(3, 11, 2)]),
    "argmax of integers, first of several": (lambda x: op.argmax(x, 1), [RNG.integers(0, 3, (4, 9))]),
    "argmin kept": (lambda x: op.argmin(x, 0, keepdims=True), [floats(5, 3)]),
    "argmax of everything": (lambda x: op.argmax(x, None), [floats(5, 3)]),
    "elements": (lambda x, i: op.gather_elements(x, i, 1), [floats(2, 5, 3), places(5, 2, 7, 3)]),
    "elements of the first axis": (lambda x, i: op.gather_elements(x, i, 0), [floats(4, 3), places(4, 2, 3)]),
    "pairs of indices": (lambda x, i: op.gather_nd(x, i), [floats(4, 5, 3), places(4, 6, 2)]),
    "single elements": (lambda x, i: op.gather_nd(x, i), [floats(4, 5), places(4, 2, 3, 2)]),
    "a triangle": (lambda x: op.tril(x, 1), [floats(2, 3, 4)]),
    "a triangle of integers": (lambda x: op.triu(x, -1), [places(9, 4, 3)]),
    "a constant grid": (lambda x: op.gather_nd(x, relax.const(GRID, "int64")), [floats(2, 5)]),
}


@pytest.mark.parametrize("build, arrays", CASES.values(), ids=CASES.keys())
def test_the_results_stay(build, arrays):
    after, report = rewritten(build, arrays, INDEX_FORMS)
    assert report.misses == []
    text = after.script(show_meta=False)
    gone = "cumsum cumprod argmax argmin gather_elements gather_nd tril triu"
    assert not any(f"R.{name}(" in text for name in gone.split())
    expected, actual = result(module_of(build, *arrays), arrays), result(after, arrays)
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def resized(size, **options):
    return lambda x: op.image.resize2d(x, size, layout="NCHW", **options)


RESIZES = {
    "half pixels": ((8, 10), {"coordinate_transformation_mode": "half_pixel"}),
    "corners": ((9, 3), {"coordinate_transformation_mode": "align_corners"}),
    "one axis": ((4, 13), {"coordinate_transformation_mode": "asymmetric"}),
    "cubic": ((9, 11), {"method": "cubic"}),
    "neighbours": (
        (7, 13), {"method": "nearest_neighbor", "rounding_method": "floor",
                  "coordinate_transformation_mode": "asymmetric"},
    ),
    "the same": ((4, 5), {"coordinate_transformation_mode": "half_pixel"}),
    "to one": ((1, 1), {"coordinate_transformation_mode": "pytorch_half_pixel"}),
}  # fmt: skip


@pytest.mark.parametrize("size, options", RESIZES.values(), ids=RESIZES.keys())
def test_images_of_another_size(size, options):
    x = [floats(2, 3, 4, 5)]
    after, report = rewritten(resized(size, **options), x, RESIZE_FORMS)
    assert report.misses == [] and "resize2d" not in after.script(show_meta=False)
    expected = result(module_of(resized(size, **options), *x), x)
    np.testing.assert_allclose(result(after, x), expected, rtol=1e-5, atol=1e-5)


def test_repeated_pixels_stay():
    x = [floats(1, 2, 3, 4)]
    options = {"method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric"}
    assert "resize2d" in rewritten(resized((6, 8), **options), x, RESIZE_FORMS)[0].script(show_meta=False)


def test_parts_are_slices():
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((3, 7), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = builder.emit(op.split(x, [2, 5], 1))
            a, b = (builder.emit(relax.TupleGetItem(parts, n)) for n in (2, 0))
            y = builder.emit_output(op.concat([a, b], 1))
        builder.emit_func_output(y)
    graph = Graph(relax.transform.CanonicalizeBindings()(builder.get()))
    run_rules(graph, [SplitAsSlices()], Report())
    after = graph.rebuild()[0]
    assert "R.split" not in after.script(show_meta=False)
    array = floats(3, 7)
    np.testing.assert_array_equal(result(after, [array]), np.concatenate([array[:, 5:], array[:, :2]], 1))
