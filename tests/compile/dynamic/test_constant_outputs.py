"""Outputs that follow from the sizes of the inputs alone, so that importers fold them to constants."""

import numpy as np
import onnxruntime
import pytest

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import BuildError
from hetero_tvm.frontend import Span
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough

BEHIND = "behind = Constant<value_ints = [5]>()\n end = Constant<value_ints = [9]>()\n "
BODIES = {
    "zeros as the input": "float[n, 4] y) { shape = Shape(x)\n y = ConstantOfShape(shape) }",
    "nothing, by a slice": "float[n, 0, 3] y) { "
    + BEHIND
    + "one = Constant<value_ints = [1]>()\n parts = Unsqueeze(x, one)\n y = Slice(parts, behind, end, one) }",
    "sums of nothing": "float[n, 1] y) { "
    + BEHIND
    + "one = Constant<value_ints = [1]>()\n empty = Slice(x, behind, end, one)\n y = ReduceSum(empty, one) }",
    "a shape": "int64[2] y) { y = Shape(x) }",
    "a shape of floats": "float[2] y) { shape = Shape(x)\n y = Cast<to = 1>(shape) }",
    "two results": "float[n, 4] y, int64[n] z) { shape = Shape(x)\n y = ConstantOfShape(shape)\n "
    "zero = Constant<value_int = 0>()\n one = Constant<value_int = 1>()\n count = Gather(shape, zero)\n "
    "z = Range(zero, count, one) }",
}


def built(body, folder):
    model = text_model(f"net (float[n, 4] x) => ({body}")
    optimized = optimize_model(import_model(model, shapes={"x": (Span(1, 16), 4)}))
    return model, hetero_tvm.load(build_model(optimized).export(folder / "net.so"))


@pytest.mark.parametrize("name", [*list(BODIES)[-2:], *thorough(list(BODIES)[:-2])])
def test_they_have_the_sizes_of_each_call(tmp_path, name):
    model, net = built(BODIES[name], tmp_path)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (1, 3, 4, 16):
        x = np.ones((rows, 4), "float32")
        results = net(x)
        results = results if isinstance(results, list | tuple) else [results]
        for result, wanted in zip(results, session.run(None, {"x": x}), strict=True):
            assert result.dtype == wanted.dtype
            np.testing.assert_array_equal(result, wanted)


def test_a_list_that_follows_no_rule_is_refused_as_an_output(tmp_path):
    body = (
        "float[1] y) { shape = Shape(x)\n zero = Constant<value_ints = [0]>()\n "
        "count = Gather(shape, zero)\n number = Cast<to = 1>(count)\n y = Sin(number) }"
    )
    with pytest.raises(BuildError, match="at an output of the model, a constant has other values"):
        built(body, tmp_path)
