"""Bounds of what a file may ask for: each refusal has its name, and honest models can raise it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.errors import ModelError, UsageError
from hetero_tvm.frontend import import_model
from hetero_tvm.frontend.limits import VARIABLE, Limits, check_size, current_limits
from tests.campaign import onnx_bombs
from tests.frontend.onnx.helpers import text_model

BOUNDS = {
    "laughs_binary": "nodes",
    "laughs_wide": "nodes",
    "laughs_endless": "depth",
    "recursive_1": "calls itself",
    "recursive_2": "calls itself",
    "recursive_500": "calls itself",
    "functions_deep": "depth",
    "concat_50_constant": "tensor_bytes",
    "concat_50_input": "tensor_bytes",
    "tile_50_constant": "tensor_bytes",
    "expand_50_input": "rank",
    "pad_50_constant": "tensor_bytes",
    "resize_40": "tensor_bytes",
    "filled_2_28": "folded_bytes",
    "filled_2_40": "tensor_bytes",
    "concat_27_constant": "folded_bytes",
    "tile_27_constant": "folded_bytes",
    "expand_27_constant": "folded_bytes",
    "pad_27_constant": "folded_bytes",
    "filled_overflow": "",
    "filled_negative": "",
    "filled_rank": "rank",
    "range_2_40": "tensor_bytes",
    "squares": "tensor_bytes",
    "nested_file_200": "30 deep",
    "nested_file_10000": "30 deep",
    "nodes_million": "nodes",
    "claimed_2_60": "damaged",
    "claimed_negative": "damaged",
    "claimed_negative_pair": "damaged",
    "claimed_rank": "",
    "claimed_strings": "",
    "strings": "",
    "external_parent": "outside the folder",
    "external_absolute": "outside the folder",
    "external_link": "outside the folder",
    "external_folder_link": "outside the folder",
    "external_missing": "is missing",
    "external_device": "outside the folder",
    "external_folder": "",
    "external_nul": "outside the folder",
    "external_long": "",
    "external_beyond": "needs 16 bytes at offset 1000",
    "external_length": "needs",
    "external_negative": "needs",
    "external_short": "",
    "external_text": "",
    "external_digits": "",
    "rank_70": "rank",
    "rank_1000": "rank",
    "input_huge": "tensor_bytes",
    "input_rank": "rank",
    "input_many": "tensor_bytes",
}


LONG = ("nodes_million", "concat_27_constant", "pad_27_constant", "expand_27_constant", "nested_file_10000")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in LONG else ()) for name in BOUNDS]
)
def test_a_bomb_is_refused_by_its_bound(name):
    end = onnx_bombs.light(name)
    assert end.kind == "refused", end.text
    assert BOUNDS[name] in end.text
    assert end.peak <= onnx_bombs.MOST_BYTES


def test_what_onnx_computes_slowly_is_left_to_run_time():
    end = onnx_bombs.light("resize_13")  # 67 million pixels, element by element in Python
    assert end.kind == "read" and end.peak <= 256 << 20


def test_constants_near_the_weights_are_computed_in_every_round():
    """A constant that stays in the graph is looked at once a round, and counts once."""
    large = onnx_bombs.filled([(100 << 20) // 4])
    model = onnx_bombs.model([*large.graph.node[:-1], *_chain(20)], large.graph.initializer)
    import_model(model)


def _chain(length):
    """Nodes of which each round of folding settles one: the shape of the next comes from the one before."""
    nodes = []
    for step in range(length):
        source = f"n{step}" if step else "s"
        nodes += [
            helper.make_node("Shape", [source], [f"s{step}"]),
            helper.make_node("ConstantOfShape", [f"s{step}"], [f"z{step}"]),
            helper.make_node("Add", [source, f"z{step}"], [f"n{step + 1}"]),
        ]
    return [*nodes, helper.make_node("Add", ["x", f"n{length}"], ["y"])]


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT8"])
def test_weights_of_few_bits_may_become_floats(kind, monkeypatch):
    """Blocks of scales are written out in float32: eight times what the file has for 4 bits, step by step."""
    weight = helper.make_tensor(
        "q", getattr(TensorProto, kind), [1024, 512], bytes(1024 * 512 // (2 if "4" in kind else 1)), raw=True
    )
    scales = numpy_helper.from_array(np.full((32, 512), 0.5, np.float32), "s")
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, n])
        for name, n in (("x", 1024), ("y", 512))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight, scales])
    monkeypatch.setenv(VARIABLE, "folded_bytes=0")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert [spec.shape for spec in import_model(model).signature.outputs] == [(2, 512)]


def test_a_bound_can_be_raised_and_lowered(monkeypatch):
    model = text_model("g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) y = Exp(b) }")
    import_model(model)
    monkeypatch.setenv(VARIABLE, "nodes=2")
    with pytest.raises(ModelError, match=r"the bound is 2\..*\n.*nodes=4"):
        import_model(model)
    monkeypatch.setenv(VARIABLE, " nodes=3, tensor_bytes=15 ")
    with pytest.raises(ModelError, match="tensor 'x' .4. takes 16 bytes"):
        import_model(model)
    monkeypatch.setenv(VARIABLE, "tensor_bytes=2GiB,rank=1")
    import_model(model)
    assert current_limits() == Limits(tensor_bytes=2 << 30, rank=1)


@pytest.mark.parametrize("text", ["nodes", "nodes=", "nodes=-1", "nodes=1.5", "size=4", "nodes=4XB", "=4"])
def test_a_bound_that_is_none_is_told(text, monkeypatch):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match="written_nodes"):
        current_limits()


def test_functions_are_counted_as_often_as_they_are_called():
    model = onnx_bombs.billion_laughs(5, 3)  # 81 nodes
    check_size(model, Limits(nodes=81))
    with pytest.raises(ModelError, match="once all is written out"):
        check_size(model, Limits(nodes=80))
    check_size(model, Limits(depth=5))
    with pytest.raises(ModelError, match="depth"):
        check_size(model, Limits(depth=4))


def test_nodes_and_depths_of_subgraphs_count():
    model = onnx_bombs.nested("If", 20)
    check_size(model, Limits(depth=20))
    with pytest.raises(ModelError, match="lies in 20 subgraphs"):
        check_size(model, Limits(depth=19))
    with pytest.raises(ModelError, match="too many nodes"):
        check_size(model, Limits(nodes=40))


def test_padding_takes_away_no_more_than_there_is():
    source = text_model(
        "g (float[3,4] x) => (float[A,B] y) { p = Constant<value_ints=[0,-3,0,-3]>() y = Pad(x, p) }"
    )
    with pytest.raises(ModelError, match="fewer than 0 elements"):
        import_model(source)


@pytest.mark.parametrize("extent, said", [(100_000, "tensor_bytes=40000000000."), (1 << 40, "No machine")])
def test_the_bound_to_raise_is_what_the_model_needs(extent, said):
    model = text_model(f"g (float[{extent}, 100000] x) => (float[{extent}, 100000] y) {{ y = Relu(x) }}")
    with pytest.raises(ModelError) as caught:
        import_model(model)
    assert said in caught.value.hint
