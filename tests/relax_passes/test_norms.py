"""Layer and RMS norms written out, and row operators becoming kernels."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.layer_norm import LayerNorm, RmsNorm
from hetero_tvm.relax_passes.rows import ClaimNorm, ClaimSoftmax
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
    after, names, report = fuse(before, LayerNorm(), RmsNorm())
    name = "layer_norm" if centered else "rms_norm"
    assert calls(after) == ({name: 1} if centered or not shift else {name: 1, "add": 1})
    assert report.fusions == {name: 1} and not report.misses
    assert set().union(*names.values()) == names_of(before)
    same_numbers(before, after)
    claimed, _, _ = fuse(after, ClaimNorm())
    assert contracts(claimed, "normalize")[0].centered == centered
    same_numbers(before, claimed)


def test_scale_of_higher_rank_is_a_vector():
    before = module(X, lambda e, x: norm(e, x, scale=constant(weights(1, 8))))
    after, _, report = fuse(before, LayerNorm())
    assert report.fusions == {"layer_norm": 1}
    same_numbers(before, after)


@pytest.mark.parametrize("shape", [(), (1, 1, 1, 1)])
def test_a_row_of_one_value(shape):
    before = module({"x": (2, 3, 1)}, lambda e, x: norm(e, x, scale=constant(np.full(shape, 2)), shift=False))
    after, _, _ = fuse(before, LayerNorm())
    same_numbers(before, after)


def test_other_dtypes_keep_theirs():
    def body(emit, x):
        half = lambda value: constant(value, "float16")  # noqa: E731
        base = emit(op.subtract(x, emit(op.mean(x, axis=[-1], keepdims=True))))
        mean = emit(op.mean(emit(op.multiply(base, base)), axis=[-1], keepdims=True))
        y = emit(op.divide(base, emit(op.sqrt(emit(op.add(mean, half(1e-3)))))))
        return emit(op.multiply(y, half(weights(8))))

    before = module(X, body, "float16")
    after, _, report = fuse(before, LayerNorm(), ClaimNorm())
    assert report.fusions == {"layer_norm": 1}
    assert [miss["reason"] for miss in report.misses] == ["dtype is float16, expected float32"]
    assert str(after["main"].ret_ty.dtype) == "float16"
    relax.analysis.well_formed(after)


def miss(rule, body, inputs=X):
    before = module(inputs, body)
    after, _, report = fuse(before, rule)
    assert not report.fusions and calls(after) == calls(before)
    same_numbers(before, after)
    assert len(report.misses) <= 1
    return report.misses[0]["reason"] if report.misses else None


def test_another_axis():
    assert "expected the last" in miss(LayerNorm(), lambda e, x: norm(e, x, axis=1, scale=constant(1.0)))


def test_no_scale():
    def body(emit, x):
        base = emit(op.subtract(x, emit(op.mean(x, axis=[-1], keepdims=True))))
        mean = emit(op.mean(emit(op.multiply(base, base)), axis=[-1], keepdims=True))
        return emit(op.divide(base, emit(op.sqrt(emit(op.add(mean, EPS))))))

    assert "not multiplied by a constant vector" in miss(LayerNorm(), body)


def test_deviation_used_twice():
    def body(emit, x):
        mean = emit(op.mean(emit(op.multiply(x, x)), axis=[-1], keepdims=True))
        root = emit(op.sqrt(emit(op.add(mean, EPS))))
        return emit(op.multiply(emit(op.divide(x, root)), constant(weights(8)))), root

    assert "used more than once" in miss(RmsNorm(), body)


def test_something_else_is_divided():
    def body(emit, x, y):
        mean = emit(op.mean(emit(op.multiply(x, x)), axis=[-1], keepdims=True))
        return emit(op.divide(y, emit(op.sqrt(emit(op.add(mean, EPS))))))

    assert "not divided" in miss(RmsNorm(), body, {"x": (2, 8), "y": (2, 8)})


def test_mean_of_another_tensor_is_no_norm():
    def body(emit, x, y):
        base = emit(op.subtract(x, emit(op.mean(y, axis=[-1], keepdims=True))))
        mean = emit(op.mean(emit(op.multiply(base, base)), axis=[-1], keepdims=True))
        y = emit(op.divide(base, emit(op.sqrt(emit(op.add(mean, EPS))))))
        return emit(op.multiply(y, constant(weights(8))))

    assert miss(LayerNorm(), body, {"x": (2, 8), "y": (2, 8)}) is None


def test_a_plain_square_root_is_no_near_miss():
    assert miss(RmsNorm(), lambda e, x: e(op.sqrt(e(op.add(e(op.multiply(x, x)), EPS))))) is None


@pytest.mark.parametrize(("axis", "claimed"), [(-1, True), (2, True), (1, False)])
def test_softmax_over_the_last_axis_only(axis, claimed):
    before = module(X, lambda e, x: e(op.nn.softmax(x, axis=axis)))
    after, _, report = fuse(before, ClaimSoftmax())
    assert calls(after) == {"softmax": 1}
    assert bool(contracts(after, "softmax")) == claimed
    assert [m["reason"] for m in report.misses] == ([] if claimed else ["axis 1 of 3, expected the last"])
    same_numbers(before, after)


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
    after, _, report = fuse(before, disabled=["layer_norm", "norm_kernel"])
    assert calls(after) == calls(before) and not report.fusions
