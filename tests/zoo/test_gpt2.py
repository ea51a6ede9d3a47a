"""GPT-2 as exporters write it."""

from collections import Counter

import pytest

from hetero_tvm import zoo

pytest.importorskip("onnxruntime")
from tests.zoo.causal import assert_causal


def test_its_own_forms():
    """Packed projections are split, the mask is a Where, GELU is that of tanh; the head is tied."""
    nodes = Counter(node.op_type for node in zoo.build("gpt2-small-tiny").graph.node)
    assert nodes["Split"] == 2 and nodes["Tanh"] == 2 and nodes["Erf"] == 0 and nodes["Where"] == 2
    weights = [t.name for t in zoo.build("gpt2-small-tiny").graph.initializer]
    assert weights.count("transformer.wte.weight") == 1 and not any("lm_head" in name for name in weights)


def test_the_future_is_not_seen():
    assert_causal(zoo.build("gpt2-small-tiny"))
