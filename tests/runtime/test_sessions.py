"""Sessions: states come back, grow, are forgotten, shared and reordered; mistakes change nothing."""

import numpy as np
import pytest

from hetero_tvm.errors import InputError, UsageError
from hetero_tvm.runtime.sessions import Session, states_of
from hetero_tvm.runtime.signature import Signature, Symbol, TensorSpec

BATCH, PAST, NEW = Symbol("batch", 1, 4), Symbol("past", 0, 6), Symbol("sequence", 1, 4)
GROWING = Signature(
    (
        TensorSpec("x", ("batch", "sequence"), "float32"),
        TensorSpec("past_key_values.0.key", ("batch", "past"), "float32"),
        TensorSpec("scale", (), "float32"),
    ),
    (
        TensorSpec("present.0.key", ("batch", "past + sequence"), "float32"),
        TensorSpec("sum", ("batch",), "float32"),
    ),
    (BATCH, PAST, NEW),
)


def run(**given):
    """Appends ``x`` to the past; the sum of both."""
    present = np.concatenate([given["past_key_values.0.key"], given["x"] * given["scale"]], 1)
    return present, present.sum(1)


def session(**options):
    return Session(run, GROWING, states_of(GROWING), **options)


RECURRENT = Signature(
    (TensorSpec("x", ("batch",), "float32"), TensorSpec("h", (2, "batch"), "float32")),
    (TensorSpec("y", ("batch",), "float32"), TensorSpec("h_out", (2, "batch"), "float32")),
    (BATCH,),
)


def recurrent():
    """A session whose state, of one size, adds up ``x``."""
    return Session(lambda x, h: (h.sum(0), h + x), RECURRENT, states_of(RECURRENT))


def row(*values):
    return np.float32([values])


ONE = np.float32(1)


def test_what_comes_back_is_found_by_its_name():
    pairs = [
        ("past_key_values.0.key", "present.0.key"),
        ("past_3", "present_3"),
        ("h_in", "h_out"),
        ("cache", "cache_out"),
        ("hidden", "new_hidden"),
        ("past_key_values.1.decoder.value", "present_key_values.1.decoder.value"),
    ]
    inputs = tuple(TensorSpec(name, (2, 3), "float32") for name, _ in pairs)
    outputs = tuple(TensorSpec(name, (2, 3), "float32") for _, name in pairs)
    other = TensorSpec("x", (2,), "float32")
    found = states_of(Signature((other, *inputs), (other, *outputs)))
    assert [(state.input.name, state.output.name) for state in found] == pairs
    assert [state.place for state in found] == list(range(1, 7))
    assert all(state.grows is None for state in found)


def test_ends_that_do_not_fit_are_no_states_and_named_ones_are_refused():
    def signature(shape, dtype):
        return Signature((TensorSpec("h_in", (2, 3), "float32"),), (TensorSpec("h_out", shape, dtype),))

    for shape, dtype in (((2, 4), "float32"), ((2, 3), "int32"), ((2,), "float32")):
        assert states_of(signature(shape, dtype)) == ()
        with pytest.raises(InputError, match="does not come back as"):
            states_of(signature(shape, dtype), {"h_in": "h_out"})
    with pytest.raises(InputError) as caught:
        states_of(GROWING, {"y": "sum", "x": "z"})
    assert "y -> sum: there is no such input" in str(caught.value)
    assert "x -> z: there is no such output" in str(caught.value)


def test_a_state_grows_step_by_step():
    one = session()
    assert one.length == 0 and one.states == {}
    assert one(x=row(1, 2), scale=ONE) == 3
    assert one(row(4), np.float32(2)) == 11  # in order, without the states
    assert one.length == 3
    np.testing.assert_array_equal(one.states["past_key_values.0.key"], row(1, 2, 8))
    one.reset()
    assert one.length == 0 and one(x=row(5), scale=ONE) == 5


def test_a_fork_goes_its_own_way():
    one = session()
    one(x=row(1, 2), scale=ONE)
    other = one.fork()
    assert other(x=row(10), scale=ONE) == 13 and one(x=row(3), scale=ONE) == 6
    assert (one.length, other.length) == (3, 3)


def test_steps_are_taken_back():
    one = session()
    one(x=row(1, 2, 3), scale=ONE)
    one.rewind(2)
    assert one.length == 1 and one(x=row(5), scale=ONE) == 6
    one.rewind(0)
    for steps in (3, -1):
        with pytest.raises(InputError, match="cannot go back"):
            one.rewind(steps)
    assert one.length == 2


def test_rows_are_put_in_another_order():
    one = session()
    one(x=np.float32([[1], [2], [3]]), scale=ONE)
    one.reorder([2, 0])
    assert one(x=np.float32([[0], [0]]), scale=ONE).tolist() == [3, 1]
    for rows in ([2], [-1], [0.5], []):
        with pytest.raises(InputError):
            one.reorder(rows)
    assert one.length == 2


def test_rows_are_found_by_the_dimension_of_the_batch():
    one = recurrent()
    with pytest.raises(InputError, match="no rows yet"):
        one.reorder([0])
    one(x=np.float32([1, 2, 3]))
    one.reorder([2, 0])
    assert one.states["h"].tolist() == [[3, 1], [3, 1]]
    one.reorder([1], axis=0)
    assert one.states["h"].tolist() == [[3, 1]]
    for axis in (2, -1, "h"):
        with pytest.raises(InputError, match="no axis"):
            one.reorder([0], axis=axis)


def test_states_that_grow_apart_cannot_go_back():
    signature = Signature(
        (
            TensorSpec("x", ("sequence",), "float32"),
            TensorSpec("past_a", ("a",), "float32"),
            TensorSpec("past_b", ("b",), "float32"),
        ),
        (
            TensorSpec("present_a", ("a + sequence",), "float32"),
            TensorSpec("present_b", ("b + 1",), "float32"),
        ),
        (NEW, Symbol("a", 0, 50), Symbol("b", 0, 50)),
    )

    def steps(x, past_a, past_b):
        return np.append(past_a, x), np.append(past_b, x[:1])

    one = Session(steps, signature, states_of(signature))
    assert one(x=np.ones(4, np.float32)) == ()
    with pytest.raises(InputError, match="grow alike"):
        one.rewind(1)
    assert [array.size for array in one.states.values()] == [4, 1]


def test_a_past_that_cannot_be_empty_is_told():
    signature = Signature(GROWING.inputs, GROWING.outputs, (BATCH, Symbol("past", 1, 6), NEW))
    one = Session(run, signature, states_of(signature))
    with pytest.raises(InputError, match="cannot begin empty: the library takes a past from 1 on"):
        one(x=row(1), scale=ONE)
    one = Session(run, signature, states_of(signature), {"past_key_values.0.key": [[2.0]]})
    assert one(x=row(1), scale=ONE) == 3


def test_a_state_whose_size_is_an_expression_begins_with_zeros():
    signature = Signature(
        (TensorSpec("x", ("batch",), "float32"), TensorSpec("h_in", ("2*batch", 4), "float32")),
        (TensorSpec("h_out", ("2*batch", 4), "float32"), TensorSpec("y", ("batch",), "float32")),
        (BATCH,),
    )
    shapes = []
    one = Session(lambda x, h_in: shapes.append(h_in.shape) or (h_in, x), signature, states_of(signature))
    one(x=np.ones(3, np.float32))
    assert shapes == [(6, 4)]


@pytest.mark.parametrize("value", [[1, 2], row(1).astype(np.float64), np.float32(1), "text", [[1], [2, 3]]])
def test_a_beginning_that_does_not_fit_is_refused(value):
    with pytest.raises(InputError, match="cannot begin with"):
        session(initial={"past_key_values.0.key": value})


def test_arguments_of_other_types_are_refused():
    for wrong in (["past"], "past"):
        with pytest.raises(UsageError):
            states_of(GROWING, wrong)
        with pytest.raises(UsageError):
            session(initial=wrong)
    one = session()
    one(x=row(1, 2), scale=ONE)
    for steps in (1.5, "1", None):
        with pytest.raises(InputError, match="no number of elements"):
            one.rewind(steps)
    for rows in ([[0], [1, 2]], [[0]], "0"):
        with pytest.raises(InputError, match="whole numbers"):
            one.reorder(rows)
    with pytest.raises(InputError, match="given twice"):
        one(row(1), ONE, x=row(2))
    with pytest.raises(InputError, match="no input of a step"):
        one(row(1), ONE, self=row(2))


def test_a_session_begins_with_what_it_is_given():
    one = session(initial={"past_key_values.0.key": row(7, 8)})
    assert one.length == 2 and one(x=row(1), scale=ONE) == 16
    one.reset()
    assert one.length == 2
    with pytest.raises(InputError, match="no state is called key"):
        session(initial={"key": row(1)})


def test_a_full_session_says_so_and_stays_as_it_is():
    one = session()
    for _ in range(2):
        one(x=row(1, 1, 1, 1), scale=ONE)
    with pytest.raises(InputError, match="has 8 elements, and the library takes up to 6"):
        one(x=row(1), scale=ONE)
    assert one.length == 8
    one.rewind(4)
    assert one(x=row(1), scale=ONE) == 5


def test_wrong_inputs_are_named():
    one = session()
    for given in ({"past_key_values.0.key": row(1)}, {"y": row(1)}):
        with pytest.raises(InputError, match="no input of a step"):
            one(x=row(1), scale=ONE, **given)
    with pytest.raises(InputError, match="3 arrays are given in order"):
        one(row(1), ONE, row(1))


def test_a_step_that_fails_leaves_the_states():
    calls = []

    def fails(**given):
        calls.append(given)
        if len(calls) == 2:
            raise InputError("no")
        return run(**given)

    one = Session(fails, GROWING, states_of(GROWING))
    one(x=row(1), scale=ONE)
    with pytest.raises(InputError):
        one(x=row(2), scale=ONE)
    assert one.length == 1 and one(x=row(2), scale=ONE) == 3


def test_a_state_of_one_size_begins_with_zeros_and_cannot_go_back():
    one = recurrent()
    assert one(x=np.ones(3, np.float32)).tolist() == [0, 0, 0]
    assert one(x=np.ones(3, np.float32)).tolist() == [2, 2, 2]
    assert one.length == 0 and "float32[2, batch]" in repr(one)
    with pytest.raises(InputError, match="not all states grow alike"):
        one.rewind(0)
