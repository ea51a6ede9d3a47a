"""ViT as exporters write it."""

from collections import Counter

from hetero_tvm import zoo
from hetero_tvm.zoo.vit import VitConfig


def test_tokens_are_patches_and_a_class():
    assert VitConfig(12, 768, 12, 3072).tokens == 197
    model = zoo.build("vit-b16-tiny")
    (positions,) = (t for t in model.graph.initializer if t.name.endswith("position_embeddings"))
    assert list(positions.dims) == [1, 26, 48]


def test_its_own_forms():
    """Patches by one convolution; the head is a Gemm on the class token."""
    nodes = Counter(node.op_type for node in zoo.build("vit-b16-tiny").graph.node)
    assert nodes["Conv"] == 1 and nodes["Gemm"] == 1 and nodes["Erf"] == 1
