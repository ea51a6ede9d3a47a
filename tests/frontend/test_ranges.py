"""Ranges of lengths: which dimensions are one symbol, what contradicts, which sizes tell."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hetero_tvm import build_model, optimize_model
from hetero_tvm.errors import HeteroTVMError, ShapeError
from hetero_tvm.frontend import Span, import_model
from hetero_tvm.frontend.ranges import import_open
from hetero_tvm.frontend.signature import Symbol, parse_shape_option
from hetero_tvm.frontend.telling import telling_sizes
from tests.frontend.onnx.helpers import text_model

MODEL = """
sums (float[batch, width] x, float[batch, width] y, float[rows, 3] z) => (float[batch, width] total)
{
    total = Add(x, y)
}
"""


def test_equal_names_are_one_symbol_and_other_inputs_follow():
    model = import_model(text_model(MODEL), shapes={"x": (Span(1, 6), Span(2, 40)), "z": (4, 3)})
    assert model.open is not None
    assert [str(symbol) for symbol in model.open.symbols] == ["batch = 1..6", "width = 2..40"]
    for imported, sizes in zip((model, *model.open.others), model.open.sizes, strict=True):
        wanted = (sizes["batch"], sizes["width"])
        assert [spec.shape for spec in imported.signature.inputs[:2]] == [wanted, wanted]
    assert model.open.at({"batch": 2, "width": 9}).signature.outputs[0].shape == (2, 9)


HALVES = """
net (float[batch, 2, n] x) => (float[batch, 2, m] y)
{
    half = MaxPool<kernel_shape = [2], strides = [2]>(x)
    scales = Constant<value_floats = [1.0, 1.0, 2.0]>()
    twice = Resize<mode = "nearest">(half, , scales)
    y = Add(x, twice)
}
"""


def test_sizes_are_multiples_of_the_step():
    shapes = {"x": (1, 2, Span(9, 101, 8))}
    model = import_model(text_model(HALVES), shapes=shapes)
    assert [str(symbol) for symbol in model.open.symbols] == ["n = 16..96:8"]
    assert all(one["n"] % 8 == 0 for one in model.open.sizes)
    with pytest.raises(ShapeError, match="a has no size"):
        import_open(
            {"x": (Span(13, 22, 4),), "y": (Span(13, 22, 6),)},
            {"x": ["a"], "y": ["a"]},
            lambda shapes: pytest.fail("nothing is imported"),
        )


def test_the_step_that_a_model_needs_is_told():
    with pytest.raises(ShapeError) as caught:
        import_model(text_model(HALVES), shapes={"x": (Span(1, 8), 2, Span(4, 99))})
    assert "batch = 1..8, n = 4..98:2" in str(caught.value)
    with pytest.raises(HeteroTVMError) as caught:  # no step helps
        import_model(text_model(HALVES.replace("2.0]", "3.0]")), shapes={"x": (1, 2, Span(4, 99))})
    assert ":2" not in str(caught.value)


TOTALS = """
totals (float[batch, n] x, float[batch, past] before, float[batch, total] mask) => (float[batch, total] y)
{
    both = Concat<axis = 1>(before, x)
    y = Add(both, mask)
}
"""


def test_a_dimension_that_must_be_the_sum_of_others_is_told():
    """A mask is as long as the past and the new tokens together, under a name of its own."""
    source, batch = text_model(TOTALS), Span(1, 4)
    spans = {"x": (batch, Span(1, 8)), "before": (batch, Span(0, 24)), "mask": (batch, Span(1, 32))}
    with pytest.raises(ShapeError) as caught:
        import_model(source, shapes=spans)
    assert "at the sum of two others only" in str(caught.value)
    assert "--shape mask=[batch,n+past]" in str(caught.value)
    assert import_model(source, shapes={**spans, "mask": ("batch", "n+past")}).open is not None


PAIRS = """
pairs (float[batch, n] x, float[rows, m] y, float[batch, n] z) => (float[batch, n] total)
{
    both = Concat<axis = 0>(x, y)
    total = Add(x, z)
}
"""


def test_dimensions_that_must_be_equal_are_one_and_told():
    """A mask's length may have a name of its own in the file (Dim.DYNAMIC); both are one symbol."""
    source = text_model(PAIRS)
    with pytest.warns(UserWarning, match=r"m = n; --shape y=\[rows,n\] says so"):
        model = import_model(source, shapes={"x": (Span(1, 4), Span(4, 40)), "y": (Span(1, 4), Span(4, 40))})
    assert [str(symbol) for symbol in model.open.symbols] == ["batch = 1..4", "n = 4..40", "rows = 1..4"]
    shapes = [spec.shape for spec in model.open.at({"batch": 3, "n": 7, "rows": 2}).signature.inputs]
    assert shapes == [(3, 7), (2, 7), (3, 7)]
    told = dict([parse_shape_option("y=[batch,n]")])
    model = import_model(source, shapes={"x": (Span(1, 4), Span(4, 40)), **told})
    assert [str(symbol) for symbol in model.open.symbols] == ["batch = 1..4", "n = 4..40"]
    assert {spec.shape for spec in model.open.at({"batch": 3, "n": 7}).signature.inputs} == {(3, 7)}
    with pytest.raises(HeteroTVMError) as caught:  # other ranges: nothing says that they are equal
        import_model(source, shapes={"x": (2, Span(4, 40)), "y": (2, Span(5, 41))})
    assert "equal sizes" not in str(caught.value)


def test_contradictions_are_listed():
    with pytest.raises(ShapeError) as caught:
        import_open(
            {"x": (Span(1, 6), Span(1, 4)), "y": (Span(1, 5), 3)},
            {"x": ["batch", 4], "y": ["batch", None]},
            lambda shapes: pytest.fail("nothing is imported"),
        )
    text = str(caught.value)
    assert "dimension 1 is fixed to 4" in text and "batch has several ranges" in text


def test_a_range_of_billions_is_not_gone_through():
    (largest, second, third) = (one["a"] for one in telling_sizes([Symbol("a", 1, 1 << 40)]))
    assert largest == 1 << 40 and abs(second / largest - 0.83) < 1e-6 and abs(third / largest - 0.64) < 1e-6


@pytest.mark.parametrize("high", [1, 2, 3, 5, 8, 64, 256, 512, 4096])
def test_the_sizes_that_tell_differ_and_begin_with_the_largest(high):
    sizes = telling_sizes([Symbol("a", 1, high), Symbol("b", 1, 77)])
    assert sizes[0]["a"] >= high and sizes[0]["b"] == 77
    assert len({one["a"] for one in sizes}) == 3 and len({one["b"] for one in sizes}) == 3
    assert sizes[1]["b"] == sizes[0]["b"] and sizes[2]["a"] == sizes[0]["a"]
    assert all(sizes[0]["a"] % one["a"] for one in (sizes[1], sizes[-1]))


def test_a_range_that_begins_below_the_program_is_no_sum_of_others():
    """A width below what a program was exported for was told to be the batch and the height together."""
    torch = pytest.importorskip("torch")
    sizes = {0: torch.export.Dim("b"), 2: torch.export.Dim("h"), 3: torch.export.Dim("w", min=64)}
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(2, 3, 64, 66),), dynamic_shapes=(sizes,))
    (name,) = program.graph_signature.user_inputs
    with pytest.raises(ShapeError, match="^The program was not exported for these shapes"):
        import_model(program, shapes={name: (Span(1, 7), 3, Span(64, 80), Span(32, 96))})


PYRAMID = """
net (float[1, 2, h, w] x) => (float[1, 2, h, w] y)
{
    half = AveragePool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)
    sizes = Shape(x)
    [up] twice = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric",
                        nearest_mode = "floor">(half, , , sizes)
    y = Sub(x, twice)
}
"""


def test_pyramids_of_even_and_odd_sides_are_one_model():
    shapes = {"x": (1, 2, Span(8, 40), Span(8, 40))}
    model = import_model(text_model(PYRAMID), shapes=shapes)
    steps = [[node.op_type for node in one.clean.proto.graph.node] for one in (model, *model.open.others)]
    assert all(one == steps[0] for one in steps)
    even = model.open.at({"h": 8, "w": 8})
    assert [node.op_type for node in even.clean.proto.graph.node] == steps[0]


@pytest.mark.thorough
def test_pyramids_at_all_sizes():
    shapes = {"x": (1, 2, Span(8, 40), Span(8, 40))}
    built = build_model(optimize_model(import_model(text_model(PYRAMID), shapes=shapes)), use_shipped=False)
    for height, width in zip(range(8, 41), range(40, 7, -1), strict=True):
        x = np.random.default_rng(height).random((1, 2, height, width), np.float32)
        rows, columns = ((np.arange(n) * -(-n // 2) // n) for n in (height, width))
        half = F.avg_pool2d(torch.from_numpy(x), 2, ceil_mode=True).numpy()
        np.testing.assert_allclose(built.run({"x": x})[0], x - half[..., rows[:, None], columns], atol=1e-6)
