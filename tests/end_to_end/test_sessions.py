"""A decoder's file with past and present as one library for all lengths, step by step in a session."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import Span
from hetero_tvm.errors import BuildError, InputError
from tests.frontend.onnx.helpers import text_model


def places(axis):
    """Positions of the new elements (``row``, a column) and of all, from sizes along ``axis``."""
    return f"""
    before = Shape<start={axis}, end={axis + 1}>(past_0)
    all = Shape<start={axis}, end={axis + 1}>(present_0)
    first = Squeeze(before)
    last = Squeeze(all)
    zero = Constant<value_int=0>()
    one = Constant<value_int=1>()
    axis = Constant<value_ints=[1]>()
    rows = Range(first, last, one)
    columns = Range(zero, last, one)
    row = Unsqueeze(rows, axis)
    """


DECODER = f"""
step (float[batch, sequence, 8] x, float[batch, past, 8] past_0)
    => (float[batch, sequence, 8] y, float[batch, total, 8] present_0)
{{
    present_0 = Concat<axis=1>(past_0, x)
    keys = Transpose<perm=[0, 2, 1]>(present_0)
    scores = MatMul(x, keys)
    {places(1)}
    seen = LessOrEqual(columns, row)
    least = Constant<value_float=-1e9>()
    masked = Where(seen, scores, least)
    shares = Softmax<axis=-1>(masked)
    mixed = MatMul(shares, present_0)
    place = Cast<to=1>(row)
    wave = Sin(place)
    y = Add(mixed, wave)
}}
"""


def expected(x):
    """The whole sequence at once, in float64."""
    x = x.astype(np.float64)
    scores = x @ x.transpose(0, 2, 1)
    seen = np.tril(np.ones(scores.shape[1:], bool))
    shares = np.exp(np.where(seen, scores - scores.max(-1, keepdims=True), -np.inf))
    mixed = shares / shares.sum(-1, keepdims=True) @ x
    return mixed + np.sin(np.arange(x.shape[1]))[:, None]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    shapes = {"batch": (Span(1, 3),), "sequence": (Span(1, 6),), "past": (Span(0, 30),)}
    model = hetero_tvm.import_model(text_model(DECODER), shapes=shapes)
    return hetero_tvm.build_model(hetero_tvm.optimize_model(model)).export(tmp_path_factory.mktemp("step"))


@pytest.mark.thorough
def test_steps_of_any_length_give_the_numbers_of_the_whole(library):
    net = hetero_tvm.load(library)
    x = np.random.default_rng(0).standard_normal((2, 33, 8)).astype(np.float32)
    for cuts in ([0, 6, 7, 8, 13, 14, 20], [0, *range(1, 32)], [0, 1, 7, 8, 9, 15, 21, 27, 33]):
        session = net.session()
        parts = [session(x=x[:, a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
        # float32 sums of 33 values, and an exponential of a few ulp
        np.testing.assert_allclose(np.concatenate(parts, 1), expected(x)[:, : cuts[-1]], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(session.states["past_0"], x[:, : cuts[-1]])


@pytest.mark.thorough
def test_sessions_of_one_library_do_not_disturb_each_other(library):
    net = hetero_tvm.load(library)
    x = np.random.default_rng(1).standard_normal((3, 9, 8)).astype(np.float32)
    sessions = [net.session() for _ in range(3)]
    parts = [[session(x=x[n : n + 1, i : i + 1]) for n, session in enumerate(sessions)] for i in range(9)]
    for n in range(3):
        together = np.concatenate([step[n] for step in parts], 1)
        np.testing.assert_allclose(together, expected(x[n : n + 1]), rtol=1e-5, atol=1e-5)


def test_a_full_session_is_refused_and_goes_on_after_a_step_back(library):
    session = hetero_tvm.load(library).session()
    x = np.random.default_rng(2).standard_normal((1, 40, 8)).astype(np.float32)
    for n in range(31):
        session(x=x[:, n : n + 1])
    with pytest.raises(InputError, match="takes up to 30"):
        session(x=x[:, 31:32])
    session.rewind(3)
    y = session(x=x[:, 28:30])
    np.testing.assert_allclose(y, expected(x[:, :30])[:, 28:], rtol=1e-5, atol=1e-5)


def test_lengths_that_are_sums_are_checked(library):
    net = hetero_tvm.load(library)
    with pytest.raises(InputError, match=r"outside 0\.\.30"):
        net(x=np.zeros((1, 1, 8), np.float32), past_0=np.zeros((1, 31, 8), np.float32))
    with pytest.raises(InputError, match="must be equal"):
        net(x=np.zeros((1, 1, 8), np.float32), past_0=np.zeros((2, 3, 8), np.float32))


POSITIONS = f"""
step (float[sequence, 2] x, float[past, 2] past_0) => (%s y, float[total, 2] present_0)
{{
    present_0 = Concat<axis=0>(past_0, x)
    {places(0)}
    limit = Constant<value_int=300>()
    %s
}}
"""


def built(kind, body):
    model = hetero_tvm.import_model(
        text_model(POSITIONS % (kind, body)), shapes={"sequence": (Span(1, 8),), "past": (Span(0, 512),)}
    )
    return hetero_tvm.build_model(hetero_tvm.optimize_model(model))


def test_masks_of_two_types_are_two():
    """Both have the same bytes where a truth value is one."""
    both = """
    seen = LessOrEqual(columns, row)
    bytes = Cast<to=3>(seen)
    other = Not(seen)
    others = Cast<to=3>(other)
    y = Sub(bytes, others)
    """
    library = built("int8[sequence, total]", both)
    for past, new in ((0, 1), (3, 4), (512, 8)):
        x, before = np.zeros((new, 2), np.float32), np.zeros((past, 2), np.float32)
        y = dict(zip(("y", "present"), library.run({"x": x, "past_0": before}), strict=True))["y"]
        seen = np.arange(past + new) <= np.arange(past, past + new)[:, None]
        assert y.dtype == np.int8
        np.testing.assert_array_equal(y, np.where(seen, 1, -1))


@pytest.mark.parametrize("of", ["Mod(row, limit)", "Min(row, limit)"])
def test_a_rule_that_holds_for_long_pasts_only_is_none(of):
    """Seen at 331, 421 and 512, the positions are a plain sequence, or all alike."""
    with pytest.raises(BuildError, match="other values at other sizes"):
        built("float[sequence, 2]", f"r = {of} f = Cast<to=1>(r) y = Add(x, f)")
