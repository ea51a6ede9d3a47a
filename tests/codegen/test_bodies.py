"""Functions that a pass leaves as they are: the same object, which costs nothing to make."""

import pytest

from hetero_tvm.codegen.bfloat16 import convert_once
from hetero_tvm.codegen.cancellation import keep_cancellation
from hetero_tvm.codegen.extremes import keep_nan
from hetero_tvm.codegen.pipeline import use_vector_math
from hetero_tvm.codegen.quotients.divisions import divide_without_traps
from hetero_tvm.codegen.wrapping import wrap_around
from hetero_tvm.host.tvm import te, tirx, tvm, with_body

PASSES = (convert_once, keep_cancellation, keep_nan, use_vector_math, divide_without_traps, wrap_around)


def doubled():
    x = te.placeholder((4,), "float32", name="x")
    return te.create_prim_func([x, te.compute((4,), lambda i: x[i] * 2.0)])


def test_a_function_with_its_own_body_is_itself():
    function = doubled()
    assert with_body(function, function.body).same_as(function)
    other = tirx.Evaluate(tirx.const(0, "int32"))
    assert with_body(function, other).body.same_as(other)


@pytest.mark.parametrize("one", PASSES, ids=lambda one: str(one.info.name))
def test_a_pass_without_work_gives_the_function(one):
    module = tvm.IRModule({"main": doubled()})
    assert one(module)["main"].same_as(module["main"])
