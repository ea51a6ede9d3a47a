"""Functions of elements of rows on images: operands, constants, and what they leave alone."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.forms.rows_as_images import (
    ChannelsApart,
    ChannelsOfImages,
    ChannelsOfRows,
    ElementsOfImages,
    NormOfImages,
    RowsAsImages,
)
from tests.frontend.onnx.helpers import text_model
from tests.relax_passes.compiled import floats, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, bind

RULE = ElementsOfImages()


def rows(image):
    return op.reshape(image, (2, 3, 5))


class TestElementsOfImages(Rewrite):
    rule = RULE
    inputs = {"x": (2, 3, 1, 5), "y": (2, 3, 5)}
    bias = np.arange(3, dtype="float32").reshape(3, 1)

    def before(self, x, y):
        return op.nn.relu(op.add(op.add(rows(x), constant(self.bias)), y))

    def expected(self, x, y):
        sums = op.add(x, constant(self.bias.reshape(1, 3, 1, 1)))
        return rows(op.nn.relu(op.add(sums, op.reshape(y, (2, 3, 1, 5)))))


def test_the_numbers_stay():
    arrays = [floats(2, 3, 1, 5), floats(1, 3, 5), floats(5)]

    def build(x, y, z):
        return op.tanh(op.multiply(op.subtract(y, rows(x)), z))

    after, _ = rewritten(build, arrays, [RULE])
    x, y, z = arrays
    np.testing.assert_allclose(result(after, arrays), np.tanh((y - x[:, :, 0]) * z), rtol=1e-5, atol=1e-6)


class TestOtherReshapesStay(Rewrite):
    rule = RULE
    inputs = {"x": (2, 15), "y": (2, 5, 1, 3)}

    def before(self, x, y):
        return op.add(op.nn.relu(op.reshape(x, (2, 3, 5))), op.exp(op.reshape(y, (2, 3, 5))))

    expected = before


class TestChannelsApart(Rewrite):
    """Parts of an image, and of rows that one has become; the other rule goes on from there."""

    rule = RowsAsImages()
    inputs = {"x": (2, 6, 1, 5), "y": (2, 4, 3, 3)}

    def before(self, x, y):
        parts, halves = op.split(op.reshape(x, (2, 6, 5)), 2, 1), op.split(y, [1], 1)
        return op.multiply(op.tanh(parts[0]), op.sigmoid(parts[1])), halves[1]

    def expected(self, x, y):
        first, second = (op.strided_slice(x, [1], [n], [n + 3], [1]) for n in (0, 3))
        product = op.multiply(op.tanh(first), op.sigmoid(second))
        return op.reshape(product, (2, 3, 5)), op.strided_slice(y, [1], [1], [4], [1])


class TestChannelsOfRows(Rewrite):
    """Largest values and means of whole channels."""

    rule = ChannelsOfRows()
    inputs = {"x": (2, 6, 1, 5)}

    def before(self, x):
        rows = op.reshape(x, (2, 6, 5))
        return op.max(rows, [2]), op.mean(rows, [-1], keepdims=True)

    def expected(self, x):
        largest = op.reshape(op.nn.max_pool2d(x, (1, 5), (1, 5)), (2, 6))
        mean = op.reshape(op.mean(x, [2, 3], keepdims=True), (2, 6, 1))
        return largest, mean


class TestExtremesOverChannelsStay(Rewrite):
    rule = ChannelsOfRows()
    inputs = {"x": (2, 6, 1, 5)}

    def before(self, x):
        return op.max(op.reshape(x, (2, 6, 5)), [1])

    expected = before


class TestChannelsOfImages(Rewrite):
    rule = ChannelsOfImages()
    inputs = {"x": (2, 6, 1, 5), "y": (2, 4, 5)}

    def before(self, x, y):
        part = op.strided_slice(op.reshape(x, (2, 6, 5)), [1], [1], [6], [2])
        return part, op.concat([op.reshape(x, (2, 6, 5)), y], 1)

    def expected(self, x, y):
        part = op.reshape(op.strided_slice(x, [1], [1], [6], [2]), (2, 3, 5))
        return part, op.concat([op.reshape(x, (2, 6, 5)), y], 1)


class TestNormOfImages(Rewrite):
    rule = NormOfImages()
    inputs = {"x": (2, 3, 1, 5)}

    def norm(self, x):
        numbers = [constant(np.arange(3, dtype="float32") + n) for n in range(4)]
        return bind(relax.TupleGetItem(bind(op.nn.batch_norm(x, *numbers, axis=1)), 0))

    def before(self, x):
        return self.norm(op.reshape(x, (2, 3, 5)))

    def expected(self, x):
        return op.reshape(self.norm(x), (2, 3, 5))


class TestGatesOfRows(Rewrite):
    """Halves that a gate takes, and what goes on beside them; slices of pixels stay."""

    rule = RowsAsImages()
    inputs = {"x": (2, 6, 1, 5), "y": (2, 4, 1, 5)}

    def before(self, x, y):
        rows, others = op.reshape(x, (2, 6, 5)), op.reshape(y, (2, 4, 5))
        gate = op.tanh(op.strided_slice(rows, [1], [-3], [2**63 - 1], [1]))
        return op.concat([gate, others], 1), op.strided_slice(rows, [2], [0], [2], [1])

    def expected(self, x, y):
        rows = bind(op.reshape(x, (2, 6, 5)))
        gate = op.tanh(op.strided_slice(x, [1], [-3], [2**63 - 1], [1]))
        joined = op.reshape(op.concat([gate, y], 1), (2, 7, 5))
        return joined, op.strided_slice(rows, [2], [0], [2], [1])


def test_other_axes_stay():
    def build(x):
        parts = op.split(x, 2, 2)
        return op.add(parts[0], parts[1])

    after, _ = rewritten(build, [floats(2, 3, 4, 5)], [ChannelsApart()])
    assert "R.split" in after.script(show_meta=False)


class TestSplitOfAnImage(Rewrite):
    rule = ChannelsApart()
    inputs = {"x": (2, 6, 4, 5)}

    def before(self, x):
        parts = bind(op.split(x, [2], axis=1))
        return bind(relax.TupleGetItem(parts, 0)), bind(relax.TupleGetItem(parts, 1))

    def expected(self, x):
        first = bind(op.strided_slice(x, [1], [0], [2], [1]))
        return first, bind(op.strided_slice(x, [1], [2], [6], [1]))


def test_constants_of_float64_stay():
    model = text_model(
        """g (double[1,3,1,1] x) => (double[1,3,1] y) <int64[3] shape = {1, 3, -1}, double[1] factor = {-1.5}>
        { r = Reshape (x, shape) y = Mul (r, factor) }"""
    )
    built = build_model(optimize_model(import_model(model)), use_shipped=False)
    x = np.arange(3, dtype=np.float64).reshape(1, 3, 1, 1)
    np.testing.assert_array_equal(built.run({"x": x})[0], x[..., 0] * -1.5)


@pytest.mark.thorough
def test_norms_between_convolutions_of_rows_stay_in_blocks():
    """Behind an activation no convolution takes the norm; it works on the blocks of its neighbours."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.Conv1d(c, 32, 3, padding=1) for c in (32, 16))
            self.norm = torch.nn.BatchNorm1d(32)
            self.norm.running_mean.uniform_(-1, 1)
            self.norm.running_var.uniform_(0.5, 2)

        def forward(self, x):
            left, right = self.norm(self.first(x).relu()).chunk(2, 1)
            return self.second(left.tanh() * right.sigmoid())

    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(1, 32, 40)
    optimized = optimize_model(import_model(torch.export.export(net, (x,))))
    assert len(optimized.report.conversions) == 2, "the model's input and result alone"
    built = build_model(optimized, use_shipped=False)
    np.testing.assert_allclose(built.run({"x": x.numpy()})[0], net(x).detach(), rtol=1e-5, atol=1e-5)
