"""Einstein sums as products."""

import pytest

from hetero_tvm.relax_passes.canonical.constants import FoldConstants
from hetero_tvm.relax_passes.canonical.einsum import ExpandEinsum
from tests.relax_passes.canonical.simplified import simplified
from tests.relax_passes.graphs import (
    constant,
    op,
    weights,
)
from tests.relax_passes.rewrite import Rewrite

EXTENTS = dict(zip("bhijdnq", (2, 3, 4, 5, 6, 7, 1), strict=True))


@pytest.mark.parametrize(
    "subscripts",
    [
        "ij,jd->id",
        "ij,jd->di",
        "bhid,bhjd->bhij",
        "ibnd,jbnd->bnij",
        "bnij,jbnd->ibnd",
        "bid,hjd->bhij",
        "bid,bjd->bij",
        "bi,bi->b",
        "i,i->",
        "i,ij->j",
        "ij,j->i",
        "bqd,bjd->bqj",
        "bij,bj->ib",
    ],
)
def test_einsum_of_two(subscripts):
    terms = subscripts.split("->")[0].split(",")
    inputs = {name: tuple(EXTENTS[letter] for letter in term) for name, term in zip("xy", terms, strict=True)}
    found = simplified(lambda e, x, y: e(op.einsum((x, y), subscripts)), ExpandEinsum(), inputs=inputs)
    assert found["matmul"] == 1 and set(found) <= {"matmul", "permute_dims", "reshape"}


@pytest.mark.parametrize("subscripts", ["bjd,bjid->bid", "bijd,dj->dbi", "jd,jd->d", "bhjd,hbjd->dbh"])
def test_a_row_for_each_of_an_innermost_batch_is_a_sum_of_products(subscripts):
    terms = subscripts.split("->")[0].split(",")
    inputs = {name: tuple(EXTENTS[letter] for letter in term) for name, term in zip("xy", terms, strict=True)}
    found = simplified(lambda e, x, y: e(op.einsum((x, y), subscripts)), ExpandEinsum(), inputs=inputs)
    assert found["multiply"] == found["sum"] == 1 and "matmul" not in found


@pytest.mark.parametrize("left", [True, False])
def test_einsum_with_a_weight_is_a_product_with_a_constant_matrix(left):
    """XLNet's projections, whichever side the weight is written on."""

    def body(emit, x):
        w = constant(weights(6, 7, 2))
        return emit(op.einsum((w, x), "dnb,ijd->ijnb") if left else op.einsum((x, w), "ijd,dnb->ijnb"))

    found = simplified(body, ExpandEinsum(), FoldConstants(), inputs={"x": (4, 5, 6)})
    assert found == {"matmul": 1, "reshape": 1}


def test_einsum_of_one_is_a_transposition():
    assert simplified(lambda e, x: e(op.einsum((x,), "ijd->dij")), ExpandEinsum()) == {"permute_dims": 1}


@pytest.mark.parametrize(
    "subscripts, kinds",
    [
        ("ijd->di", {"sum": 1, "permute_dims": 1}),
        ("ijd->", {"sum": 1}),
        ("ijd,jd->i", {"matmul": 1, "reshape": 3}),
        ("ijd,jb->ib", {"sum": 1, "matmul": 1, "reshape": 1}),
        ("bi,dij,bj->bd", {"matmul": 2}),
        ("ij,jd,db,bh->ih", {"matmul": 3}),
        ("ij,jd,i->id", {"matmul": 1}),
        ("i,j,d->dij", {}),
    ],
)
def test_sums_and_chains(subscripts, kinds):
    """Letters of one operand alone are summed; many operands are multiplied two by two."""
    inputs = _inputs(subscripts)
    found = simplified(lambda e, *x: e(op.einsum(x, subscripts)), ExpandEinsum(), inputs=inputs)
    for kind in ("matmul", "sum"):
        assert found.get(kind, 0) == kinds.get(kind, 0), found


def _inputs(subscripts):
    extents = {"i": 2, "j": 3, "d": 4, "b": 5, "h": 6}
    terms = subscripts.split("->")[0].split(",")
    shapes = [tuple(extents[letter] for letter in term) for term in terms]
    return dict(zip("xyzw", shapes, strict=False))


@pytest.mark.parametrize("subscripts", ["ijd,hb->ijdhb", "ijd,j->jid", "ijd,djb->ijd", "iij,jb->ib"])
def test_other_sums_stay(subscripts):
    """Nothing but a batch is shared, or a letter is repeated."""
    inputs = _inputs(subscripts)
    found = simplified(lambda e, x, y: e(op.einsum((x, y), subscripts)), ExpandEinsum(), inputs=inputs)
    assert found == {"einsum": 1}


class TestExpandEinsum(Rewrite):
    rule = ExpandEinsum()
    inputs = {"q": (2, 5, 3, 4), "k": (2, 6, 3, 4)}

    def before(self, q, k):
        return op.einsum((q, k), "bihd,bjhd->bhij")

    def expected(self, q, k):
        scores = op.matmul(op.permute_dims(q, [0, 2, 1, 3]), op.permute_dims(k, [0, 2, 3, 1]))
        return op.reshape(scores, (2, 3, 5, 6))
