"""Whole quotients among extents are found, and one library gives the numbers of every size."""

import numpy as np
import onnxruntime
import pytest

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.compile.dynamic import quotients
from hetero_tvm.compile.dynamic.quotients import with_quotients
from hetero_tvm.compile.linking import machine
from hetero_tvm.errors import InputError
from hetero_tvm.frontend import Span
from hetero_tvm.host.tvm import tvm
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough

STRIDES = """
net (float[1, 2, n] x) => (float[1, 3, m] y)
{
    w = Constant<value_floats = [0.5, -1.0, 0.25, 2.0, 1.0, -0.5, 0.75, 0.1, -0.2, 1.5, 0.3, -0.7,
                                 0.9, 0.2, -0.4, 0.6, -1.1, 0.8]>()
    shape = Constant<value_ints = [3, 2, 3]>()
    weight = Reshape(w, shape)
    strided = Conv<strides = [2], pads = [1, 0]>(x, weight)
    y = MaxPool<kernel_shape = [3], strides = [3]>(strided)
}
"""


def test_a_strided_convolution_and_a_pool_are_one_quotient_at_every_residue(tmp_path):
    model = text_model(STRIDES)
    optimized = optimize_model(import_model(model, shapes={"x": (1, 2, Span(12, 40))}))
    assert str(optimized.signature.outputs[0].shape[2]) == "(n//6)"
    net = hetero_tvm.load(build_model(optimized).export(tmp_path / "net.so"))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for length in range(12, 41):  # all residues of six, and both ends
        x = np.random.default_rng(length).standard_normal((1, 2, length)).astype("float32")
        (wanted,) = session.run(None, {"x": x})
        assert net(x).shape == wanted.shape
        # float32 sums of six products, in another order
        np.testing.assert_allclose(net(x), wanted, atol=1e-5)


MEANS = """
net (float[1, 5, h, w] x) => (float[1, 5, p, q] y, float[1, 5, r, s] z)
{
    y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x)
    z = AveragePool<kernel_shape = [3, 2], strides = [2, 2], auto_pad = "SAME_UPPER",
                    count_include_pad = 1>(x)
}
"""


@pytest.mark.thorough
def test_means_of_windows_over_the_edge_have_one_kernel(tmp_path):
    model = text_model(MEANS, opset=18)
    shapes = {"x": (1, 5, Span(4, 40), Span(4, 40))}
    net = hetero_tvm.load(
        build_model(optimize_model(import_model(model, shapes=shapes))).export(tmp_path / "n.so")
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for height, width in ((4, 5), (5, 4), (17, 40), (40, 33), (12, 12)):
        x = np.random.default_rng(height).standard_normal((1, 5, height, width)).astype("float32")
        for ours, wanted in zip(net(x), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(ours, wanted, atol=1e-6)  # float32 sums of nine values


HALVES = """
net (float[n, 4] x) => (float[n, 4] y) {
  shape = Shape (x)
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  two = Constant <value_int = 2> ()
  n = Gather (shape, zero)
  half = Div (n, two)
  places = Range (zero, n, one)
  first = Less (places, half)
  axis = Constant <value_ints = [1]> ()
  rows = Unsqueeze (first, axis)
  other = Neg (x)
  y = Where (rows, x, other)
}
"""


def test_a_mask_of_half_the_rows_follows_the_size(tmp_path):
    model = text_model(HALVES, opset=17)
    net = hetero_tvm.load(
        build_model(optimize_model(import_model(model, shapes={"x": (Span(1, 20), 4)}))).export(
            tmp_path / "n.so"
        )
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (1, 2, 3, 11, 20):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype("float32")
        np.testing.assert_array_equal(net(x), session.run(None, {"x": x})[0])


WINDOWS = """
net (float[1, n, m] x) => (float[1, n, m] y)
{
    eight = Constant<value_ints = [8]>()
    size = Shape<start = 1>(x)
    over = Mod(size, eight)
    missing = Sub(eight, over)
    more = Mod(missing, eight)
    none = Constant<value_ints = [0, 0, 0, 0]>()
    pads = Concat<axis = 0>(none, more)
    padded = Pad(x, pads)
    rows = Constant<value_ints = [-1, 8]>()
    two = Constant<value_ints = [2]>()
    long = Shape(padded)
    wide = Gather<axis = 0>(long, two)
    split = Concat<axis = 0>(rows, wide)
    windows = Reshape(padded, split)
    shares = Softmax<axis = 1>(windows)
    whole = Reshape(shares, long)
    from = Constant<value_ints = [0, 0]>()
    axes = Constant<value_ints = [1, 2]>()
    y = Slice(whole, from, size, axes)
}
"""


@pytest.mark.thorough
@pytest.mark.parametrize("high", [41, *thorough([40])])
def test_lengths_are_padded_to_a_multiple(tmp_path, high):
    """Largest sizes that need no padding, and such that do."""
    model = text_model(WINDOWS)
    shapes = {"x": (1, Span(1, high), Span(1, high))}
    net = hetero_tvm.load(
        build_model(optimize_model(import_model(model, shapes=shapes))).export(tmp_path / "n.so")
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for n, m in ((1, 8), (8, 1), (16, 39), (high, high), (33, 24)):
        x = np.random.default_rng(n).standard_normal((1, n, m)).astype("float32")
        np.testing.assert_allclose(net(x), session.run(None, {"x": x})[0], atol=1e-6)  # float32 sums of eight


BLOCKS = """
net (float[2, 4, n] x) => (float[2, 8, m] y, float[2, 4, n] z)
{
    four = Constant<value_ints = [4]>()
    size = Shape<start = 2>(x)
    over = Mod(size, four)
    missing = Sub(four, over)
    more = Mod(missing, four)
    none = Constant<value_ints = [0, 0, 0, 0, 0]>()
    pads = Concat<axis = 0>(none, more)
    padded = Pad(x, pads)
    few = Constant<value_float = 0.5>()
    shape = Constant<value_ints = [8, 4, 4]>()
    weight = Expand(few, shape)
    y = Conv<strides = [4]>(padded, weight)
    shares = Softmax(padded)
    first = Constant<value_ints = [0]>()
    axis = Constant<value_ints = [2]>()
    cut = Slice(shares, first, size, axis)
    z = Relu(cut)
}
"""


@pytest.mark.thorough
def test_a_quotient_is_told_where_multiples_are_another_model(tmp_path):
    """All that tells (n + 3)//4 from (n + 4)//4 are sizes that are not padded."""
    model = text_model(BLOCKS)
    optimized = optimize_model(import_model(model, shapes={"x": (2, 4, Span(2, 64))}))
    assert str(optimized.signature.outputs[0].shape[2]) == "((n + 3)//4)"
    net = hetero_tvm.load(build_model(optimized).export(tmp_path / "n.so"))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for length in (2, 3, 4, 5, 31, 32, 63, 64):
        x = np.random.default_rng(length).standard_normal((2, 4, length)).astype("float32")
        for ours, wanted in zip(net(x), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(ours, wanted, atol=1e-5)  # float32 sums of 16


JOINED = """
net (float[batch, 2, h, w] x) => (float[batch, 4, h, w] y)
{
    k = Constant<value_floats = [0.5, -1.0, 0.25, 2.0, 1.0, -0.5, 0.75, 0.1]>()
    four = Constant<value_ints = [2, 1, 2, 2]>()
    kernel = Reshape(k, four)
    half = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
    quarter = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(half)
    up = ConvTranspose<strides = [2, 2], group = 2>(quarter, kernel)
    both = Add(half, up)
    scales = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
    large = Resize<mode = "linear">(both, , scales)
    y = Concat<axis = 1>(x, large)
}
"""


@pytest.mark.thorough
def test_images_that_are_halved_and_joined_again_take_multiples(tmp_path):
    model = text_model(JOINED)
    shapes = {"x": (Span(1, 3), 2, Span(8, 40, 4), Span(4, 36, 4))}
    optimized = optimize_model(import_model(model, shapes=shapes))
    assert optimized.signature.outputs[0].shape == ("batch", 4, "h", "w")
    built = build_model(optimized)
    net = hetero_tvm.load(built.export(tmp_path / "net.so"))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for batch, height, width in ((1, 8, 4), (3, 40, 36), (2, 12, 28), (1, 36, 8)):
        x = np.random.default_rng(height).standard_normal((batch, 2, height, width)).astype("float32")
        (wanted,) = session.run(None, {"x": x})
        np.testing.assert_allclose(net(x), wanted, atol=1e-5)  # float32 sums of few terms
    with pytest.raises(InputError, match="not a multiple of 4"):
        net(np.zeros((1, 2, 10, 8), "float32"))
    main = machine(built.executable, [tvm.cpu()])["main"]
    with pytest.raises(IndexError, match="not a multiple of 4"):  # as C and C++ call it
        main(tvm.runtime.tensor(np.zeros((1, 2, 12, 10), "float32")))


def test_a_quotient_that_is_not_told_is_not_guessed(monkeypatch):
    """(2*n + 3)//7 is (n + 3)//4 at all the sizes that are asked first."""
    monkeypatch.setattr(quotients._Search, "_special", lambda *_given: None)
    model = import_model(text_model(BLOCKS), shapes={"x": (2, 4, Span(2, 64))})
    assert not [name for name in with_quotients(model).open.sizes[0] if name != "n"]


def test_a_model_without_quotients_stays_as_it_is():
    text = "g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"
    model = import_model(text_model(text), shapes={"x": (Span(2, 30), 4)})
    assert with_quotients(model) is model


@pytest.mark.parametrize("size", [4097, 6001])
def test_large_strides_are_told_apart_by_few_imports(size):
    text = """
    frames (float[1, 1, n] x) => (float[1, 1, m] y)
    {
        y = AveragePool<kernel_shape = [400], strides = [160]>(x)
    }
    """
    model = with_quotients(import_model(text_model(text), shapes={"x": (1, 1, Span(400, size))}))
    assert [name for name in model.open.sizes[0] if name != "n"] == ["((n + 80)//160)"]


@pytest.mark.thorough
def test_candidates_are_divided_also_by_sizes_at_which_the_model_is_another_one(monkeypatch):
    """As in a U-Net of frames: 37 of 64 sizes have a level where nothing is cut, among them all at which one
    quotient is not the next."""
    levels = [
        f"""
        x{n + 1} = MaxPool<kernel_shape = [8], strides = [4]>(x{n})
        many{n} = Shape<start = 2>(x{n + 1})
        strides{n} = Mul(many{n}, stride)
        whole{n} = Add(strides{n}, stride)
        cut{n} = Slice(x{n}, first, whole{n}, axis)
        y{n} = Relu(cut{n})"""
        for n in range(3)
    ]
    text = f"""
    levels (float[1, 1, n] x0) => (float[1, 1, m] y)
    {{
        first = Constant<value_ints = [0]>()
        axis = Constant<value_ints = [2]>()
        stride = Constant<value_ints = [4]>()
        {"".join(levels)}
        y = Concat<axis = 2>(y0, y1, y2)
    }}
    """
    model = import_model(text_model(text), shapes={"x0": (1, 1, Span(4000, 24000))})
    asked = []
    ask = quotients._Search._ask
    monkeypatch.setattr(quotients._Search, "_ask", lambda self, size: asked.append(size) or ask(self, size))
    names = [name for name in with_quotients(model).open.sizes[0] if name != "n"]
    assert names == ["(n//4)", "((n + 12)//16)", "((n + 44)//64)"]
    assert len(set(asked)) < 200  # of 20,000; each is an import
