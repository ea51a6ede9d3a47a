"""Registry of what PyTorch's ONNX exporter translates."""

from __future__ import annotations

import functools
from typing import Any

from hetero_tvm.frontend.torch.load import quiet, require

#: The newest ONNX opset in which PyTorch's exporter still writes attention as matrix products.
OPSET = 20


@functools.lru_cache(maxsize=1)
def registry() -> Any:
    """The exporter's registry of translations, which takes longer to make than most programs to translate.

    Raises
    ------
    UsageError : onnxscript is not installed.
    """
    require("onnxscript")
    with quiet():
        registration = require("torch.onnx._internal.exporter._registration")
        return registration.ONNXRegistry.from_torchlib(opset_version=OPSET)


@functools.lru_cache(maxsize=1)
def decomposition_table() -> dict[Any, Any]:
    """PyTorch's decompositions of operators that its exporter has no translation of."""
    decomposition = require("torch.onnx._internal.exporter._decomp")
    with quiet():
        direct = set(decomposition.get_onnx_implemented_overloads(registry()))
        return decomposition.create_onnx_friendly_decomposition_table(direct)
