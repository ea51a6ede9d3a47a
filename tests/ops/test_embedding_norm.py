import numpy as np
import pytest

from hetero_tvm.ops.base import from_json
from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup
from tests.ops.helpers import run_workload
from tests.ops.test_normalization import formula

EPS = 1e-3


def operands(op, seed=0):
    """Tables and vectors at random, indices over the whole range that ONNX allows."""
    generator = np.random.default_rng(seed)
    arrays = []
    for operand in op.inputs:
        if operand.name.startswith("indices"):
            rows = op.lookups[int(operand.name.removeprefix("indices"))].rows
            arrays.append(generator.integers(-rows, rows, operand.shape).astype(operand.dtype))
        else:
            arrays.append(generator.standard_normal(operand.shape).astype(operand.dtype))
    return arrays


def expected(op, arrays):
    """Rows looked up one by one, then PyTorch's norm."""
    count = 2 * len(op.lookups)
    tables, rest = arrays[:count], [a.astype(np.float64) for a in arrays[count:]]
    total = np.zeros((*op.lead, op.n))
    for at in np.ndindex(*op.lead):
        for lookup, indices, table in zip(op.lookups, tables[::2], tables[1::2], strict=True):
            index = int(np.broadcast_to(indices, op.lead)[at])
            total[at] += lookup.factor * table[index].astype(np.float64)
    if op.added:
        total = total + rest.pop(0)
    return formula(EPS, op.centered)(total, *rest)


FORMS = {
    "BERT": EmbeddingNorm((2, 5), 8, (Lookup(11, (2, 5)), Lookup(2, (2, 5))), (5, 8), EPS),
    "positions for all": EmbeddingNorm((2, 3), 4, (Lookup(7, (2, 3)), Lookup(9, (1, 3), "int32")), (), EPS),
    "a factor, RMS": EmbeddingNorm((3, 2), 6, (Lookup(4, (3, 2), factor=2.5),), (), EPS, False, False),
    "one of each": EmbeddingNorm((1, 1), 1, (Lookup(1, (1, 1)),), (1,), EPS),
}


@pytest.mark.parametrize("op", FORMS.values(), ids=FORMS.keys())
def test_lookups_are_added_and_normalised(op):
    assert from_json(op.to_json()) == op
    arrays = operands(op)
    wanted = expected(op, arrays)
    wide = [a if a.dtype.kind == "i" else a.astype(np.float64) for a in arrays]
    np.testing.assert_allclose(op.reference(*wide), wanted, rtol=0, atol=1e-12 * max(1, np.abs(wanted).max()))
    (found,) = run_workload(op, arrays)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-6 * max(1, np.abs(wanted).max()))


def test_wrong_indices_wrap_around_instead_of_reading_outside():
    op = EmbeddingNorm((1, 4), 3, (Lookup(5, (1, 4)),), (), EPS)
    indices, table, scale, shift = operands(op)
    wild, tame = np.array([[5, -6, 12, -1]]), np.array([[0, 4, 2, 4]])
    np.testing.assert_array_equal(
        run_workload(op, [wild, table, scale, shift]), run_workload(op, [tame, table, scale, shift])
    )
    np.testing.assert_array_equal(
        op.reference(wild, table, scale, shift), op.reference(tame, table, scale, shift)
    )


def test_half_precision():
    op = EmbeddingNorm((2, 3), 8, (Lookup(7, (2, 3)),), (3, 8), EPS, dtype="float16")
    arrays = operands(op)
    assert [a.dtype.name for a in arrays] == ["int64", "float16", "float16", "float32", "float32"]
    np.testing.assert_allclose(run_workload(op, arrays)[0], expected(op, arrays), rtol=0, atol=5e-3)


def test_only_the_rows_that_are_read_count():
    op = FORMS["BERT"]
    assert op.nbytes == 2 * 10 * (4 * 8 + 8) + 4 * (5 * 8 + 2 * 8) + 4 * 10 * 8
    assert op.flops == op.norm.flops + 3 * 10 * 8
    assert op.label == "embedding2_added_layer_norm_10x8"
