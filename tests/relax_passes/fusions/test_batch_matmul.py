"""Products of two computed tensors read their operands where they lie."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.relax_passes.fusions.batch_matmul import FuseBatchMatmul
from tests.frontend.onnx.helpers import text_model
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

RULE = FuseBatchMatmul(lambda op: True)


def run(inputs, body):
    before = module(inputs, body)
    after, names, report = fuse(before, RULE)
    assert not report.fusions and not report.misses
    assert names_of(before) <= set().union(*names.values())
    same_numbers(before, after)
    return after


def test_heads_before_and_after():
    """Scores and their use, without a softmax between (linear attention): nothing is transposed."""

    def body(emit, q, k, v):
        def heads(x, order):
            return emit(op.permute_dims(emit(op.reshape(x, (2, 5, 3, 4))), order))

        scores = emit(op.matmul(heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1])))
        out = emit(op.matmul(emit(op.tanh(scores)), heads(v, [0, 2, 1, 3])))
        return emit(op.reshape(emit(op.permute_dims(out, [0, 2, 1, 3])), (2, 5, 12)))

    after = run({name: (2, 5, 12) for name in "qkv"}, body)
    assert calls(after) == {"batch_matmul": 2, "tanh": 1, "reshape": 1}
    scores, out = contracts(after, "batch_matmul")
    assert scores.right_at == (0, 60, 4, 1, 12) and out.order == (0, 2, 1, 3)


@pytest.mark.parametrize(
    "x, y", [((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (1, 6, 4, 5)), ((3, 4), (4, 5))]
)
def test_broadcasts(x, y):
    after = run({"x": x, "y": y}, lambda e, a, b: e(op.matmul(a, b)))
    assert calls(after) == {"batch_matmul": 1}


def test_float64_takes_one_constant_matrix_too():
    """There is no epilogue for it; a transposed operand is read where it lies."""
    text = "g (double[13, 40] x, double[21, 40] w) => (double[13, 21] y) { y = Gemm <transB = 1> (x, w) }"
    plan = optimize_model(import_model(text_model(text)))
    (product,) = contracts(plan.module, "batch_matmul")
    assert product.dtype == "float64" and product.right_at == (0, 1, 40)
    assert build_model(plan).check().ok


def test_constant_matrices_of_experts():
    """A single constant matrix is a matmul's weight; several are a batched product."""

    def product(*shape):
        after = run({"x": (7, 4)}, lambda e, x: e(op.matmul(x, constant(weights(*shape)))))
        return contracts(after, "batch_matmul")

    assert not product(4, 5)
    (found,) = product(3, 4, 5)
    assert found.lead == (3,) and found.left_at[1] == 0


def test_slices_and_a_repeat():
    def body(emit, x, y):
        part = emit(op.strided_slice(x, [2], [4], [8], [1]))
        wide = emit(op.broadcast_to(y, (2, 4, 5)))
        return emit(op.matmul(part, wide))

    after = run({"x": (2, 3, 8), "y": (1, 4, 5)}, body)
    assert calls(after) == {"batch_matmul": 1}
    assert contracts(after, "batch_matmul")[0].left == (2, 3, 8)


@pytest.mark.parametrize(
    "inputs, body",
    [
        ({"x": (2, 3, 4)}, lambda e, x: e(op.matmul(x, constant(weights(4, 5))))),  # a weight
        ({"x": (4,), "y": (2, 4, 5)}, lambda e, x, y: e(op.matmul(x, y))),  # a vector
        ({"x": (2, 0, 4), "y": (2, 4, 5)}, lambda e, x, y: e(op.matmul(x, y))),  # nothing to compute
    ],
)
def test_what_stays(inputs, body):
    assert calls(run(inputs, body)) == {"matmul": 1}


def test_a_result_used_twice_is_transposed_behind():
    def body(emit, x, y):
        z = emit(op.matmul(x, y))
        return emit(op.permute_dims(z, [1, 0, 2])), z

    assert calls(run({"x": (2, 3, 4), "y": (2, 4, 5)}, body)) == {"batch_matmul": 1, "permute_dims": 1}


def test_columns_to_another_place_are_transposed_behind():
    body = lambda e, x, y: e(op.permute_dims(e(op.matmul(x, y)), [0, 2, 1]))  # noqa: E731
    assert calls(run({"x": (2, 3, 4), "y": (2, 4, 5)}, body)) == {"batch_matmul": 1, "permute_dims": 1}


def test_a_target_without_the_kernel():
    before = module({"x": (2, 3, 4), "y": (2, 4, 5)}, lambda e, x, y: e(op.matmul(x, y)))
    assert calls(fuse(before, FuseBatchMatmul(lambda op: False))[0]) == {"matmul": 1}


@settings(max_examples=20)
@given(st.data())
def test_random_transpositions(data):
    lead = tuple(data.draw(st.lists(st.integers(1, 3), max_size=2)))
    m, k, n = (data.draw(st.integers(1, 4)) for _ in range(3))

    def operand(emit, x, shape):
        order = data.draw(st.permutations(range(len(shape))), label="order")
        inverse = [order.index(axis) for axis in range(len(shape))]
        x = emit(op.permute_dims(emit(op.reshape(x, [shape[axis] for axis in order])), inverse))
        return x

    def body(emit, x, y):
        z = emit(op.matmul(operand(emit, x, (*lead, m, k)), operand(emit, y, (*lead, k, n))))
        order = [*data.draw(st.permutations(range(len(lead) + 1))), len(lead) + 1]
        return emit(op.permute_dims(z, order))

    size = 1
    for extent in lead:
        size *= extent
    after = run({"x": (size * m * k,), "y": (size * k * n,)}, body)
    assert calls(after)["batch_matmul"] == 1 and calls(after)["permute_dims"] == 0


class TestFuseBatchMatmul(Rewrite):
    rule = FuseBatchMatmul(lambda op: True)
    inputs = {"x": (2, 3, 4), "y": (2, 5, 4)}

    def before(self, x, y):
        return op.matmul(x, op.permute_dims(y, [0, 2, 1]))

    def expected(self, x, y):
        fused = BatchMatmul((2,), 3, 5, 4, (2, 3, 4), (0, 12, 4, 1), (2, 5, 4), (0, 20, 1, 4), (0, 1, 2))
        return kernel(fused, x, y)
