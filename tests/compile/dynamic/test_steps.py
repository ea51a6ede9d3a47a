"""States that grow lie in buffers: which ones do, what the step gives, and what it takes."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import Span
from hetero_tvm.errors import InputError
from hetero_tvm.runtime.sessions import Session, states_of
from tests.frontend.onnx.helpers import text_model

SHAPES = {"batch": (Span(1, 3),), "sequence": (Span(1, 6),), "past": (Span(0, 20),)}


def optimized(body, past="", present=""):
    """A model of one head over keys and values [batch, past, 8]."""
    text = f"""
    step (float[batch, sequence, 8] x, float[batch, past, 8] past_k, float[batch, past, 8] past_v{past})
        => (float[batch, total, 8] present_k, float[batch, sequence, 8] y,
            float[batch, total, 8] present_v{present})
    {{
        present_k = Concat<axis=1>(past_k, x)
        double = Add(x, x)
        present_v = Concat<axis=1>(past_v, double)
        turned = Transpose<perm=[0, 2, 1]>(present_k)
        scores = MatMul(x, turned)
        shares = Softmax<axis=-1>(scores)
        {body}
    }}
    """
    return hetero_tvm.optimize_model(hetero_tvm.import_model(text_model(text), shapes=SHAPES))


def rooms(model):
    step = model.step
    return {} if step is None else dict(step[1].room)


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    model = optimized("y = MatMul(shares, present_v)")
    assert rooms(model) == {"past_k": 27, "past_v": 27}
    built = hetero_tvm.build_model(model)
    assert not built.no_step
    assert built.check().ok
    return hetero_tvm.load(built.export(tmp_path_factory.mktemp("steps")))


@pytest.mark.thorough
def test_the_manifest_names_states_and_the_size_that_nothing_else_tells(net):
    step = net.manifest.step
    assert step.outputs == ("present_k", "present_v")
    assert step.sizes == ("past",)


def test_a_call_writes_what_is_new_behind_what_there_is(net):
    session = net.session()
    plain = Session(net, net.signature, states_of(net.signature))
    random = np.random.default_rng(0)
    session(x=random.standard_normal((2, 3, 8)).astype(np.float32))
    places = {name: array.ctypes.data for name, array in session._arrays.items()}
    plain(x=session.states["past_k"])
    for n in (1, 6, 1, 2):
        x = random.standard_normal((2, n, 8)).astype(np.float32)
        np.testing.assert_array_equal(session(x=x), plain(x=x))  # the same kernels, other strides
        assert {name: array.ctypes.data for name, array in session._arrays.items()} == places
    for name, array in plain.states.items():
        np.testing.assert_array_equal(session.states[name], array)


def test_forks_part_when_one_goes_on(net):
    random = np.random.default_rng(1)
    x = random.standard_normal((2, 9, 8)).astype(np.float32)
    first = net.session()
    first(x=x[:, :4])
    second, third = first.fork(), first.fork()
    alone = net.session()
    alone(x=x[:, :4])
    wanted = [alone.fork()(x=part) for part in (x[:, 4:5], x[:, 5:7], x[:, 7:])]
    found = [
        one(x=part)
        for one, part in zip((first, second, third), (x[:, 4:5], x[:, 5:7], x[:, 7:]), strict=True)
    ]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(second.states["past_k"], x[:, [0, 1, 2, 3, 5, 6]])
    np.testing.assert_array_equal(first.states["past_k"], x[:, :5])
    second.rewind(3)
    again = net.session()
    again(x=x[:, :3])
    np.testing.assert_array_equal(second(x=x[:, 3:4]), again(x=x[:, 3:4]))


def test_rows_in_another_order_and_given_states_go_on(net):
    random = np.random.default_rng(2)
    x = random.standard_normal((2, 5, 8)).astype(np.float32)
    session = net.session()
    session(x=x[:, :4])
    session.reorder([1, 1, 0])
    rows = x[[1, 1, 0]]
    given = net.session(initial=session.states)
    for one in (session, given):
        y = one(x=rows[:, 4:])
        np.testing.assert_array_equal(one.states["past_k"], rows)
        again = net.session()
        again(x=rows[:, :4])
        np.testing.assert_array_equal(y, again(x=rows[:, 4:]))


def test_a_step_that_fails_changes_nothing(net):
    x = np.ones((1, 6, 8), np.float32)
    session = net.session()
    session(x=x)
    for wrong in (
        np.ones((2, 1, 8), np.float32),
        np.ones((1, 7, 8), np.float32),
        np.ones((1, 1, 8), np.int32),
    ):
        with pytest.raises(InputError):
            session(x=wrong)
    for _ in range(3):
        session(x=x)
    with pytest.raises(InputError, match="takes up to 20"):
        session(x=x)
    assert session.length == 24
    np.testing.assert_array_equal(session.states["past_k"], np.ones((1, 24, 8), np.float32))
    session.reset()
    session(x=x[:, :1])
    assert session.length == 1


@pytest.mark.thorough
def test_what_else_reads_the_past_or_nobody_reads_is_copied():
    read = "s = ReduceSum<keepdims=0>(past_v) y0 = MatMul(shares, present_v) y = Add(y0, s)"
    assert rooms(optimized(read)) == {"past_k": 27}
    unread = "y = MatMul(shares, present_k)"
    model = optimized(unread)
    assert rooms(model) == {"past_k": 27}


@pytest.mark.thorough
def test_other_states_stay_beside(tmp_path):
    """One state in place, one that is copied, and one of a fixed size."""
    model = optimized(
        "y0 = MatMul(shares, present_k) y = Add(y0, h_in) h_out = Mul(h_in, h_in)",
        past=", float[1, 1, 8] h_in",
        present=", float[1, 1, 8] h_out",
    )
    net = hetero_tvm.load(hetero_tvm.build_model(model).export(tmp_path))
    session = net.session(initial={"h_in": np.full((1, 1, 8), 2, np.float32)})
    plain = Session(net, net.signature, states_of(net.signature), {"h_in": np.full((1, 1, 8), 2, np.float32)})
    for n in (2, 1, 3):
        x = np.random.default_rng(n).standard_normal((2, n, 8)).astype(np.float32)
        np.testing.assert_array_equal(session(x=x), plain(x=x))
    for name, array in plain.states.items():
        np.testing.assert_array_equal(session.states[name], array)
    np.testing.assert_array_equal(session.states["h_in"], np.full((1, 1, 8), 256, np.float32))
