"""Chains of reshapes, transposes and casts become one."""

import pytest

from hetero_tvm.relax_passes.canonical.views import CancelReshapes, MergeCasts, MergeReshapes, MergeTransposes
from tests.relax_passes.canonical.simplified import X, simplified
from tests.relax_passes.graphs import (
    calls,
    constant,
    fuse,
    module,
    op,
)
from tests.relax_passes.rewrite import Rewrite


def test_views_that_undo_each_other():
    def body(emit, x):
        y = emit(op.reshape(emit(op.reshape(x, (6, 4))), (2, 3, 4)))
        return emit(op.tanh(emit(op.squeeze(emit(op.expand_dims(y, 1)), 1))))

    assert simplified(body, CancelReshapes()) == {"tanh": 1}


def test_reshapes_are_merged():
    def body(emit, x):
        return emit(op.tanh(emit(op.expand_dims(emit(op.reshape(emit(op.reshape(x, (24,))), (4, 6))), 0))))

    assert simplified(body, MergeReshapes()) == {"reshape": 1, "tanh": 1}
    assert simplified(body, CancelReshapes()) == {"reshape": 2, "expand_dims": 1, "tanh": 1}


@pytest.mark.parametrize(
    ("second", "left"), [([1, 2, 0], {}), ([2, 0, 1], {"permute_dims": 1}), (None, {"permute_dims": 1})]
)
def test_transposes_are_merged(second, left):
    def body(emit, x):
        return emit(op.tanh(emit(op.permute_dims(emit(op.permute_dims(x, [2, 0, 1])), second))))

    assert simplified(body, MergeTransposes()) == {**left, "tanh": 1}


def test_casts():
    def body(middle):
        return lambda e, x: e(
            op.multiply(x, e(op.astype(e(op.astype(e(op.less(x, constant(0.0))), middle)), "float32")))
        )

    for middle in ("int64", "float32"):
        before = module(X, body(middle))
        after, _, _ = fuse(before, MergeCasts())
        assert calls(after)["astype"] == 1
    lossy = module(X, lambda e, x: e(op.astype(e(op.astype(x, "float16")), "float32")))
    assert calls(fuse(lossy, MergeCasts())[0])["astype"] == 2


class TestCancelReshapes(Rewrite):
    rule = CancelReshapes()

    def before(self, x):
        return op.tanh(op.squeeze(op.expand_dims(x, 1), 1))

    def expected(self, x):
        return op.tanh(x)


class TestMergeReshapes(Rewrite):
    rule = MergeReshapes()

    def before(self, x):
        return op.expand_dims(op.reshape(op.reshape(x, (24,)), (4, 6)), 0)

    def expected(self, x):
        return op.reshape(x, (1, 4, 6))


class TestMergeTransposes(Rewrite):
    rule = MergeTransposes()

    def before(self, x):
        return op.permute_dims(op.permute_dims(x, [2, 0, 1]), [0, 2, 1])

    def expected(self, x):
        return op.permute_dims(x, [2, 1, 0])


class TestMergeCasts(Rewrite):
    rule = MergeCasts()
    inputs = {"x": ("int32", 4), "y": (4,)}

    def before(self, x, y):
        return op.astype(op.astype(x, "int64"), "float32"), op.astype(op.astype(y, "float16"), "float32")

    def expected(self, x, y):
        return op.astype(x, "float32"), op.astype(op.astype(y, "float16"), "float32")
