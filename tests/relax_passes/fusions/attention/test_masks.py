"""Several masks of one attention: what a query gets that they hide every key from, as the model says it."""

import itertools

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import add_weight, run_onnxruntime, text_model
from tests.selection import thorough

LOWEST = float(np.finfo(np.float32).min)
ENDS = "float[1, 2, 4, 8] q, float[1, 2, 8, 6] k, float[1, 2, 6, 8] v"
SHAPES = {"causal": (4, 6), "random": (1, 1, 4, 6), "keys": (1, 1, 1, 6), "computed": (1, 1, 4, 6)}
CONSTANT = {
    "causal": np.triu(np.ones((4, 6), bool), 1),
    "late": np.triu(np.ones((4, 6), bool), 3),
    "random": np.random.default_rng(3).random((1, 1, 4, 6)) < 0.7,
}
NUMBERS = ((LOWEST, LOWEST), (-1e9, LOWEST), (LOWEST, -1e9))
PAIRS = [
    pair
    for pair in itertools.permutations(SHAPES, 2)
    if pair not in (("causal", "random"), ("computed", "causal"), ("computed", "random"))
]


def model_of(inner, outer, first, second):
    """Scores replaced by ``first`` where a mask says so, and then by ``second`` where another one does."""
    inputs = "".join(
        f", bool[{', '.join(map(str, SHAPES[kind]))}] {kind}"
        for kind in (inner, outer)
        if kind not in CONSTANT
    )
    model = text_model(
        f"g ({ENDS}{inputs}) => (float[1, 2, 4, 8] y) <float f = {{{first}}}, float g = {{{second}}}> {{"
        f" s = MatMul(q, k) a = Where({inner}, f, s) b = Where({outer}, g, a)"
        " p = Softmax<axis = 3>(b) y = MatMul(p, v) }"
    )
    for kind in (inner, outer):
        if kind in CONSTANT:
            add_weight(model, kind, CONSTANT[kind])
    return model


@pytest.mark.parametrize(
    "inner, outer, numbers",
    [
        *((*pair, numbers) for pair, numbers in zip(PAIRS, itertools.cycle(NUMBERS), strict=False)),
        *((inner, outer, (-np.inf, -1e9)) for inner, outer in (("late", "computed"), ("late", "keys"))),
    ],
)
def test_a_query_that_two_masks_hide_every_key_from(inner, outer, numbers):
    model = model_of(inner, outer, *numbers)
    optimized = optimize_model(import_model(model))
    assert optimized.report.fusions["attention"] == 1
    built = build_model(optimized, use_shipped=False)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        given = {
            value.name: rng.standard_normal([dim.dim_value for dim in value.type.tensor_type.shape.dim])
            for value in model.graph.input
        }
        given = {
            name: (array < 0.5) if name in SHAPES else array.astype(np.float32)
            for name, array in given.items()
        }
        np.testing.assert_allclose(built.run(given)[0], run_onnxruntime(model, given)[0], atol=1e-5)


@pytest.mark.parametrize(
    "numbers",
    [
        (LOWEST, LOWEST),
        *thorough([((-1e9, -1e9),)]),
        (-1e9, LOWEST),
        *thorough([((-1e4, -1e4),)]),
        (-np.inf, -1e4),
    ],
)
@pytest.mark.parametrize("way", ["Where", "Add"])
@pytest.mark.parametrize("padding_first", [False, True])
def test_queries_in_the_padding_of_a_causal_model(numbers, way, padding_first):
    """All keys before a query are padding: what it gets are those that both masks hide the least."""
    causal, padding = numbers
    hide = "Where(late, f, {})" if way == "Where" else "Add({}, late)"
    inner, outer = ("Add({}, keys)", hide) if padding_first else (hide, "Add({}, keys)")
    model = text_model(
        f"g (float[2, 2, 5, 4] q, float[2, 2, 4, 5] k, float[2, 2, 5, 4] v, float[2, 1, 1, 5] keys)"
        f" => (float[2, 2, 5, 4] y) <float f = {{{causal}}}> {{ s = MatMul(q, k) a = {inner.format('s')}"
        f" b = {outer.format('a')} p = Softmax<axis = 3>(b) y = MatMul(p, v) }}"
    )
    late = np.triu(np.ones((5, 5), bool), 1)
    add_weight(model, "late", late if way == "Where" else np.where(late, np.float32(causal), np.float32(0)))
    optimized = optimize_model(import_model(model))
    unsafe = way == "Where" and causal == -1e4
    assert optimized.report.fusions.get("attention", 0) == (0 if unsafe else 1)
    built = build_model(optimized, use_shipped=False)
    rng = np.random.default_rng(1)
    shapes = {"q": (2, 2, 5, 4), "k": (2, 2, 4, 5), "v": (2, 2, 5, 4)}
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    given["keys"] = np.zeros((2, 1, 1, 5), np.float32)
    given["keys"][1, ..., :3] = padding
    np.testing.assert_allclose(built.run(given)[0], run_onnxruntime(model, given)[0], atol=2e-3)
