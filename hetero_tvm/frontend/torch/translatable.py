"""PyTorch operators that can be translated: by the exporter's registry, by a decomposition, or by ours."""

from __future__ import annotations

import functools
from typing import Any

from hetero_tvm.frontend.torch.decompositions import decompositions
from hetero_tvm.frontend.torch.load import quiet, require

#: The newest ONNX opset in which PyTorch's exporter still writes attention as matrix products.
OPSET = 20


def is_translatable(operator: Any) -> bool:
    """Whether an ATen operator has a translation, directly or after decomposition.

    What is no operator of PyTorch's dispatcher (``operator.getitem``) is taken to have one.
    """
    return not hasattr(operator, "_schema") or operator in _known() or operator in decompositions()


@functools.lru_cache(maxsize=1)
def _known() -> frozenset[Any]:
    torch = require("torch")
    registration = require("torch.onnx._internal.exporter._registration")
    decomposition = require("torch.onnx._internal.exporter._decomp")
    with quiet():
        registry = registration.ONNXRegistry.from_torchlib(opset_version=OPSET)
        direct = set(decomposition.get_onnx_implemented_overloads(registry))
        table = decomposition.create_onnx_friendly_decomposition_table(direct)
    return frozenset(direct | set(table) | {torch.ops.aten.lift_fresh_copy.default})
