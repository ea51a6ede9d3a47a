"""Batch norm folded into convolutions, and their epilogues."""

import numpy as np
import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.relax_passes.fusions.convolutions.conv2d import (
    BatchNormAsScale,
    FoldBatchNorm,
    FoldPad,
    FuseConv2d,
)
from tests.relax_passes.graphs import (
    calls,
    constant,
    contracts,
    fuse,
    module,
    names_of,
    op,
    relax,
    same_numbers,
    weights,
)
from tests.relax_passes.rewrite import Rewrite, bind, kernel

W, B = constant(weights(4, 3, 3, 3)), constant(weights(1, 4, 1, 1))
X = {"x": (2, 3, 6, 5)}
STATISTICS = (weights(4), weights(4, seed=1), weights(4, seed=2), np.abs(weights(4, seed=3)) + 0.1)


def conv(emit, x, weight=W, **attrs):
    return emit(op.nn.conv2d(x, weight, **{"padding": (1, 1), **attrs}))


def batch_norm(emit, x, statistics=STATISTICS, dtype="float32"):
    call = op.nn.batch_norm(x, *(constant(s, dtype) for s in statistics), axis=1, epsilon=1e-3)
    return emit(relax.TupleGetItem(emit(call), 0), "item")


def fused(body, inputs=X, **fusions):
    before = module(inputs, body)
    after, names, report = fuse(before, FoldBatchNorm(), FuseConv2d())
    assert report.fusions == fusions
    same_numbers(before, after)
    assert names_of(before) <= set().union(*names.values())
    return after, report


def epilogue(mod):
    (found,) = contracts(mod, "conv2d")
    return found.epilogue


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"padding": (0, 1, 2, 3)},
        {"strides": (2, 1)},
        {"dilation": (2, 1), "padding": (2, 2)},
        {"padding": 0},
    ],
)
def test_attributes(attrs):
    after, _ = fused(lambda e, x: conv(e, x, **attrs), conv_epilogue=1)
    assert calls(after) == {"conv2d": 1} and epilogue(after) == ()


@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_becomes_a_bias(bias):
    def body(emit, x):
        y = conv(emit, x)
        y = emit(op.add(B, y)) if bias else y
        return emit(op.nn.relu(batch_norm(emit, y)))

    after, _ = fused(body, conv_bn=1, conv_epilogue=1)
    assert calls(after) == {"conv2d": 1} and epilogue(after) == ("bias", "relu")


def test_depthwise_with_relu6():
    def body(emit, x):
        y = conv(emit, x, constant(weights(3, 1, 3, 3)), groups=3)
        return emit(op.clip(batch_norm(emit, y, [s[:3] for s in STATISTICS]), 0, 6))

    after, _ = fused(body, conv_bn=1, conv_epilogue=1)
    assert epilogue(after) == ("bias", "relu6") and contracts(after, "conv2d")[0].depthwise


@pytest.mark.parametrize("zero_first", [True, False])
def test_relu_as_maximum_and_minimum(zero_first):
    def body(emit, x):
        y = conv(emit, x)
        y = emit(op.maximum(constant(0.0), y) if zero_first else op.maximum(y, constant(0.0)))
        return emit(op.minimum(y, constant(6.0)))

    after, _ = fused(body, conv_epilogue=1)
    assert epilogue(after) == ("relu6",)
    after, _ = fused(lambda e, x: e(op.maximum(conv(e, x), constant(0.0))), conv_epilogue=1)
    assert epilogue(after) == ("relu",)


@pytest.mark.parametrize("bounds", [(0, 5), (-1, 6), (1, 6)])
def test_other_bounds_stay(bounds):
    after, _ = fused(lambda e, x: e(op.clip(conv(e, x), *bounds)), conv_epilogue=1)
    assert epilogue(after) == () and calls(after)["clip"] == 1


def test_maximum_with_another_bound_or_tensor_stays():
    after, _ = fused(lambda e, x: e(op.maximum(conv(e, x), constant(1.0))), conv_epilogue=1)
    assert epilogue(after) == ()
    both = {**X, "r": (2, 4, 6, 5)}
    after, _ = fused(lambda e, x, r: e(op.maximum(conv(e, x), r)), both, conv_epilogue=1)
    assert epilogue(after) == ()


def test_residual_then_relu():
    def body(emit, x, r):
        return emit(op.nn.relu(emit(op.add(r, batch_norm(emit, conv(emit, x))))))

    after, _ = fused(body, {**X, "r": (2, 4, 6, 5)}, conv_bn=1, conv_epilogue=1)
    assert epilogue(after) == ("bias", "residual", "relu")


def test_one_convolution_gates_another():
    """``relu6(conv(x)) * conv(x)``, the star of StarNet."""

    def body(emit, x):
        one = emit(op.clip(conv(emit, x), 0, 6))
        return emit(op.multiply(one, conv(emit, x, constant(weights(4, 3, 3, 3, seed=5)))))

    for claims, steps in ((lambda op: True, [(), ("relu6", "gate")]), (lambda op: False, [(), ("relu6",)])):
        before = module(X, body)
        after, _, _ = fuse(before, FuseConv2d(claims))
        same_numbers(before, after)
        assert sorted(found.epilogue for found in contracts(after, "conv2d")) == steps


def test_two_convolutions_added():
    def body(emit, x):
        return emit(op.add(conv(emit, x), conv(emit, x, constant(weights(4, 3, 3, 3, seed=5)))))

    after, _ = fused(body, conv_epilogue=2)
    assert sorted(found.epilogue for found in contracts(after, "conv2d")) == [(), ("residual",)]


def test_bias_behind_a_reshape():
    def body(emit, x):
        return emit(op.add(conv(emit, x), emit(op.reshape(constant(weights(4)), (1, 4, 1, 1)))))

    after, _ = fused(body, conv_epilogue=1)
    assert epilogue(after) == ("bias",) and calls(after) == {"conv2d": 1}


def test_a_constant_of_rows_is_no_bias():
    """Four rows, four channels: [4, 1] belongs to the rows."""
    square = {"x": (2, 3, 4, 5)}
    after, _ = fused(lambda e, x: e(op.add(conv(e, x), constant(weights(4, 1)))), square, conv_epilogue=1)
    assert epilogue(after) == ()


def test_results_in_between_stay():
    def body(emit, x):
        y = conv(emit, x)
        return emit(op.nn.relu(y)), y

    after, _ = fused(body, conv_epilogue=1)
    assert epilogue(after) == ()


def test_zeros_around_the_input_become_padding():
    def body(emit, x):
        y = emit(op.nn.pad(x, [0, 0, 0, 0, 1, 0, 2, 1]))
        return conv(emit, y, padding=(0, 1, 1, 0), strides=(1, 2))

    before = module(X, body)
    after, names, report = fuse(before, FoldPad(), FuseConv2d())
    same_numbers(before, after)
    assert calls(after) == {"conv2d": 1} and contracts(after, "conv2d")[0].padding == (1, 3, 1, 1)
    assert names_of(before) <= set().union(*names.values())
    assert report.fusions == {"conv_epilogue": 1}  # the pad is not counted


@pytest.mark.parametrize(
    ("width", "value", "reason"),
    [
        ([0, 0, 0, 0, 1, 1, 1, 1], 2.0, "something else than zeros"),
        ([0, 1, 0, 0, 1, 1, 1, 1], 0.0, "the batch or the channels"),
    ],
)
def test_other_pads_stay(width, value, reason):
    before = module(X, lambda e, x: conv(e, e(op.nn.pad(x, width, "constant", value))))
    after, _, report = fuse(before, FoldPad())
    assert calls(after) == {"pad": 1, "conv2d": 1}
    (miss,) = report.misses
    assert reason in miss["reason"]


def test_batch_norm_misses():
    def reasons(body, inputs=X):
        before = module(inputs, body)
        after, _, report = fuse(before, FoldBatchNorm())
        assert calls(after)["batch_norm"] == 1 and not report.fusions
        same_numbers(before, after)
        return [miss["reason"] for miss in report.misses]

    def used_before(emit, x):
        y = conv(emit, x)
        return batch_norm(emit, y), emit(op.tanh(y))

    def used_statistics(emit, x):
        both = emit(op.nn.batch_norm(conv(emit, x), *(constant(s) for s in STATISTICS), axis=1))
        return emit(relax.TupleGetItem(both, 0), "item"), emit(relax.TupleGetItem(both, 1), "item")

    assert reasons(used_before) == ["the convolution's result is used before normalisation as well"]
    assert reasons(used_statistics) == ["the running statistics are used as well"]
    variable = {**X, "w": (4, 3, 3, 3)}
    assert reasons(lambda e, x, w: batch_norm(e, conv(e, x, w)), variable) == [
        "weights or statistics are not constant"
    ]
    assert reasons(lambda e, x: batch_norm(e, e(op.tanh(x))), {"x": (2, 4, 6, 5)}) == []


def test_convolution_misses():
    variable = {**X, "w": (4, 3, 3, 3)}
    _, report = fused(lambda e, x, w: conv(e, x, w), variable)
    assert [miss["reason"] for miss in report.misses] == ["the weight is not constant"]
    after, _, _ = fuse(module(variable, lambda e, x, w: conv(e, x, w)), FuseConv2d(lambda op: True))
    (found,) = contracts(after, "conv2d")
    assert not found.constant_weight and not any(operand.constant for operand in found.inputs)
    before = module(
        {"x": (2, 6, 5, 3)}, lambda e, x: conv(e, x, constant(weights(4, 3, 3, 3)), data_layout="NHWC")
    )
    _, _, report = fuse(before, FuseConv2d())
    assert "layouts are NHWC and OIHW" in report.misses[0]["reason"]


def test_float16_stays_float16():
    before = module(
        X,
        lambda e, x: batch_norm(e, conv(e, x, constant(weights(4, 3, 3, 3), "float16")), dtype="float16"),
        "float16",
    )
    after, _, report = fuse(before, FoldBatchNorm(), FuseConv2d())
    relax.analysis.well_formed(after)
    assert str(after["main"].ret_ty.dtype) == "float16"
    assert any("float16" in miss["reason"] for miss in report.misses)


def test_shared_weights_fold_separately():
    other = tuple(2 * s for s in STATISTICS)

    def body(emit, x):
        return batch_norm(emit, conv(emit, x)), batch_norm(emit, conv(emit, x), other)

    fused(body, conv_bn=2, conv_epilogue=2)


IMAGE = {"x": (1, 3, 6, 6)}
FILTERS = weights(4, 3, 3, 3)


class TestFoldBatchNorm(Rewrite):
    rule = FoldBatchNorm()
    inputs = IMAGE

    def before(self, x):
        gamma, beta, mean, variance = (constant(np.full(4, value)) for value in (6.0, 1.0, 2.0, 8.0))
        y = op.nn.conv2d(x, constant(FILTERS))
        return relax.TupleGetItem(op.nn.batch_norm(y, gamma, beta, mean, variance, 1, epsilon=1.0), 0)

    def expected(self, x):
        # 6 / sqrt(8 + 1) = 2, and 1 - 2 * 2 = -3.
        y = op.nn.conv2d(x, constant(2 * FILTERS))
        return op.add(y, constant(np.full((1, 4, 1, 1), -3.0)))


class TestFoldPad(Rewrite):
    rule = FoldPad()
    inputs = IMAGE

    def before(self, x):
        padded = op.nn.pad(x, (0, 0, 0, 0, 1, 2, 3, 4))
        return op.nn.conv2d(padded, constant(FILTERS), padding=(1, 1, 1, 1))

    def expected(self, x):
        return op.nn.conv2d(x, constant(FILTERS), padding=(2, 4, 3, 5))


class TestFuseConv2d(Rewrite):
    rule = FuseConv2d()
    inputs = {**IMAGE, "y": (1, 4, 6, 6)}

    def before(self, x, y):
        product = op.nn.conv2d(x, constant(FILTERS), padding=(1, 1, 1, 1))
        biased = op.add(product, constant(weights(1, 4, 1, 1)))
        return op.nn.relu(op.add(biased, y))

    def expected(self, x, y):
        fused = Conv2d(1, 3, 6, 6, 4, (3, 3), padding=(1, 1, 1, 1), epilogue=("bias", "residual", "relu"))
        return kernel(fused, x, constant(FILTERS), constant(weights(1, 4, 1, 1).reshape(4)), y)


class TestBatchNormAsScale(Rewrite):
    rule = BatchNormAsScale()
    inputs = {"x": (2, 4, 3, 5)}

    def before(self, x):
        call = op.nn.batch_norm(x, *(constant(s) for s in STATISTICS), axis=1, epsilon=1e-3, training=False)
        return op.nn.relu(relax.TupleGetItem(bind(call), 0))

    def expected(self, x):
        gamma, beta, mean, variance = (s.astype("float64") for s in STATISTICS)
        factor = gamma / np.sqrt(variance + 1e-3)
        shift = beta - mean * factor
        scaled = op.multiply(x, constant(factor.reshape(1, 4, 1, 1)))
        return op.nn.relu(op.add(scaled, constant(shift.reshape(1, 4, 1, 1))))


def test_a_norm_with_statistics_that_are_read_stays():
    def body(emit, x):
        whole = emit(
            op.nn.batch_norm(x, *(constant(s[:3]) for s in STATISTICS), axis=1, epsilon=1e-3, training=False)
        )
        return emit(relax.TupleGetItem(whole, 0), "item"), emit(relax.TupleGetItem(whole, 1), "mean")

    after, _, _ = fuse(module(X, body), BatchNormAsScale())
    assert "batch_norm" in str(after["main"])


@pytest.mark.parametrize(("slope", "name"), [(0.2, "leaky_relu_0p2"), (0.01, "leaky_relu_0p01")])
def test_a_leaky_unit_ends_a_convolution(slope, name):
    before = module(X, lambda emit, x: emit(op.nn.leakyrelu(conv(emit, x), slope)))
    after, _, report = fuse(before, FuseConv2d())
    assert report.fusions == {"conv_epilogue": 1} and epilogue(after) == (name,)


def test_a_unit_that_grows_below_zero_stays():
    after, _, _ = fuse(module(X, lambda emit, x: emit(op.nn.leakyrelu(conv(emit, x), 1.5))), FuseConv2d())
    assert "leakyrelu" in str(after["main"])
