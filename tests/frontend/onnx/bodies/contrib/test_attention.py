"""ONNX Runtime's attention operators: imported, fused again, equal to its numbers; ONNX's own likewise."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import LibraryError, UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import add_weight, contrib_model, run_onnxruntime, text_model
from tests.frontend.onnx.test_contrib import FLOAT, Model
from tests.selection import thorough

B, S, HEADS, D = 2, 5, 4, 6
WIDTH = HEADS * D


def fused(m, **counts):
    found = {**m.check().report.fusions}
    assert {name: found.get(name, 0) for name in counts} == counts


def integers(m, values):
    return m.input(name=f"i{len(m.inputs)}", values=np.asarray(values, np.int32))


MASKS = {
    "none": None,
    "lengths": [3, 5],
    "keys": [[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]],
    "pairs": np.tril(np.ones((B, S, S), int)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(mask, causal):
    m = Model()
    x, weight, bias = m.input(B, S, 8), m.weight(8, 3 * WIDTH), m.weight(3 * WIDTH)
    index = "" if MASKS[mask] is None else integers(m, MASKS[mask])
    m.node("Attention", x, weight, bias, index, num_heads=HEADS, unidirectional=causal)
    fused(m, attention=1)


def test_attention_with_narrow_values_a_bias_and_a_scale():
    m = Model()
    x, weight, bias = m.input(B, S, 8), m.weight(8, 2 * WIDTH + 8), m.weight(2 * WIDTH + 8)
    m.node(
        "Attention",
        x,
        weight,
        bias,
        "",
        "",
        m.input(1, HEADS, S, S),
        num_heads=HEADS,
        qkv_hidden_sizes=[WIDTH, WIDTH, 8],
        scale=0.3,
    )
    fused(m, attention=1)


@pytest.mark.parametrize("mask", [*thorough([None]), [[1, 1, 1, 0, 0, 1, 1], [1, 0, 1, 1, 1, 1, 0]]])
def test_multi_head_attention_across(mask):
    m = Model()
    query, key, value = m.input(B, S, WIDTH), m.input(B, 7, WIDTH), m.input(B, 7, 8)
    index = "" if mask is None else integers(m, mask)
    m.node("MultiHeadAttention", query, key, value, m.weight(2 * WIDTH + 8), index, num_heads=HEADS)
    fused(m, attention=1)


@pytest.mark.thorough
def test_multi_head_attention_of_packed_operands():
    """ONNX Runtime has these on GPUs only: against the same operands apart."""
    results = []
    packed = array(B, S, HEADS, 3, D)
    query, keys_values = packed[..., 0, :].reshape(B, S, WIDTH), np.ascontiguousarray(packed[..., 1:, :])
    apart = [np.ascontiguousarray(packed[..., i, :]).reshape(B, S, WIDTH) for i in range(3)]
    for operands in ([packed], [np.ascontiguousarray(query), keys_values], apart):
        m = Model()
        names = [m.input(name=f"x{i}", values=values) for i, values in enumerate(operands)]
        m.node("MultiHeadAttention", *names, num_heads=HEADS)
        plan = optimize_model(import_model(m.proto()))
        assert plan.report.fusions == {"attention": 1}
        results += build_model(plan).run(m.inputs)
    np.testing.assert_allclose(results[0], results[2], atol=1e-6)
    np.testing.assert_allclose(results[1], results[2], atol=1e-6)


def test_multi_head_attention_of_keys_by_head():
    m = Model()
    query, key, value = m.input(B, S, WIDTH), m.input(B, HEADS, 7, D), m.input(B, HEADS, 7, D)
    m.node("MultiHeadAttention", query, key, value, num_heads=HEADS, unidirectional=0, scale=0.2)
    fused(m, attention=1)


@pytest.mark.parametrize("form", ["buffer", *thorough(["masked"]), "across"])
def test_decoder_masked_attention(form):
    """One step; a buffer of past keys, which the new one is written into, or the keys of an encoder."""
    most, past = 9, 4
    query, (key, value) = array(B, 1, WIDTH), (array(B, 1, WIDTH, seed=n) for n in (1, 2))
    values = [query, key, value, None, None]
    if form == "across":
        values[1:4] = (
            array(B, HEADS, 7, D),
            array(B, HEADS, 7, D, seed=1),
            np.array([[1] * 5 + [0] * 2, [1] * 7], "int32"),
        )
    else:
        values += [array(B, HEADS, most, D), array(B, HEADS, most, D, seed=1), np.array([past], "int32")]
    if form == "masked":
        values[3] = np.array([[0, 1, 1, 1, 1], [1, 1, 0, 1, 1]], "int32")
        values += [None, None, array(3 * WIDTH)]
    given = [n for n, value in enumerate(values) if value is not None]
    options = {"num_heads": HEADS, "past_present_share_buffer": int(form != "across")}
    model, inputs = contrib_model(
        "DecoderMaskedMultiHeadAttention", values, options, given=given, results=1 if form == "across" else 3
    )
    found = build_model(optimize_model(import_model(model))).run(inputs)
    for have, want in zip(found, run_onnxruntime(model, inputs), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"local_window_size": 2}])
def test_group_query_attention(rotary, packed, options):
    m, dim = Model(), 16
    if packed:
        operands = [m.input(B, S, 8 * dim), "", ""]
    else:
        operands = [m.input(B, S, 4 * dim), m.input(B, S, 2 * dim), m.input(B, S, 2 * dim)]
    lengths, total = integers(m, [S - 1] * B), m.input(name="total", values=np.array(S, np.int32))
    tables = [m.weight(9, dim // 2), m.weight(9, dim // 2)] if rotary else []
    m.node(
        "GroupQueryAttention",
        *operands,
        "",
        "",
        lengths,
        total,
        *tables,
        num_heads=4,
        kv_num_heads=2,
        do_rotary=rotary,
        outputs=(FLOAT, FLOAT, FLOAT),
        **options,
    )
    m.outputs = m.outputs[:1]
    fused(m, attention=1, rope=2 * rotary)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("form", ["hidden", "heads", "part", "offset"])
def test_rotary_embedding(interleaved, form):
    m = Model()
    x = m.input(B, HEADS, S, 8) if form == "heads" else m.input(B, S, HEADS * 8)
    half = 2 if form == "part" else 4
    places = [3] if form == "offset" else [[0, 1, 2, 5, 6], [4, 3, 2, 1, 0]]
    positions = m.input(name="positions", values=np.array(places, np.int64))
    more = {"num_heads": HEADS, "rotary_embedding_dim": 4} if form == "part" else {}
    m.node(
        "RotaryEmbedding", x, positions, m.weight(9, half), m.weight(9, half), interleaved=interleaved, **more
    )
    fused(m, rope=1)


@pytest.mark.parametrize("layout", [0, 1])
def test_rotary_embedding_by_time_row_and_column(layout):
    x, half = np.random.default_rng(0).standard_normal((2, 5, 32), np.float32), 4
    places = np.random.default_rng(1).integers(0, 16, (3, 2, 5))
    angles = np.outer(np.arange(16), 10.0 ** -np.arange(half))
    values = (x, places, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    options = {"mrope_section": [2, 1, 1], "mrope_layout": layout, "num_heads": 4}
    model, inputs = contrib_model("MRotaryEmbedding", values, options, given=(0, 1))
    (got,) = run_onnxruntime(import_onnx(model).onnx_model, inputs)
    np.testing.assert_allclose(got, run_onnxruntime(model, inputs)[0], rtol=1e-5, atol=1e-6)


def test_a_buffer_of_past_keys_is_refused():
    m = Model()
    x, past = m.input(B, S, WIDTH), m.input(B, HEADS, 3, D)
    length = integers(m, [3])
    m.node("MultiHeadAttention", x, x, x, "", "", "", past, past, length, num_heads=HEADS)
    with pytest.raises(UnsupportedOperatorError, match="node0.*takes a shared buffer of past keys"):
        import_model(m.proto())


# ONNX's own operators ---------------------------------------------------------------------------


def standard(kind, inputs, outputs=1, **attributes):
    """A model of one node of opset 23; returns the plan, our results and those of ONNX's evaluator."""
    names = [name if array is not None else "" for name, array in inputs.items()]
    node = helper.make_node(kind, names, [f"y{i}" for i in range(outputs)], name="node", **attributes)
    starts = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in inputs.items()
        if a is not None
    ]
    rank = next(iter(inputs.values())).ndim
    ends = [helper.make_tensor_value_info("y0", TensorProto.FLOAT, [None] * rank)]
    graph = helper.make_graph([node], "one", starts, ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    given = {name: a for name, a in inputs.items() if a is not None}
    plan = optimize_model(import_model(model))
    nodes = [node.name for node in plan.model.onnx_model.graph.node]
    assert len(set(nodes)) == len(nodes)  # ONNX Runtime, the reference of a check, refuses doubles
    built = build_model(plan)
    assert built.check().ok
    (ours,) = built.run(given)
    theirs = ReferenceEvaluator(model).run(None, given)[0]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=4e-6 * max(1, np.nanmax(np.abs(theirs))))
    return plan.report


def array(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [None, "float", "bool"])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("rank", [3, 4])
def test_standard_attention(rank, kv_heads, mask, causal):
    def operand(heads, length, dim, seed):
        shape = (B, length, heads * dim) if rank == 3 else (B, heads, length, dim)
        return array(*shape, seed=seed)

    masks = {"float": array(S, 7), "bool": array(S, 7) < 1.0}
    masks["bool"][:, 0] = True  # every query sees a key
    inputs = {
        "q": operand(4, S, D, 1),
        "k": operand(kv_heads, 7, D, 2),
        "v": operand(kv_heads, 7, 3, 3),
        "mask": masks.get(mask),
    }
    more = {"q_num_heads": 4, "kv_num_heads": kv_heads} if rank == 3 else {}
    report = standard("Attention", inputs, is_causal=causal, scale=0.4, **more)
    assert report.fusions["attention"] == 1


@pytest.mark.parametrize("kind", ["float", *thorough(["bool"])])
def test_a_query_that_the_mask_hides_is_zero_whatever_it_holds(kind):
    inputs = {"q": array(B, 4, S, D, seed=1), "k": array(B, 4, 7, D, seed=2), "v": array(B, 4, 7, D, seed=3)}
    visible = np.ones((B, 1, S, 7), bool)
    visible[0, :, 1], visible[1, :, 0, 2] = False, False
    mask = visible if kind == "bool" else np.where(visible, 0, -np.inf).astype(np.float32)
    inputs["q"][0, 0, 1], inputs["q"][0, 1, 1, 2], inputs["q"][1, 2, 0, 0] = np.inf, np.nan, np.nan
    assert standard("Attention", {**inputs, "mask": mask}, scale=0.4).fusions["attention"] == 1


def test_standard_attention_with_a_soft_cap():
    inputs = {"q": array(B, 4, S, D, seed=1), "k": array(B, 4, 7, D, seed=2), "v": array(B, 4, 7, D, seed=3)}
    assert standard("Attention", inputs, softcap=1.5).fusions["attention"] == 1


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("form", ["hidden", "heads", "part"])
def test_standard_rotary_embedding(form, interleaved):
    half = 2 if form == "part" else 4
    x = array(B, S, HEADS * 8) if form == "hidden" else array(B, HEADS, S, 8)
    places = np.array([[0, 1, 2, 5, 6], [4, 3, 2, 1, 0]], np.int64)
    more = {"num_heads": HEADS} if form == "hidden" else {"rotary_embedding_dim": 4} if form == "part" else {}
    inputs = {"x": x, "cos": array(9, half, seed=1), "sin": array(9, half, seed=2), "places": places}
    report = standard("RotaryEmbedding", inputs, interleaved=interleaved, **more)
    assert report.fusions["rope"] == 1


def test_every_name_is_known_to_onnx_runtime_alone():
    assert not onnx.defs.has("GroupQueryAttention", 23, "")


def test_lengths_with_starts_are_refused():
    source = text_model(
        "g (float[2,4,8] x, int32[4] mask) => (float[2,4,8] y) "
        "{ y = com.microsoft.Attention<num_heads = 2>(x, w, b, mask) }",
        "/attention",
        extra=', "com.microsoft": 1',
    )
    add_weight(source, "w", np.ones((8, 24), np.float32))
    add_weight(source, "b", np.ones(24, np.float32))
    with pytest.raises(UnsupportedOperatorError, match="'/attention' .* mask of 4 numbers for 2 sequences"):
        import_onnx(source)


def test_lengths_below_zero_end_the_call():
    source = text_model(
        "g (float[2,4,8] x, int32[2] mask) => (float[2,4,8] y) "
        "{ y = com.microsoft.Attention<num_heads = 2>(x, w, b, mask) }",
        "attend",
        extra=', "com.microsoft": 1',
    )
    add_weight(source, "w", array(8, 24))
    add_weight(source, "b", array(24))
    built = build_model(optimize_model(import_onnx(source)), use_shipped=False)
    given = {"x": array(2, 4, 8, seed=1), "mask": np.array([4, 2], np.int32)}
    np.testing.assert_allclose(built.run(given)[0], run_onnxruntime(source, given)[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(LibraryError, match="attend: mask must be 0 or more"):
        built.run(given | {"mask": np.array([4, -1], np.int32)})


def test_lengths_beyond_the_steps_of_a_prompt_end_the_call():
    lengths, total = np.array([3, 1], np.int32), np.array(4, np.int32)
    values = [array(2, 4, 32), array(2, 4, 16, seed=1), array(2, 4, 16, seed=2), None, None, lengths, total]
    attributes = {"num_heads": 4, "kv_num_heads": 2}
    source, given = contrib_model("GroupQueryAttention", values, attributes, given=(0, 1, 2, 5, 6), results=3)
    built = build_model(optimize_model(import_onnx(source)), use_shipped=False)
    np.testing.assert_allclose(
        built.run(given)[0][0], run_onnxruntime(source, given)[0][0], rtol=1e-4, atol=1e-5
    )
    for bad in (4, -1):
        wrong = given | {"v5": np.array([3, bad], np.int32)}
        with pytest.raises(Exception, match="out of range"):
            run_onnxruntime(source, wrong)
        with pytest.raises(LibraryError, match="node: v5 must lie within the steps"):
            built.run(wrong)
