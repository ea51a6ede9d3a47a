"""Transposed convolutions as plain ones: the same numbers."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.forms.conv_transpose import ConvTransposeAsConv2d, ConvTransposeAsPhases
from tests.relax_passes.compiled import check_convolution, operators, result, rewritten
from tests.relax_passes.graphs import constant, op, weights
from tests.relax_passes.rewrite import Rewrite
from tests.selection import named

CASES = {
    "transposed": (
        (1, 5, 4, 6),
        lambda x: relax.op.nn.conv2d_transpose(
            x, constant(weights(5, 3, 4, 4)), strides=(2, 2), padding=(1, 1)
        ),
    ),
    "transposed, more rows behind": (
        (2, 3, 4, 5),
        lambda x: relax.op.nn.conv2d_transpose(
            x, constant(weights(3, 2, 3, 3)), strides=(2, 3), padding=(1, 0), output_padding=(1, 2)
        ),
    ),
    "transposed, one tap a result": (
        (2, 4, 3, 5),
        lambda x: relax.op.nn.conv2d_transpose(x, constant(weights(4, 3, 2, 2)), strides=(2, 2)),
    ),
    "transposed, groups": (
        (1, 6, 3, 5),
        lambda x: relax.op.nn.conv2d_transpose(
            x, constant(weights(6, 2, 3, 4)), strides=(2, 2), padding=(1, 1), groups=3
        ),
    ),
    "transposed, each channel alone, cut": (
        (1, 3, 4, 4),
        lambda x: relax.op.nn.conv2d_transpose(
            x, constant(weights(3, 1, 2, 2)), strides=(3, 3), padding=(2, 0), groups=3
        ),
    ),
    "transposed without strides": (
        (1, 3, 4, 5),
        lambda x: relax.op.nn.conv2d_transpose(x, constant(weights(3, 2, 3, 1)), padding=(1, 0)),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("shape, build", CASES.values(), ids=CASES.keys())
def test_the_numbers_stay(shape, build):
    check_convolution(shape, build, [ConvTransposeAsConv2d(), ConvTransposeAsPhases()])


PHASES = {
    **CASES,
    "one tap a phase": (
        (2, 4, 3, 5),
        lambda x: relax.op.nn.conv2d_transpose(x, constant(weights(4, 3, 2, 2)), strides=(2, 2)),
    ),
    "gaps, and cut beyond the filter": (
        (1, 2, 5, 4),
        lambda x: relax.op.nn.conv2d_transpose(
            x, constant(weights(2, 3, 2, 5)), strides=(3, 2), padding=(4, 3, 1, 5)
        ),
    ),
    "dilated without strides": (
        (1, 2, 5, 4),
        lambda x: relax.op.nn.conv2d_transpose(
            x, constant(weights(2, 3, 3, 2)), dilation=(2, 3), padding=(1, 2, 0, 1)
        ),
    ),
    "groups, dilated": (
        (1, 4, 4, 3),
        lambda x: relax.op.nn.conv2d_transpose(
            x, constant(weights(4, 3, 3, 2)), strides=(2, 1), dilation=(2, 3), groups=2, padding=(1, 1)
        ),
    ),
    "phases of unequal taps, each apart": (
        (2, 3, 5, 4),
        lambda x: relax.op.nn.conv2d_transpose(
            x, constant(weights(3, 16, 3, 3)), strides=(2, 2), padding=(1, 1), output_padding=(1, 1)
        ),
    ),
    "phases of unequal taps, cut on three sides": (
        (1, 3, 4, 5),
        lambda x: relax.op.nn.conv2d_transpose(
            x, constant(weights(3, 17, 5, 4)), strides=(3, 3), padding=(2, 0, 1, 3)
        ),
    ),
    "phases of unequal taps, one dimension": (
        (2, 3, 7),
        lambda x: relax.op.nn.conv1d_transpose(
            x, constant(weights(3, 16, 5)), strides=4, padding=1, output_padding=2
        ),
    ),
    "one dimension": (
        (2, 3, 7),
        lambda x: relax.op.nn.conv1d_transpose(
            x, constant(weights(3, 2, 5)), strides=3, padding=2, output_padding=1
        ),
    ),
}


APART = {name: case for name, case in PHASES.items() if "unequal" in name}


@pytest.mark.parametrize("shape, build", named(APART, {"phases of unequal taps, one dimension"}))
def test_phases_of_unequal_taps_multiply_no_zeros(shape, build):
    found = check_convolution(shape, build, [ConvTransposeAsPhases(lambda op: True)])
    assert found.count("relax.nn.conv2d") == (2 if len(shape) == 3 else 4)


FILTERS = {
    "a tap more in the first phase": ((16, 3, 3), {"strides": (2, 2), "output_padding": (1, 1)}),
    "phases without taps": ((3, 1, 2), {"strides": (3, 2)}),
    "phases without taps, groups": ((1, 2, 1), {"strides": (4, 3), "groups": 2, "output_padding": (1, 2)}),
    "dilated": ((17, 3, 2), {"strides": (2, 3), "dilation": (2, 2), "padding": (1, 0, 2, 1)}),
    "dilated by more than a stride": ((16, 2, 3), {"strides": (2, 2), "dilation": (3, 5)}),
    "cut beyond the filter": ((16, 4, 5), {"strides": (3, 2), "padding": (4, 3, 2, 4)}),
    "without strides": ((2, 3, 2), {"dilation": (2, 1), "padding": (2, 0)}),
}


def scattered(x, w, strides=(1, 1), dilation=(1, 1), padding=(0, 0), output_padding=(0, 0), groups=1):
    """The definition: every pixel adds its product with each tap where that lands."""
    above, left, below, right = padding * 2 if len(padding) == 2 else padding
    reach = [
        (size - 1) * s + d * (k - 1) + 1 + e
        for size, s, d, k, e in zip(x.shape[2:], strides, dilation, w.shape[2:], output_padding, strict=True)
    ]
    y = np.zeros((len(x), groups, w.shape[1], *reach), np.float32)
    by_group = w.reshape(groups, -1, *w.shape[1:])
    for i, j, a, b in np.ndindex(*x.shape[2:], *w.shape[2:]):
        pixel = x[:, :, i, j].reshape(len(x), groups, -1)
        row, column = i * strides[0] + a * dilation[0], j * strides[1] + b * dilation[1]
        y[:, :, :, row, column] += np.einsum("ngc,gco->ngo", pixel, by_group[..., a, b])
    y = y.reshape(len(x), -1, *reach)
    return y[:, :, above : reach[0] - below, left : reach[1] - right]


@pytest.mark.parametrize("computed", [False, True], ids=["constant", "computed"])
@pytest.mark.parametrize("filters, attributes", FILTERS.values(), ids=FILTERS.keys())
def test_infinity_enters_the_results_of_its_taps_alone(filters, attributes, computed):
    w = np.abs(weights(2, *filters)) + 0.5
    x = np.abs(weights(1, 2, 4, 5))
    x[0, 1, 1, 3], x[0, 0, 3, 0] = np.inf, np.nan
    bias = weights(1, filters[0] * attributes.get("groups", 1), 1, 1)

    def build(x, *given):
        y = relax.op.nn.conv2d_transpose(x, *(given or [constant(w)]), **attributes)
        return relax.op.add(y, relax.const(bias))

    arrays = [x, w] if computed else [x]
    after, report = rewritten(build, arrays, [ConvTransposeAsPhases(lambda op: True)])
    if computed and "dilation" in attributes:
        assert [miss["reason"] for miss in report.misses] == [
            "a dilated transposed convolution by computed filters"
        ]
        return
    assert "relax.nn.conv2d" in operators(after)
    np.testing.assert_allclose(
        result(after, arrays), scattered(x, w, **attributes) + bias, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "shape, build",
    named(
        PHASES,
        {
            "transposed",
            "transposed, groups",
            "transposed, each channel alone, cut",
            "transposed without strides",
            "one tap a phase",
            "phases of unequal taps, each apart",
            "one dimension",
        },
    ),
)
def test_transposed_convolutions_as_phases(shape, build):
    assert "relax.nn.pad" not in check_convolution(shape, build, [ConvTransposeAsPhases()])


@pytest.mark.thorough
def test_a_bias_behind_a_transposed_convolution_is_of_the_convolution():
    bias = constant(weights(1, 4, 1, 1))

    def build(x):
        return relax.op.add(
            relax.op.nn.conv2d_transpose(x, constant(weights(6, 2, 4, 4)), strides=(2, 2), groups=2), bias
        )

    found = check_convolution((1, 6, 3, 4), build, [ConvTransposeAsPhases()])
    assert found.index("relax.add") == found.index("relax.nn.conv2d") + 1


class TestConvTransposeAsConv2d(Rewrite):
    """Each filter has one channel, so it costs little that zeros are multiplied."""

    rule = ConvTransposeAsConv2d()
    inputs = {"x": (1, 2, 4, 5)}
    w = np.arange(12, dtype="float32").reshape(2, 1, 2, 3)

    def before(self, x):
        return op.nn.conv2d_transpose(x, constant(self.w), strides=(2, 3), groups=2)

    def expected(self, x):
        pixels = op.reshape(x, (1, 2, 4, 1, 5, 1))
        stuffed = op.reshape(op.nn.pad(pixels, (0,) * 7 + (1, 0, 0, 0, 2)), (1, 2, 8, 15))
        return op.nn.conv2d(stuffed, constant(self.w[:, :, ::-1, ::-1]), padding=(1, 2, 0, 0), groups=2)


class TestConvTransposeAsPhases(Rewrite):
    rule = ConvTransposeAsPhases()
    inputs = {"x": (1, 3, 4, 5)}
    w = np.arange(24, dtype="float32").reshape(3, 2, 2, 2)

    def before(self, x):
        return op.nn.conv2d_transpose(x, constant(self.w), strides=(2, 2))

    def expected(self, x):
        phases = op.nn.conv2d(x, constant(self.w.transpose(2, 3, 1, 0).reshape(8, 3, 1, 1)))
        apart = op.reshape(phases, (1, 1, 2, 2, 2, 4, 5))
        return op.reshape(op.permute_dims(apart, [0, 1, 4, 5, 2, 6, 3]), (1, 2, 8, 10))
