"""Operators with and without translation."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from hetero_tvm.frontend.torch.translatable import is_translatable, registry

CASES = {
    "direct": (lambda x: torch.tanh(x), True),
    "decomposed by PyTorch": (lambda x: torch.nn.functional.mish(x), True),
    "decomposed here": (lambda x: torch.cdist(x, x), True),
    "left to PyTorch by ours": (lambda x: torch.ops.aten.silu_backward(x, x), True),
    "none": (lambda x: torch.linalg.eigvalsh(x), False),
    "decomposed to what has none": (lambda x: torch.special.bessel_j0(x), False),
}


@pytest.mark.parametrize("case", CASES)
def test_translations(case):
    function, expected = CASES[case]
    graph = make_fx(function, tracing_mode="fake")(torch.eye(3)).graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    assert all(map(is_translatable, nodes)) == expected


def test_the_registry_is_made_once():
    assert registry() is registry()
