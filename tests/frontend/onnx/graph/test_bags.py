"""Loops over bags of embeddings, against ONNX Runtime and PyTorch."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from hetero_tvm import Span, build_model, optimize_model
from hetero_tvm.frontend import import_model
from hetero_tvm.frontend.onnx.graph.bags import bags_at_once
from tests.frontend.onnx.helpers import text_model

SUMS = """
bags (float[rows, 4] x, int64[ends] offsets) => (float[bags, 4] y)
{
    zero = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    two = Constant<value_int = 2>()
    first = Constant<value_ints = [0]>()
    vector = Constant<value_ints = [-1]>()
    ends_of = Size(offsets)
    count = Sub(ends_of, one)
    none = SequenceEmpty()
    going = Less(zero, count)
    last, all = Loop (, going, zero, none) <
    body = round (int64 n, bool going_in, int64 i, seq(float[r, 4]) before)
        => (bool going_out, int64 next, seq(float[r, 4]) after) {
        place = Reshape(i, vector)
        one_1 = CastLike(one, place)
        behind = Add(place, one_1)
        start = Slice(offsets, place, behind)
        one_2 = CastLike(one, place)
        from = Add(place, one_2)
        two_1 = CastLike(two, place)
        to = Add(place, two_1)
        end = Slice(offsets, from, to)
        empty = Equal(start, end)
        row = If (empty) <then_branch = nothing () => (float[1, 4] zeros) {
            zeros = Constant<value = float[1, 4] {0, 0, 0, 0}>()
        }, else_branch = sums () => (float[1, 4] total) {
            part = Slice(x, start, end)
            total = ReduceSum(part, first)
        }>
        after = SequenceInsert(before, row)
        one_3 = CastLike(one, i)
        next = Add(i, one_3)
        going_out = Less(next, count)
    }>
    y = ConcatFromSequence<axis = 0>(all)
}
"""


SEQUENCE_FIRST = (
    ("last, all = Loop (, going, zero, none)", "all, last = Loop (, going, none, zero)"),
    ("int64 i, seq(float[r, 4]) before", "seq(float[r, 4]) before, int64 i"),
    ("int64 next, seq(float[r, 4]) after", "seq(float[r, 4]) after, int64 next"),
)


@pytest.mark.parametrize("swaps", [(), SEQUENCE_FIRST])
def test_sums(swaps):
    text = SUMS
    for one, other in swaps:
        assert one in text
        text = text.replace(one, other)
    model = text_model(text, opset=20)
    assert "Loop" not in {node.op_type for node in bags_at_once(model).graph.node}
    assert "Loop" in {node.op_type for node in model.graph.node}
    x, offsets = np.arange(24, dtype=np.float32).reshape(6, 4), np.array([0, 2, 2, 5, 6])
    imported = import_model(model, shapes={"x": x.shape, "offsets": offsets.shape})
    y = build_model(optimize_model(imported), use_shipped=False).run({"x": x, "offsets": offsets})[0]
    np.testing.assert_array_equal(y, [x[a:b].sum(0) for a, b in zip(offsets, offsets[1:], strict=False)])


def test_other_loops_stay():
    model = text_model(SUMS.replace("ReduceSum(part, first)", "ReduceProd(part, first)"), opset=20)
    assert bags_at_once(model) is model


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3, -1])
def test_exported(mode, padding, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.EmbeddingBag(20, 8, mode=mode, padding_idx=padding).eval()
    indices, offsets = torch.randint(0, 20, (12,)), torch.tensor([0, 3, 3, 7])
    dims = ({0: torch.export.Dim.DYNAMIC},) * 2
    path = tmp_path / "bags.onnx"
    torch.onnx.export(model, (indices, offsets), path, dynamo=True, dynamic_shapes=dims, verbose=False)
    ends = [value.name for value in onnx.load(path).graph.input]
    shapes = {ends[0]: [Span(1, 40)], ends[1]: [Span(1, 12)]}
    built = build_model(optimize_model(import_model(path, shapes=shapes)), use_shipped=False)
    for rows, starts in ((12, [0, 3, 3, 7]), (5, [0]), (9, [0, 0, 8])):
        given = torch.randint(0, 20, (rows,)), torch.tensor(starts)
        y = built.run(dict(zip(ends, (one.numpy() for one in given), strict=True)))[0]
        torch.testing.assert_close(torch.from_numpy(y), model(*given))


TRACED = """
bags (int64[10] i, int64[4] o, float[10] s) => (float[bags, 3] y)
<float[5, 3] w = {0.5, 1, 2, 3, 4, 5, 6, -7, 8, 9, 10, 11, 12, 13, 14.25}>
{
    yes = Constant<value = bool {1}>()
    zero = Constant<value_ints = [0]>()
    one = Constant<value_ints = [1]>()
    far = Constant<value_ints = [9223372036854775807]>()
    size = Shape(i)
    starts = Concat<axis = 0>(o, size)
    ends = Slice(starts, one, far, zero, one)
    shape = Shape(ends)
    bags = Squeeze(shape)
    y = Loop (bags, yes) <body = round (int64 n, bool going) => (bool on, float[3] row) {
        start = Gather<axis = 0>(starts, n)
        end = Gather<axis = 0>(ends, n)
        from = Unsqueeze(start, zero)
        to = Unsqueeze(end, zero)
        part = Slice(i, from, to, zero)
        rows = Gather(w, part)
        row = ReduceSum<keepdims = 0>(rows, zero)
        on = Cast<to = 9>(yes)
    }>
}
"""
WEIGHTED = ("row = ReduceSum<keepdims = 0>(rows, zero)", """shares = Slice(s, from, to, zero)
        column = Unsqueeze(shares, one)
        shared = Mul(rows, column)
        row = ReduceSum<keepdims = 0>(shared, zero)""")  # fmt: skip
MEANS = ("ReduceSum<keepdims = 0>(rows, zero)", "ReduceMean<keepdims = 0, axes = [0]>(rows)")
MAXIMA = ("ReduceSum<keepdims = 0>(rows, zero)", "ReduceMax<keepdims = 0>(rows, zero)")


@pytest.mark.parametrize(
    "opset, change", [(16, ("", "")), (17, WEIGHTED), (16, MEANS), (18, MAXIMA)], ids=str
)
def test_bags_of_the_exporter_that_traces(opset, change):
    model = text_model(TRACED.replace(*change), opset=opset)
    assert "Loop" not in {node.op_type for node in bags_at_once(model).graph.node}
    rng = np.random.default_rng(3)
    given = {
        "i": rng.integers(0, 5, 10),
        "o": np.array([0, 3, 4, 9]),
        "s": rng.standard_normal(10).astype("float32"),
    }
    imported = import_model(model)
    given = {spec.name: given[spec.name] for spec in imported.signature.inputs}
    built = build_model(optimize_model(imported))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, given)
    np.testing.assert_allclose(np.asarray(built.run(given)[0]), wanted, rtol=1e-5, atol=1e-5)


def test_other_bodies_of_such_a_loop_stay():
    for one, other in (
        ("ReduceSum<keepdims = 0>(rows, zero)", "ReduceProd<keepdims = 0, axes = [0]>(rows)"),
        ("Slice(starts, one, far, zero, one)", "Add(o, one)"),
    ):
        assert one in TRACED
        model = text_model(TRACED.replace(one, other), opset=17)
        assert bags_at_once(model) is model
