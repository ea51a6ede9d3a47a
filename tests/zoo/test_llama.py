"""Llama as exporters write it."""

from collections import Counter

import pytest

from hetero_tvm import zoo

pytest.importorskip("onnxruntime")
from tests.zoo.causal import assert_causal


def test_its_own_forms():
    """RMS norms with a reciprocal, rotary halves with a negation, SwiGLU with a sigmoid."""
    nodes = Counter(node.op_type for node in zoo.build("llama-160m-tiny").graph.node)
    assert nodes["Reciprocal"] == 5 and nodes["Neg"] == 4 and nodes["Sigmoid"] == 2


def test_the_future_is_not_seen():
    assert_causal(zoo.build("llama-160m-tiny"))
