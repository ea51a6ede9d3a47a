"""Each rule of the canonical form: what it simplifies, what it leaves, and that numbers stay."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.relax_passes.canonical.algebra import ExpandPowers, MultiplyByReciprocal
from hetero_tvm.relax_passes.canonical.broadcasts import DropBroadcasts
from hetero_tvm.relax_passes.canonical.constants import FoldConstants
from hetero_tvm.relax_passes.canonical.duplicates import MergeDuplicates
from hetero_tvm.relax_passes.canonical.einsum import ExpandEinsum
from hetero_tvm.relax_passes.canonical.functions import EqualityOfTruth, ExpandHyperbolic
from hetero_tvm.relax_passes.canonical.identities import DropIdentities
from hetero_tvm.relax_passes.canonical.rules import CANONICAL
from hetero_tvm.relax_passes.canonical.sinking import SinkMoves
from hetero_tvm.relax_passes.canonical.slices import SliceOfTake
from hetero_tvm.relax_passes.canonical.views import CancelReshapes, MergeCasts, MergeReshapes, MergeTransposes
from tests.relax_passes.graphs import (
    bindings,
    calls,
    constant,
    fuse,
    module,
    names_of,
    op,
    relax,
    same_numbers,
    weights,
)

X = {"x": (2, 3, 4)}


def simplified(body, *rules, inputs=X):
    """The calls that the rules leave; numbers and names are checked, and that nothing is counted."""
    before = module(inputs, body)
    after, names, report = fuse(before, *rules)
    assert not report.fusions and not report.misses
    assert names_of(before) <= set().union(*names.values())
    same_numbers(before, after)
    return dict(calls(after))


# ---- constants -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda e: op.add(constant(weights(4)), constant(1.0)),
        lambda e: op.permute_dims(constant(weights(4, 3))),
        lambda e: op.reshape(constant(weights(2, 2)), (4,)),
        lambda e: op.strided_slice(constant(weights(9)), [0], [1], [9], [2]),
        lambda e: op.strided_slice(constant(weights(6)), [0], [2], [2**62], [1]),
        lambda e: op.take(constant(weights(6, 4)), relax.const(np.array(-1), "int64"), 0, mode="wrap"),
        lambda e: op.where(constant([True, False, True, False], "bool"), constant(1.0), constant(2.0)),
        lambda e: op.broadcast_to(constant(2.0), (4,)),
        lambda e: op.concat([constant([1.0, 2.0]), constant([3.0, 4.0])], 0),
        lambda e: op.mean(constant(weights(5, 4)), axis=[0]),
        lambda e: op.astype(constant([1, 2, 3, 4], "int64"), "float32"),
        lambda e: op.cumsum(constant(weights(4)), axis=0),
        lambda e: op.zeros((4,), "float32"),
        lambda e: op.full((4,), constant(3.0), "float32"),
        lambda e: op.divide(constant(weights(4)), constant(0.0)),
    ],
)
def test_constants_are_folded(make):
    before = module(X, lambda e, x: e(op.add(x, e(make(e)))))
    after, names, _ = fuse(before, FoldConstants())
    assert dict(calls(after)) == {"add": 1}
    assert names_of(before) <= set().union(*names.values())
    value = bindings(after)[0].value.args[1].value.numpy()
    made = relax.BlockBuilder().normalize(make(None))
    expected = np.broadcast_to(value, [int(extent) for extent in made.ty.shape])
    assert value.dtype == np.float32 and value.shape == expected.shape


def test_chains_of_constants_end_in_one():
    def body(emit, x):
        a = emit(op.multiply(constant(weights(4)), constant(weights(4))))
        b = emit(op.sqrt(emit(op.multiply(a, a))))
        return emit(op.add(x, emit(op.reshape(b, (1, 4)))))

    assert simplified(body, FoldConstants()) == {"add": 1}


def test_shapes_are_constants():
    def body(emit, x):
        extents = emit(op.shape_to_tensor(emit(op.shape_of(x))))
        last = emit(op.take(extents, relax.const(np.array(2), "int64"), 0, mode="wrap"))
        return emit(op.multiply(x, emit(op.astype(last, "float32"))))

    before = module(X, body)
    after, names, _ = fuse(before, FoldConstants())
    assert dict(calls(after)) == {"multiply": 1} and names_of(before) <= set().union(*names.values())
    assert bindings(after)[0].value.args[1].value.numpy() == 4.0


def test_a_constant_result_stays_a_result():
    def body(emit, x):
        return emit(op.tanh(x)), emit(op.add(constant(weights(4)), constant(1.0)))

    before = module(X, body)
    after, names, _ = fuse(before, FoldConstants())
    assert dict(calls(after)) == {"tanh": 1} and names_of(before) <= set().union(*names.values())
    same_numbers(before, after)


def test_large_broadcasts_are_not_stored():
    body = lambda e, x: e(op.multiply(x, e(op.broadcast_to(constant(weights(4)), (40000, 4)))))  # noqa: E731
    assert simplified(body, FoldConstants(), inputs={"x": (40000, 4)}) == {"broadcast_to": 1, "multiply": 1}


def test_what_depends_on_inputs_is_not_folded():
    assert simplified(lambda e, x: e(op.add(x, e(op.multiply(x, constant(2.0))))), FoldConstants()) == {
        "add": 1,
        "multiply": 1,
    }


# ---- identities ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "identity",
    [
        lambda x: op.reshape(x, (2, 3, 4)),
        lambda x: op.astype(x, "float32"),
        lambda x: op.broadcast_to(x, (2, 3, 4)),
        lambda x: op.permute_dims(x, [0, 1, 2]),
        lambda x: op.concat([x], 1),
        lambda x: op.strided_slice(x, [1], [0], [3], [1]),
        lambda x: op.add(x, constant(0.0)),
        lambda x: op.add(constant(np.zeros(4)), x),
        lambda x: op.subtract(x, constant(0.0)),
        lambda x: op.multiply(constant(1.0), x),
        lambda x: op.divide(x, constant(np.ones((1, 4)))),
        lambda x: op.power(x, constant(1.0)),
        lambda x: op.where(constant([True], "bool"), x, constant(2.0)),
        lambda x: op.where(constant([False], "bool"), constant(2.0), x),
    ],
)
def test_identities_are_dropped(identity):
    assert simplified(lambda e, x: e(op.tanh(e(identity(e(op.exp(x)))))), DropIdentities()) == {
        "exp": 1,
        "tanh": 1,
    }
    assert simplified(lambda e, x: e(op.tanh(e(identity(x)))), DropIdentities()) == {"tanh": 1}


def test_an_identity_as_result_is_an_alias():
    before = module(X, lambda e, x: (e(op.multiply(e(op.tanh(x)), constant(1.0))), e(op.exp(x))))
    after, names, _ = fuse(before, DropIdentities())
    assert dict(calls(after)) == {"exp": 1, "tanh": 1} and names_of(before) <= set().union(*names.values())
    same_numbers(before, after)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: op.multiply(x, constant(np.ones((5, 1, 1, 1)))),  # broadcasts
        lambda x: op.multiply(x, constant(0.0)),
        lambda x: op.subtract(constant(0.0), x),
        lambda x: op.divide(constant(1.0), x),
        lambda x: op.add(x, constant(np.array([0.0, 0.0, 0.0, 1.0]))),
        lambda x: op.permute_dims(x, [0, 2, 1]),
        lambda x: op.strided_slice(x, [1], [0], [2], [1]),
        lambda x: op.astype(x, "int32"),
        lambda x: op.where(constant([True, False, True, True], "bool"), x, constant(2.0)),
    ],
)
def test_what_only_looks_like_an_identity(other):
    before = module(X, lambda e, x: e(other(x)))
    after, _, _ = fuse(before, DropIdentities())
    assert calls(after) == calls(before)


# ---- views, casts, broadcasts ----------------------------------------------------------------


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


@pytest.mark.parametrize(
    "step",
    [
        lambda e, x: e(op.tanh(x)),
        lambda e, x: e(op.multiply(x, constant(0.5))),
        lambda e, x: e(op.subtract(constant(1.0), x)),
    ],
)
@pytest.mark.parametrize(("second", "left"), [((1, 2, 0), 0), ((2, 1, 0), 1)])
def test_transposes_meet_behind_an_elementwise_step(step, second, left):
    def body(e, x):
        return e(op.permute_dims(step(e, e(op.permute_dims(x, (2, 0, 1)))), second))

    assert simplified(body, SinkMoves()).get("permute_dims", 0) == left


def test_reshapes_undo_each_other_across_an_elementwise_step():
    def body(e, x):
        return e(op.reshape(e(op.exp(e(op.reshape(x, (6, 4))))), (2, 3, 4)))

    assert simplified(body, SinkMoves()) == {"exp": 1}


@pytest.mark.parametrize(
    "body",
    [
        lambda e, x: e(op.reshape(e(op.exp(e(op.reshape(x, (6, 4))))), (3, 8))),  # another shape comes out
        lambda e, x: e(op.permute_dims(e(op.nn.softmax(e(op.permute_dims(x, (0, 2, 1))))), (0, 2, 1))),
        lambda e, x: e(
            op.permute_dims(e(op.add(e(op.permute_dims(x, (0, 2, 1))), constant(weights(3)))), (0, 2, 1))
        ),
        lambda e, x: e(op.permute_dims(e(op.exp(e(op.reshape(x, (3, 2, 4))))), (1, 0, 2))),
    ],
)
def test_what_cannot_sink(body):
    before = module(X, body)
    assert simplified(body, SinkMoves()) == dict(calls(before))


def test_a_step_that_others_see_stays():
    def body(e, x):
        step = e(op.exp(e(op.permute_dims(x, (2, 0, 1)))))
        return e(op.permute_dims(step, (1, 2, 0))), step

    assert simplified(body, SinkMoves()) == {"permute_dims": 2, "exp": 1}


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


def test_broadcasts_that_the_operator_does_itself():
    def body(emit, x):
        row = emit(op.broadcast_to(emit(op.tanh(emit(op.strided_slice(x, [0], [0], [1], [1])))), (2, 3, 4)))
        return emit(op.add(row, x))

    assert simplified(body, DropBroadcasts()) == {"strided_slice": 1, "tanh": 1, "add": 1}
    wider = lambda e, x: e(op.multiply(e(op.broadcast_to(x, (5, 2, 3, 4))), x))  # noqa: E731
    assert simplified(wider, DropBroadcasts()) == {"broadcast_to": 1, "multiply": 1}


# ---- algebra ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exponent", "left"),
    [(2.0, {"multiply": 1}), (3.0, {"multiply": 2}), (0.5, {"sqrt": 1}), (-1.0, {"divide": 1}),
     (-0.5, {"rsqrt": 1}), (1.5, {"power": 1})],
)  # fmt: skip
def test_powers(exponent, left):
    positive = lambda e, x: e(op.power(e(op.exp(x)), constant(exponent)))  # noqa: E731
    assert simplified(positive, ExpandPowers()) == {"exp": 1, **left}


@pytest.mark.parametrize(
    ("divisor", "name"),
    [(4.0, "multiply"), (-0.125, "multiply"), ([2.0, 1.0, 8.0, -2.0], "multiply"), (3.0, "divide"),
     (0.0, "divide"), (2.0**127, "divide"), ([2.0, 3.0, 2.0, 2.0], "divide"), (np.inf, "divide")],
)  # fmt: skip
def test_divisions(divisor, name):
    before = module(X, lambda e, x: e(op.divide(x, constant(divisor))))
    after, _, _ = fuse(before, MultiplyByReciprocal())
    assert dict(calls(after)) == {name: 1}
    if name == "multiply":
        x = np.float32([1e-38, -1.17549435e-38, 3.3, 1e36] if np.ndim(divisor) else [1e-38, 3.3, 1e36])
        np.testing.assert_array_equal(
            x * bindings(after)[0].value.args[1].value.numpy(), x / np.float32(divisor)
        )


# ---- duplicates ------------------------------------------------------------------------------


def test_duplicates_are_merged():
    def body(emit, x):
        one = emit(op.multiply(x, constant(2.0)))
        two = emit(op.multiply(x, constant(2.0)))
        a = emit(op.reshape(one, (6, 4)))
        b = emit(op.reshape(two, (6, 4)))
        return emit(op.add(emit(op.tanh(a)), emit(op.exp(b))))

    assert simplified(body, MergeDuplicates()) == {"multiply": 1, "reshape": 1, "tanh": 1, "exp": 1, "add": 1}


@pytest.mark.parametrize(
    "second",
    [
        lambda x: op.multiply(x, constant(2.5)),
        lambda x: op.multiply(x, constant([2.0])),
        lambda x: op.add(x, constant(2.0)),
        lambda x: op.multiply(constant(2.0), x),
    ],
)
def test_what_is_no_duplicate(second):
    def body(emit, x):
        return emit(op.subtract(emit(op.multiply(x, constant(2.0))), emit(second(x))))

    before = module(X, body)
    after, _, _ = fuse(before, MergeDuplicates())
    assert calls(after) == calls(before)


def test_two_results_stay_two():
    before = module(X, lambda e, x: (e(op.add(x, constant(1.0))), e(op.add(x, constant(1.0)))))
    after, _, _ = fuse(before, MergeDuplicates())
    assert len(bindings(after)) == 2
    same_numbers(before, after)


# ---- all together ----------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_random_chains(data):
    steps = st.sampled_from(
        [
            lambda x: op.multiply(x, constant(1.0)), lambda x: op.divide(x, constant(2.0)),
            lambda x: op.add(x, x), lambda x: op.reshape(x, (4, 3, 2)), lambda x: op.reshape(x, (2, 3, 4)),
            lambda x: op.permute_dims(x, [2, 0, 1]), lambda x: op.permute_dims(x),
            lambda x: op.power(x, constant(2.0)), lambda x: op.tanh(x),
            lambda x: op.squeeze(op.expand_dims(x, 0), 0), lambda x: op.astype(x, "float32"),
            lambda x: op.multiply(x, op.add(constant(1.0), constant(weights(1)))),
            lambda x: op.add(op.broadcast_to(constant(weights(1)), (2, 3, 4)), op.reshape(x, (2, 3, 4))),
        ]
    )  # fmt: skip
    chain = data.draw(st.lists(steps, min_size=1, max_size=8))
    keep = data.draw(st.integers(0, len(chain) - 1))

    def body(emit, x):
        values = []
        for step in chain:
            x = emit(step(x))
            values.append(x)
        return (x, values[keep]) if keep < len(chain) - 1 else x

    before = module(X, body)
    after, names, _ = fuse(before, *CANONICAL, MergeReshapes())
    assert len(bindings(after)) <= 2 * len(bindings(before))
    assert names_of(before) <= set().union(*names.values())
    same_numbers(before, after)


# ---- einsum ----------------------------------------------------------------------------------

EXTENTS = dict(zip("bhijdnq", (2, 3, 4, 5, 6, 7, 1), strict=True))


@pytest.mark.parametrize(
    "subscripts",
    [
        "ij,jd->id", "ij,jd->di", "bhid,bhjd->bhij", "ibnd,jbnd->bnij", "bnij,jbnd->ibnd", "bid,hjd->bhij",
        "bid,bjd->bij", "bi,bi->b", "i,i->", "i,ij->j", "ij,j->i", "bqd,bjd->bqj", "bij,bj->ib",
    ],
)  # fmt: skip
def test_einsum_of_two(subscripts):
    terms = subscripts.split("->")[0].split(",")
    inputs = {name: tuple(EXTENTS[letter] for letter in term) for name, term in zip("xy", terms, strict=True)}
    found = simplified(lambda e, x, y: e(op.einsum((x, y), subscripts)), ExpandEinsum(), inputs=inputs)
    assert found["matmul"] == 1 and set(found) <= {"matmul", "permute_dims", "reshape"}


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
    "subscripts", ["ijd,jd->i", "ijd,jb->ib", "ijd,hb->ijdhb", "ijd,j->jid", "iij,jb->ib"]
)
def test_other_sums_stay(subscripts):
    """Nothing but a batch is shared, a letter of one operand is summed, or one is repeated."""
    extents = {"i": 2, "j": 3, "d": 4, "b": 5, "h": 6}
    shapes = [tuple(extents[letter] for letter in term) for term in subscripts.split("->")[0].split(",")]
    inputs = dict(zip("xy", shapes, strict=True))
    found = simplified(lambda e, x, y: e(op.einsum((x, y), subscripts)), ExpandEinsum(), inputs=inputs)
    assert found == ({"einsum": 1} if subscripts != "ijd,jd->i" else {"matmul": 1, "reshape": 3})


# ---- lookups at constant places --------------------------------------------------------------


@pytest.mark.parametrize(
    "places, found",
    [
        ([1], {"strided_slice": 1}), ([0, 1], {"strided_slice": 1}), ([0, 2], {"strided_slice": 1}),
        ([-2, -1], {"strided_slice": 1}), ([0, 1, 2], {}), ([2, 1], {"take": 1}), ([0, 1, 1], {"take": 1}),
        ([[0, 1]], {"take": 1}), ([1, 1], {"take": 1}),
    ],
)  # fmt: skip
def test_lookups_that_are_slices(places, found):
    def body(emit, x):
        index = relax.const(np.array(places), "int64")
        return emit(op.tanh(emit(op.take(x, index, 1, mode="wrap"))))

    assert simplified(body, SliceOfTake()) == {"tanh": 1, **found}


@pytest.mark.parametrize(
    "places, found",
    [
        ([[1]], {"strided_slice": 1}), ([[0], [1]], {}), ([[1], [0]], {"gather_nd": 1}),
        ([[1, 2]], {"gather_nd": 1}), ([[[1]]], {"gather_nd": 1}),
    ],
)  # fmt: skip
def test_lookups_along_the_first_axis(places, found):
    def body(emit, x):
        return emit(op.tanh(emit(op.gather_nd(x, relax.const(np.array(places), "int64")))))

    assert simplified(body, SliceOfTake()) == {"tanh": 1, **found}


# ---- functions ------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [op.cosh, op.sinh])
def test_hyperbolic_functions(function):
    found = simplified(lambda e, x: e(function(x)), ExpandHyperbolic())
    assert found["exp"] == 2 and not {"cosh", "sinh"} & set(found)


@pytest.mark.parametrize("function, expected", [(op.equal, {"logical_xor": 1, "logical_not": 1}),
                                                (op.not_equal, {"logical_xor": 1})])  # fmt: skip
def test_equality_of_truth(function, expected):
    def body(e, x):
        compared = e(function(e(op.greater(x, constant(0.0))), e(op.less(x, constant(0.5)))))
        return e(op.astype(compared, "float32"))

    found = simplified(body, EqualityOfTruth())
    assert found.items() >= expected.items() and not {"equal", "not_equal"} & set(found)
