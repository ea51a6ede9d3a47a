"""The greatest few values without sorting: the same values and positions."""

import functools

import numpy as np
import pytest

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.relax_passes.forms.topk import OrderAsKernel, SuppressionAsKernel, TopkAsExtrema
from hetero_tvm.schedules.cpu.rows.suppression import emit_suppression
from hetero_tvm.schedules.cpu.rows.topk import emit_topk
from tests.relax_passes.compiled import floats, result, rewritten
from tests.relax_passes.graphs import constant, op, relax
from tests.relax_passes.rewrite import Rewrite, any_function, any_kernel
from tests.schedules.cpu.running import MACHINES
from tests.selection import thorough

TIES = np.array([[1, 3, 3, 2, 3], [0, -2, 0, 0, 0]], np.float32)
CASES = {
    "of the last axis": (floats(3, 7), 2, -1, True),
    "of another axis": (floats(2, 6, 3), 3, 1, True),
    "the least": (floats(2, 6), 2, 1, False),
    "the greatest": (floats(4, 5), 1, 1, True),
    "all": (floats(2, 3), 3, 1, True),
    "equal ones": (TIES, 4, 1, True),
}


@pytest.mark.parametrize("x, k, axis, largest", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("field", [0, 1])
def test_the_results_stay(x, k, axis, largest, field):
    """Equal values are taken in their order."""

    def build(v):
        return op.topk(v, k, axis, "both", largest, "int64")[field]

    after, report = rewritten(build, [x], [TopkAsExtrema()])
    assert report.misses == [] and "R.topk" not in after.script(show_meta=False)
    order = np.argsort(-x if largest else x, axis=axis, kind="stable")
    order = np.take(order, np.arange(k), axis=axis)
    wanted = order if field else np.take_along_axis(x, order, axis)
    got = result(after, [x])
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


def test_both_results():
    def build(v):
        both = op.topk(v, 2, 1, "both", True, "int32")
        return op.add(op.astype(both[1], "float32"), both[0])

    after, _ = rewritten(build, [TIES], [TopkAsExtrema()])
    np.testing.assert_array_equal(result(after, [TIES]), [[4, 5], [0, 2]])


def test_one_result():
    after, _ = rewritten(lambda v: op.topk(v, 2, 1, "indices", True, "int32"), [TIES], [TopkAsExtrema()])
    np.testing.assert_array_equal(result(after, [TIES]), [[1, 2], [0, 2]])


def test_many_are_sorted():
    _, report = rewritten(lambda v: op.topk(v, 9, 1)[0], [floats(2, 20)], [TopkAsExtrema()])
    assert [miss["reason"] for miss in report.misses] == ["the greatest 9 are found by sorting"]


class TestTopkAsExtrema(Rewrite):
    rule = TopkAsExtrema()
    inputs = {"x": (2, 3)}

    def before(self, x):
        both = op.topk(x, 1, 1)
        return relax.TupleGetItem(both, 0), relax.TupleGetItem(both, 1)

    def expected(self, x):
        largest = op.max(x, [1], keepdims=True)
        hits = op.equal(x, largest)
        positions = op.where(hits, constant([[0, 1, 2]], "int32"), constant(2, "int32"))
        return largest, op.min(positions, [1], keepdims=True)


# as a kernel -----------------------------------------------------------------------------------------
ASKED = []


def _kernel(shape, axis, k, largest, results, dtype):
    """A kernel of the CPU's that remembers what it was asked for."""
    ASKED.append((shape, axis, k, largest, results))
    return emit_topk(shape, axis, k, largest, results, CpuModel("a", lanes=8), dtype=dtype)


@pytest.mark.parametrize(
    "build, asked",
    [
        (
            lambda x: op.topk(x, 2, 1, "both", True, "int32")[1],
            (1, 2, True, [("values", "float32"), ("indices", "int32")]),
        ),
        *thorough([(lambda x: op.topk(x, 3, -2, "values", False), (0, 3, False, [("values", "float32")]))]),
        (lambda x: op.topk(x, 0, 1, "indices", True, "int64"), (1, 6, True, [("indices", "int64")])),
        (lambda x: op.sort(x, 0, True), (0, 4, True, [("values", "float32")])),
        *thorough([(lambda x: op.argsort(x, -1, False, "int64"), (1, 6, False, [("indices", "int64")]))]),
    ],
)
def test_orders_are_kernels(build, asked):
    x, ASKED[:] = floats(4, 6), []
    after, report = rewritten(build, [x], [OrderAsKernel(_kernel)])
    assert report.misses == [] and ASKED == [((4, 6), *asked)]
    text = after.script(show_meta=False)
    assert not any(f"R.{name}(" in text for name in ("topk", "sort", "argsort"))
    np.testing.assert_array_equal(result(after, [x]), result(rewritten(build, [x], [])[0], [x]))


def test_kernels_know_the_order_of_nan():
    """What stands for NaN and infinity in other sorts is not computed."""
    largest = np.finfo(np.float32).max

    def build(x):
        high, most = (constant(np.array(value, np.float32)) for value in (np.inf, largest))
        ordered = op.where(op.isnan(x), high, op.where(op.equal(x, high), most, x))
        return op.topk(ordered, 4, 1, "indices", True, "int64")

    x = np.array([[1, np.inf, np.nan, largest, np.inf, 2]], np.float32)
    after, _ = rewritten(build, [x], [OrderAsKernel(_kernel)])
    assert "R.where" not in after.script(show_meta=False)
    assert result(after, [x]).tolist() == [[2, 1, 4, 3]]


def test_whole_numbers_are_sorted_by_the_library():
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    after, _ = rewritten(lambda v: op.sort(v), [x], [OrderAsKernel(_kernel)])
    assert "R.sort(" in after.script(show_meta=False)


class TestOrderAsKernel(Rewrite):
    rule = OrderAsKernel(lambda *of, dtype: any_function((2, 7), "float32"))
    inputs = {"x": (2, 7)}

    def before(self, x):
        return op.sort(x, 1, False)

    def expected(self, x):
        return any_kernel("sort", (2, 7), "float32", x)


class TestSuppressionAsKernel(Rewrite):
    rule = SuppressionAsKernel(functools.partial(emit_suppression, MACHINES["avx2"]))
    inputs = {"boxes": (1, 6, 4), "scores": (1, 2, 6)}

    def before(self, boxes, scores):
        half = relax.const(0.5, "float32")
        return op.vision.all_class_non_max_suppression(
            boxes, scores, relax.const(3, "int64"), half, half, "onnx"
        )

    def expected(self, boxes, scores):
        half = relax.const(0.5, "float32")
        results = [relax.TensorType((12, 3), "int64"), relax.TensorType((1,), "int64")]
        variable = relax.BlockBuilder.current().add_func(
            emit_suppression(MACHINES["avx2"], 1, 2, 6, 3), "suppression"
        )
        return relax.call_tir(variable, [boxes, scores, relax.const(3, "int64"), half, half], out_ty=results)


def test_a_target_without_a_kernel_names_the_node():
    case = TestSuppressionAsKernel()
    boxes, scores = floats(1, 6, 4), floats(1, 2, 6)
    with pytest.raises(UnsupportedOperatorError, match="at most 8"):
        rewritten(case.before, [boxes, scores], [SuppressionAsKernel(None)])
