"""Positions of extrema by comparison: the same, also among equals."""

import pytest

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.relax_passes.forms.arg_extremum import ArgAsExtremum, ArgAsKernel
from hetero_tvm.schedules.cpu.rows.arg_extremum import emit_arg_extremum
from tests.relax_passes.compiled import RNG, check_results, floats, rewritten
from tests.relax_passes.graphs import constant, op, relax
from tests.relax_passes.rewrite import Rewrite, bind
from tests.selection import named

CASES = {
    "argmax": (lambda x: op.argmax(x, 1), [floats(3, 11, 2)]),
    "argmax of integers, first of several": (lambda x: op.argmax(x, 1), [RNG.integers(0, 3, (4, 9))]),
    "argmin kept": (lambda x: op.argmin(x, 0, keepdims=True), [floats(5, 3)]),
    "argmin of float64": (lambda x: op.argmin(x, 1), [floats(4, 9).astype("float64")]),
    "argmax of everything": (lambda x: op.argmax(x, None), [floats(5, 3)]),
}


@pytest.mark.parametrize(
    "build, arrays", named(CASES, {"argmax", "argmin of float64", "argmax of everything"})
)
def test_the_results_stay(build, arrays):
    check_results(build, arrays, ArgAsExtremum(), gone="argmax argmin")


class TestArgAsExtremum(Rewrite):
    rule = ArgAsExtremum()
    inputs = {"x": (2, 3)}

    def before(self, x):
        return op.argmax(x, 1)

    def expected(self, x):
        hits = bind(op.equal(x, op.max(x, [1], keepdims=True)))
        hits = op.logical_or(hits, op.isnan(x))
        positions = op.where(hits, constant([[0, 1, 2]], "int32"), constant(2, "int32"))
        first = op.min(positions, [1], keepdims=True)
        return op.reshape(op.astype(first, "int64"), (2,))


# as a kernel -----------------------------------------------------------------------------------------
def _kernel(shape, largest, dtype):
    return emit_arg_extremum(CpuModel("a", lanes=8), shape, largest, dtype)


LONG = {
    "the last axis": lambda x: op.argmax(x, 2),
    "kept": lambda x: op.argmin(x, -1, keepdims=True),
    "another axis": lambda x: op.argmax(x, 1),
    "the first": lambda x: op.argmin(x, 0, keepdims=True),
}


@pytest.mark.parametrize("build", named(LONG, {"the last axis", "another axis"}))
def test_kernels_of_long_axes(build):
    check_results(build, [floats(2, 3, 70)], ArgAsKernel(_kernel), gone="argmax argmin")


@pytest.mark.parametrize(
    "build, x", [(LONG["the last axis"], (2, 3, 5)), (lambda x: op.argmax(x, 0), (70, 2))]
)
def test_short_axes_are_no_kernels(build, x):
    after, _ = rewritten(build, [floats(*x)], [ArgAsKernel(_kernel)])
    assert "argmax" in after.script(show_meta=False)


class TestArgAsKernel(Rewrite):
    rule = ArgAsKernel(_kernel)
    inputs = {"x": (2, 40)}

    def before(self, x):
        return op.argmax(x, 1)

    def expected(self, x):
        function = relax.BlockBuilder.current().add_func(_kernel((2, 40, 1), True, "int64"), "argmax")
        x = op.reshape(x, (2, 40, 1))
        call = relax.call_tir(function, [x], out_ty=relax.TensorType((2, 1), "int64"))
        return op.reshape(call, (2,))
