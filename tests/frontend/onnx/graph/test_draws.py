"""Random numbers of ONNX nodes: their distributions, seeds and places, and what judges them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from scipy import stats

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.draws import drawn
from hetero_tvm.frontend.signature import Span
from hetero_tvm.reference.draws import with_draws
from tests.frontend.onnx.helpers import text_model

pytestmark = pytest.mark.filterwarnings("ignore:random numbers are drawn once")

NOISE = """g (float[1,4,N] x, float[1] scale) => (float[1,4,N] y)
{ noise = RandomNormalLike (x) scaled = Mul (noise, scale) y = Add (x, scaled) }"""


@pytest.mark.parametrize("op, low, high", [("RandomNormal", 3.0, 0.5), ("RandomUniform", -2.0, 7.0)])
def test_distributions(op, low, high):
    """100,000 numbers beside their distribution (Kolmogorov and Smirnov), and rows that do not correlate."""
    names = ("mean", "scale") if op == "RandomNormal" else ("low", "high")
    node = helper.make_node(op, [], ["r"], shape=[100, 1000], **dict(zip(names, (low, high), strict=True)))
    numbers = drawn(node)
    wanted = stats.norm(low, high) if op == "RandomNormal" else stats.uniform(low, high - low)
    assert numbers.dtype == np.float32 and stats.kstest(numbers.ravel(), wanted.cdf).pvalue > 0.01
    assert np.abs(np.corrcoef(numbers) - np.eye(100)).max() < 0.2, "5 deviations are 0.16"


def test_seeds_names_and_places_decide():
    def numbers(shape=(2, 3), name="r", **attributes):
        node = helper.make_node("RandomNormalLike", ["x"], [name], **attributes)
        return drawn(node, (TensorProto.FLOAT, shape))

    assert np.array_equal(numbers(), numbers())
    assert not np.isin(numbers(), numbers(name="s")).any()
    assert np.array_equal(numbers(seed=2.5), numbers(name="s", seed=2.5))
    assert not np.isin(numbers(seed=2.5), numbers(seed=2.25)).any()
    assert np.array_equal(numbers((4, 5))[:2, :3], numbers()), "the first ones of a larger size"
    assert numbers((), dtype=TensorProto.DOUBLE).shape == () and numbers((0, 3)).shape == (0, 3)
    assert numbers(dtype=TensorProto.FLOAT16).dtype == np.float16 and numbers(dtype=TensorProto.INT32) is None


def test_one_library_has_them_at_all_lengths():
    """The file itself, with the same numbers, is the judge at each of them."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = text_model(NOISE)
    opened = import_model(model, shapes={"x": (1, 4, Span(1, 9))})
    built = build_model(optimize_model(opened), use_shipped=False)
    assert built.check().ok
    for length in (1, 4, 9):
        x, scale = np.full((1, 4, length), 2, np.float32), np.float32([0.5])
        feeds = {"x": x, "scale": scale}

        def run(proto, names, feeds=feeds):
            return tuple(onnxruntime.InferenceSession(proto.SerializeToString()).run(names, feeds))

        (wanted,) = run(with_draws(model, run), None)
        assert np.abs(wanted - x).max() > 0.1
        np.testing.assert_allclose(built.run(feeds)[0], wanted, rtol=1e-6)


def test_decisions_are_refused():
    model = text_model("g (float[50,40] x) => (float[50,40] y) { y = Bernoulli (x) }")
    with pytest.raises(
        UnsupportedOperatorError, match="by which Greater decides, the same way in every call"
    ):
        import_model(model)
    assert with_draws(model, lambda proto, names: None) is None, "the numbers of others are not known"


def test_choices_by_the_noise_of_gumbel_are_refused():
    model = text_model(
        """g (float[2,40] x) => (int64[2,1] y) { u = RandomUniformLike (x) a = Log (u) b = Neg (a) c = Log (b)
        noisy = Sub (x, c) p = Softmax (noisy) y = ArgMax <axis=-1> (p) }"""
    )
    with pytest.raises(UnsupportedOperatorError, match="by which ArgMax decides"):
        import_model(model)


@pytest.mark.parametrize(
    "body",
    [
        "g (int64[2] x) => (int64[2] y) { r = RandomUniformLike (x) y = Add (x, r) }",
        "g (float[1] x) => (float y) { r = RandomNormal<shape=[4096,8192]> () y = ReduceMax<keepdims=0>(r) }",
    ],
)
def test_what_cannot_be_drawn_is_refused(body):
    with pytest.raises(
        UnsupportedOperatorError, match="of no float type, of an unknown shape or above 64 MiB"
    ):
        import_model(text_model(body))


def test_rounds_draw_their_own_or_are_refused():
    def loop(rounds, inputs):
        body = onnx.parser.parse_graph(
            """b (int64 i, bool c, float[500] s) => (bool d, float[500] o)
            { r = RandomNormalLike (s) o = Add (s, r) d = Identity (c) }"""
        )
        graph = onnx.parser.parse_graph(f"g (float[500] x{inputs}) => (float[500] y) {{ y = Identity (x) }}")
        node = helper.make_node("Loop", ["n", "", "x"], ["y"], "sums", body=body)
        del graph.node[:]
        graph.node.append(node)
        graph.initializer.extend(rounds)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])

    four = loop([onnx.numpy_helper.from_array(np.array(4), "n")], "")
    built = build_model(optimize_model(import_model(four)), use_shipped=False)
    assert 1.7 < built.run({"x": np.zeros(500, np.float32)})[0].std() < 2.3, "four that are one would have 4"
    with pytest.raises(UnsupportedOperatorError, match="draws other numbers in each round"):
        import_model(loop([], ", int64 n"))


def test_a_warning_says_that_calls_share_them():
    with pytest.warns(UserWarning, match=r"drawn once.*'.*noise.*' \(RandomNormalLike\)"):
        import_model(text_model(NOISE), shapes={"x": (1, 4, 3)})
