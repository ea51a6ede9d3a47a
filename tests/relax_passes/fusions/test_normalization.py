"""Layer and RMS norms written out, and row operators becoming kernels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.relax_passes.fusions.normalization import FuseLayerNorm, FuseRmsNorm
from tests.relax_passes.graphs import (
    calls,
    constant,
    contracts,
    fuse,
    module,
    names_of,
    op,
    same_numbers,
    weights,
)
from tests.relax_passes.rewrite import Rewrite, kernel

X = {"x": (2, 3, 8)}
EPS = constant(1e-5)


def norm(
    emit,
    x,
    *,
    centered=True,
    square="power",
    divide="divide",
    shift=True,
    scale=None,
    axis=-1,
    eps_first=False,
):
    base = emit(op.subtract(x, emit(op.mean(x, axis=[axis], keepdims=True)))) if centered else x
    squares = {
        "power": lambda: op.power(base, constant(2.0)),
        "product": lambda: op.multiply(base, base),
        "square": lambda: op.square(base),
    }
    mean = emit(op.mean(emit(squares[square]()), axis=[axis], keepdims=True))
    total = emit(op.add(EPS, mean) if eps_first else op.add(mean, EPS))
    if divide == "divide":
        y = emit(op.divide(base, emit(op.sqrt(total))))
    elif divide == "rsqrt":
        y = emit(op.multiply(emit(op.rsqrt(total)), base))
    else:
        y = emit(op.multiply(base, emit(op.divide(constant(1.0), emit(op.sqrt(total))))))
    scale = constant(weights(8)) if scale is None else scale
    y = emit(op.multiply(scale, y))
    return emit(op.add(y, constant(weights(8, seed=1)))) if shift else y


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("square", ["power", "product", "square"])
@pytest.mark.parametrize("divide", ["divide", "rsqrt", "reciprocal"])
@pytest.mark.parametrize("shift", [True, False])
def test_spellings(centered, square, divide, shift):
    spelling = {"centered": centered, "square": square, "divide": divide, "shift": shift}
    before = module(X, lambda e, x: norm(e, x, eps_first=shift, **spelling))
    after, names, report = fuse(before, FuseLayerNorm(), FuseRmsNorm())
    name = "layer_norm" if centered else "rms_norm"
    assert calls(after) == {"normalize": 1}
    assert report.fusions == {name: 1} and not report.misses
    assert set().union(*names.values()) == names_of(before)
    same_numbers(before, after)
    (found,) = contracts(after, "normalize")
    assert (found.centered, found.shifted) == (centered, shift)


def test_scale_of_higher_rank_is_a_vector():
    before = module(X, lambda e, x: norm(e, x, scale=constant(weights(1, 8))))
    after, _, report = fuse(before, FuseLayerNorm())
    assert report.fusions == {"layer_norm": 1}
    same_numbers(before, after)


@pytest.mark.parametrize("shape", [(), (1, 1, 1, 1)])
def test_a_row_of_one_value(shape):
    before = module({"x": (2, 3, 1)}, lambda e, x: norm(e, x, scale=constant(np.full(shape, 2)), shift=False))
    after, _, _ = fuse(before, FuseLayerNorm())
    same_numbers(before, after)


def test_other_dtypes_are_left_alone():
    def body(emit, x):
        half = lambda value: constant(value, "float16")  # noqa: E731
        base = emit(op.subtract(x, emit(op.mean(x, axis=[-1], keepdims=True))))
        mean = emit(op.mean(emit(op.multiply(base, base)), axis=[-1], keepdims=True))
        y = emit(op.divide(base, emit(op.sqrt(emit(op.add(mean, half(1e-3)))))))
        return emit(op.multiply(y, half(weights(8))))

    before = module(X, body, "float16")
    after, _, report = fuse(before, FuseLayerNorm())
    assert not report.fusions and calls(after) == calls(before)
    assert [miss["reason"] for miss in report.misses] == ["dtype is float16, expected float32"]


def miss(rule, body, inputs=X):
    before = module(inputs, body)
    after, _, report = fuse(before, rule)
    assert not report.fusions and calls(after) == calls(before)
    same_numbers(before, after)
    assert len(report.misses) <= 1
    return report.misses[0]["reason"] if report.misses else None


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize("rule", [FuseLayerNorm, FuseRmsNorm])
def test_another_axis(rule, claimed, axis):
    """Channels of an image: a kernel for that axis where there is one, else transposed there and back."""
    scale = constant(weights(*((3, 1, 1) if axis == 1 else (2, 1, 1, 1))))
    spelling = {"axis": axis, "scale": scale, "shift": False, "centered": rule is FuseLayerNorm}
    before = module({"x": (2, 3, 4, 5)}, lambda e, x: norm(e, x, **spelling))
    after, names, report = fuse(before, rule(lambda op: claimed))
    assert report.fusions == {rule.name: 1} and not report.misses
    assert set().union(*names.values()) == names_of(before)
    assert calls(after) == ({"normalize": 1} if claimed else {"normalize": 1, "permute_dims": 2})
    (found,) = contracts(after, "normalize")
    extents = (2, 3, 4, 5)
    lead, trail = extents[:axis], extents[axis + 1 :]
    assert (found.lead, found.n) == (lead if claimed else (*lead, *trail), extents[axis])
    assert found.trail == (trail if claimed else ())
    same_numbers(before, after)


def test_axes_apart():
    def body(emit, x):
        mean = emit(op.mean(emit(op.multiply(x, x)), axis=[0, 2], keepdims=True))
        return emit(op.divide(x, emit(op.sqrt(emit(op.add(mean, EPS))))))

    assert miss(FuseRmsNorm(), body) == "the mean is over axes [0, 2] of 3, expected neighbours"


@pytest.mark.parametrize("axis", [-1, 2])
@pytest.mark.parametrize("total", [False, True])
def test_a_mean_that_drops_its_axis_which_is_put_back(axis, total):
    """PyTorch's ``x.var(-1, keepdim=True, unbiased=False)``."""

    def body(emit, x):
        base = emit(op.subtract(x, emit(op.mean(x, axis=[axis], keepdims=True))))
        square = emit(op.multiply(base, base))
        if total:
            mean = emit(op.multiply(emit(op.sum(square, axis=[axis])), constant(1 / 8)))
        else:
            mean = emit(op.mean(square, axis=[axis]))
        kept = emit(op.reshape(mean, (2, 3, 1)))
        return emit(op.divide(base, emit(op.sqrt(emit(op.add(kept, EPS))))))

    before = module(X, body)
    after, names, report = fuse(before, FuseLayerNorm())
    assert report.fusions == {"layer_norm": 1} and calls(after) == {"normalize": 1}
    assert set().union(*names.values()) == names_of(before)
    same_numbers(before, after)


@pytest.mark.parametrize("shape", [(1, 2, 3), (3, 2, 1)])
def test_a_mean_that_is_put_back_elsewhere_is_none(shape):
    def body(emit, x):
        base = emit(op.subtract(x, emit(op.mean(x, axis=[-1], keepdims=True))))
        mean = emit(op.reshape(emit(op.mean(emit(op.multiply(base, base)), axis=[-1])), shape))
        return emit(op.sqrt(emit(op.add(mean, EPS))))

    assert miss(FuseLayerNorm(), body) is None


@pytest.mark.parametrize(
    ("unbiased", "behind", "reason"),
    [
        (
            True,
            True,
            "the variance is divided by 7, expected 8 (not unbiased) and epsilon is added behind the root, "
            "expected inside",
        ),
        (True, False, "the variance is divided by 7, expected 8 (not unbiased) and there is no epsilon"),
        (False, True, "epsilon is added behind the root, expected inside"),
        (False, False, "there is no epsilon"),
    ],
)
def test_a_deviation_of_another_kind_says_how_it_differs(unbiased, behind, reason):
    """``(x - mean) / (std + eps)`` as the Annotated Transformer has it, with PyTorch's unbiased ``std``."""

    def body(emit, x):
        base = emit(op.subtract(x, emit(op.mean(x, axis=[-1], keepdims=True))))
        variance = emit(op.mean(emit(op.multiply(base, base)), axis=[-1], keepdims=True))
        if unbiased:
            variance = emit(op.divide(emit(op.multiply(variance, constant(8.0))), constant(7.0)))
        deviation = emit(op.sqrt(variance))
        if behind:
            deviation = emit(op.add(deviation, EPS))
        return emit(op.divide(base, deviation))

    assert miss(FuseLayerNorm(), body) == reason


def test_a_deviation_that_divides_nothing_is_no_near_miss():
    def body(emit, x):
        base = emit(op.subtract(x, emit(op.mean(x, axis=[-1], keepdims=True))))
        return emit(op.sqrt(emit(op.mean(emit(op.multiply(base, base)), axis=[-1], keepdims=True))))

    assert miss(FuseLayerNorm(), body) is None


def test_scale_over_other_axes_stays_outside():
    def body(emit, x):
        return norm(emit, x, axis=1, shift=False, scale=constant(weights(8)))

    before = module(X, body)
    after, _, report = fuse(before, FuseLayerNorm(lambda op: True))
    assert calls(after) == {"normalize": 1, "multiply": 1} and not report.misses
    same_numbers(before, after)


@pytest.mark.parametrize("shift", [None, (8,), (1, 1, 8), ()])
def test_no_scale(shift):
    def body(emit, x):
        base = emit(op.subtract(x, emit(op.mean(x, axis=[-1], keepdims=True))))
        mean = emit(op.mean(emit(op.multiply(base, base)), axis=[-1], keepdims=True))
        y = emit(op.divide(base, emit(op.sqrt(emit(op.add(mean, EPS))))))
        return y if shift is None else emit(op.add(y, constant(weights(*shift))))

    before = module(X, body)
    after, _, report = fuse(before, FuseLayerNorm())
    assert report.fusions == {"layer_norm": 1} and calls(after) == {"normalize": 1}
    same_numbers(before, after)


def test_a_scale_for_each_row_stays_outside():
    def body(emit, x, s):
        y = norm(emit, x, shift=False, scale=s)
        return emit(op.multiply(y, constant(weights(2, 3, 1))))

    before = module({**X, "s": (2, 1, 8)}, body)
    after, _, report = fuse(before, FuseLayerNorm())
    assert calls(after) == {"normalize": 1, "multiply": 2} and not report.misses
    same_numbers(before, after)


@pytest.mark.parametrize("kind", ["variance", "sum", "operator", "flags", "rms_operator"])
def test_operators_and_their_parts(kind):
    def body(emit, x):
        gamma, beta = constant(weights(8)), constant(weights(8, seed=1))
        if kind == "operator":
            return emit(op.nn.layer_norm(x, gamma, beta, axes=[-1], epsilon=1e-3))
        if kind == "flags":
            return emit(op.nn.layer_norm(x, gamma, beta, axes=[2], epsilon=1e-3, center=True, scale=True))
        if kind == "rms_operator":
            return emit(op.nn.rms_norm(x, gamma, axes=[-1], epsilon=1e-3))
        mean = emit(op.mean(x, axis=[-1], keepdims=True))
        base = emit(op.subtract(x, mean))
        if kind == "variance":
            variance = emit(op.variance(x, axis=[-1], keepdims=True))
        else:
            total = emit(op.sum(emit(op.multiply(base, base)), axis=[-1], keepdims=True))
            variance = emit(op.divide(total, constant(8.0)))
        return emit(op.divide(base, emit(op.sqrt(emit(op.add(variance, EPS))))))

    before = module(X, body)
    after, names, report = fuse(before, FuseLayerNorm(), FuseRmsNorm())
    assert calls(after) == {"normalize": 1} and sum(report.fusions.values()) == 1 and not report.misses
    assert set().union(*names.values()) == names_of(before)
    same_numbers(before, after)


def test_over_two_axes():
    def body(emit, x):
        return emit(
            op.nn.layer_norm(x, constant(weights(3, 8)), constant(weights(3, 8, seed=1)), axes=[1, 2])
        )

    before = module(X, body)
    after, names, report = fuse(before, FuseLayerNorm())
    (found,) = contracts(after, "normalize")
    assert (found.lead, found.n) == ((2,), 24) and report.fusions == {"layer_norm": 1}
    same_numbers(before, after)


def test_sum_that_is_no_mean():
    def body(emit, x):
        total = emit(op.sum(emit(op.multiply(x, x)), axis=[-1], keepdims=True))
        return emit(op.divide(x, emit(op.sqrt(emit(op.add(emit(op.divide(total, constant(7.0))), EPS))))))

    assert miss(FuseRmsNorm(), body) is None


@settings(max_examples=25)
@given(st.data())
def test_random_norms(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    spelling = {
        "centered": data.draw(st.booleans()),
        "square": data.draw(st.sampled_from(["power", "product", "square"])),
        "divide": data.draw(st.sampled_from(["divide", "rsqrt", "reciprocal"])),
        "shift": False,
        "scale": constant(weights(*(1,) * data.draw(st.integers(0, len(shape) - 1)), shape[-1])),
    }
    before = module({"x": shape}, lambda e, x: norm(e, x, **spelling))
    after, _, report = fuse(before)
    assert sum(report.fusions.values()) == 1 and calls(after)["normalize"] == 1
    same_numbers(before, after)


def test_deviation_used_twice():
    def body(emit, x):
        mean = emit(op.mean(emit(op.multiply(x, x)), axis=[-1], keepdims=True))
        root = emit(op.sqrt(emit(op.add(mean, EPS))))
        return emit(op.multiply(emit(op.divide(x, root)), constant(weights(8)))), root

    assert "used more than once" in miss(FuseRmsNorm(), body)


def test_something_else_is_divided():
    def body(emit, x, y):
        mean = emit(op.mean(emit(op.multiply(x, x)), axis=[-1], keepdims=True))
        return emit(op.divide(y, emit(op.sqrt(emit(op.add(mean, EPS))))))

    assert "not divided" in miss(FuseRmsNorm(), body, {"x": (2, 8), "y": (2, 8)})


def test_mean_of_another_tensor_is_no_norm():
    def body(emit, x, y):
        base = emit(op.subtract(x, emit(op.mean(y, axis=[-1], keepdims=True))))
        mean = emit(op.mean(emit(op.multiply(base, base)), axis=[-1], keepdims=True))
        y = emit(op.divide(base, emit(op.sqrt(emit(op.add(mean, EPS))))))
        return emit(op.multiply(y, constant(weights(8))))

    assert miss(FuseLayerNorm(), body, {"x": (2, 8), "y": (2, 8)}) is None


def test_a_plain_square_root_is_no_near_miss():
    assert miss(FuseRmsNorm(), lambda e, x: e(op.sqrt(e(op.add(e(op.multiply(x, x)), EPS))))) is None


def test_two_norms_of_one_input_and_shared_weights():
    def body(emit, x):
        first = norm(emit, x)
        return norm(emit, first), first

    before = module(X, body)
    after, _, report = fuse(before)
    assert report.fusions == {"layer_norm": 2}
    assert calls(after) == {"normalize": 2}
    same_numbers(before, after)


def test_disabled_rules_do_not_run():
    before = module(X, norm)
    after, _, report = fuse(before, disabled=["layer_norm", "expand_powers"])
    assert calls(after) == calls(before) and not report.fusions


class TestFuseLayerNorm(Rewrite):
    rule = FuseLayerNorm()

    def before(self, x):
        centered = op.subtract(x, op.mean(x, [2], keepdims=True))
        variance = op.mean(op.multiply(centered, centered), [2], keepdims=True)
        y = op.divide(centered, op.sqrt(op.add(variance, constant(0.25))))
        return op.add(op.multiply(y, constant(weights(4))), constant(weights(4, seed=1)))

    def expected(self, x):
        return kernel(Normalization((2, 3), 4, 0.25), x, constant(weights(4)), constant(weights(4, seed=1)))


class TestFuseRmsNorm(Rewrite):
    rule = FuseRmsNorm()

    def before(self, x):
        variance = op.mean(op.multiply(x, x), [2], keepdims=True)
        y = op.multiply(x, op.rsqrt(op.add(variance, constant(0.25))))
        return op.multiply(y, constant(weights(4)))

    def expected(self, x):
        return kernel(Normalization((2, 3), 4, 0.25, centered=False, shifted=False), x, constant(weights(4)))


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_an_epsilon_with_more_axes_is_not_fused(centered, scaled):
    """The result has as many axes, so that a scale would be taken along others."""

    def body(emit, x):
        base = emit(op.subtract(x, emit(op.mean(x, axis=[-1], keepdims=True)))) if centered else x
        mean = emit(op.mean(emit(op.multiply(base, base)), axis=[-1], keepdims=True))
        y = emit(op.divide(base, emit(op.sqrt(emit(op.add(mean, constant(np.full((1, 1, 1, 1), 1e-5))))))))
        return emit(op.multiply(y, constant(weights(8).reshape(1, 1, 1, 8)))) if scaled else y

    before = module(X, body)
    after, _, report = fuse(before, FuseLayerNorm() if centered else FuseRmsNorm())
    assert not report.fusions and "more axes" in report.misses[0]["reason"]
    same_numbers(before, after)
