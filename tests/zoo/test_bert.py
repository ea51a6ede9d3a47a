"""BERT as exporters write it."""

from collections import Counter

from hetero_tvm import zoo


def test_attention_is_a_chain_with_the_exporters_names():
    nodes = {node.name: node for node in zoo.build("minilm-l6-tiny").graph.node}
    path = "/encoder/layer.1/attention/self"
    chain = [nodes[f"{path}/{op}"].op_type for op in ("MatMul", "Div", "Add", "Softmax", "MatMul_1")]
    assert chain == ["MatMul", "Div", "Add", "Softmax", "MatMul"]
    assert nodes[f"{path}/Add"].input[0] == f"{path}/Div_output_0"


def test_layer_norm_is_an_operator_or_a_chain():
    """From opset 17 on, and before."""
    whole = Counter(node.op_type for node in zoo.build("minilm-l6-tiny").graph.node)
    parts = Counter(node.op_type for node in zoo.build("bert-base-tiny").graph.node)
    assert whole["LayerNormalization"] == 5 and whole["ReduceMean"] == 0
    assert parts["LayerNormalization"] == 0 and parts["ReduceMean"] == 6


def test_a_pooler_gives_a_second_output():
    plain, pooled = (zoo.build(name).graph.output for name in ("minilm-l6-tiny", "bert-base-tiny"))
    assert [o.name for o in plain] == ["last_hidden_state"]
    assert [o.name for o in pooled] == ["last_hidden_state", "pooler_output"]
