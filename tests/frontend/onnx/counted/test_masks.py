"""Assignments through masks, in the nodes that PyTorch's exporter writes, beside onnxruntime."""

import numpy as np
import pytest

from hetero_tvm.frontend.onnx.clean import clean
from hetero_tvm.frontend.onnx.graph.detach import detached
from hetero_tvm.frontend.onnx.relax import supported_operators
from tests.frontend.onnx.counted.helpers import agrees, model_of

RNG = np.random.default_rng(7)
FLAT = "int64[1] flat = {-1}, int64[1] three = {3}, float zero = {0.5}, int64[2] full = {4, 3}"
NUMBER = """
    r = Reshape(%s, flat)
    c = Cast<to = 7>(r)
    n = ReduceSum<keepdims = 1>(c)
"""
ALL = f"""(float[4,3] x, bool[4,3] m) => (float[4,3] y) <{FLAT}> {{
    {NUMBER % "m"}
    w = NonZero(m)
    i = Transpose<perm = [1, 0]>(w)
    e = Expand(zero, n)
    u = Reshape(e, flat)
    y = ScatterND(x, i, u)
}}"""
ROWS = f"""(float[4,3] x, bool[4] m, float[3] v) => (float[4,3] y) <{FLAT}> {{
    k = Unsqueeze(m, flat)
    wide = Expand(k, full)
    w = NonZero(wide)
    i = Transpose<perm = [1, 0]>(w)
    {NUMBER % "m"}
    s = Concat<axis = 0>(n, three)
    e = Expand(v, s)
    u = Reshape(e, flat)
    y = ScatterND(x, i, u)
}}"""
FEWER_AXES = f"""(float[4,3] x, bool[4] m, float[3] v) => (float[4,3] y) <{FLAT}> {{
    w = NonZero(m)
    i = Transpose<perm = [1, 0]>(w)
    {NUMBER % "m"}
    s = Concat<axis = 0>(n, three)
    u = Expand(v, s)
    y = ScatterND(x, i, u)
}}"""
OWN = f"""(float[4,3] x, bool[4,3] m) => (float[4,3] y) <{FLAT}> {{
    {NUMBER % "m"}
    w = NonZero(m)
    i = Transpose<perm = [1, 0]>(w)
    g = GatherND(x, i)
    d = Add(g, g)
    e = Expand(d, n)
    u = Reshape(e, flat)
    y = ScatterND(x, i, u)
}}"""


def given(body: str, share: float) -> dict[str, np.ndarray]:
    row = "bool[4] m" in body
    mask = RNG.random((4,) if row else (4, 3)) < share
    fed = {"x": RNG.standard_normal((4, 3)).astype("float32"), "m": mask}
    return {**fed, "v": RNG.standard_normal(3).astype("float32")} if row else fed


@pytest.mark.parametrize("body", [ALL, ROWS, FEWER_AXES, OWN], ids=["all", "rows", "fewer", "own"])
def test_assignments_give_what_onnxruntime_gives(body):
    agrees(body, *(given(body, share) for share in (0.4, 0.0, 1.1)))


@pytest.mark.parametrize("body", [ALL, ROWS, FEWER_AXES], ids=["all", "rows", "fewer"])
def test_values_and_rows_are_selected_and_nothing_is_scattered(body):
    kinds = {n.op_type for n in clean(detached(model_of(body)), supported_operators(), {}).proto.graph.node}
    assert "Where" in kinds and not kinds & {"ScatterND", "NonZero", "TopK", "CumSum"}


def test_a_row_for_each_place_of_a_whole_mask_is_no_selection():
    """Places count elements here, and the values are one for each: none is repeated."""
    body = """(float[4,3] x, bool[4,3] m, float[12] v) => (float[4,3] y) {
        w = NonZero(m)
        i = Transpose<perm = [1, 0]>(w)
        y = ScatterND(x, i, v)
    }"""
    fed = given(OWN, 1.1)
    agrees(body, {**fed, "v": np.arange(12, dtype="float32")})


def test_sums_added_into_places_are_no_selection():
    body = ALL.replace("y = ScatterND(", 'y = ScatterND <reduction = "add">(')
    agrees(body, *(given(body, share) for share in (0.4, 0.0)))
