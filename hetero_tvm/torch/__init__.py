"""PyTorch's front door: ``torch.compile(model, backend="hetero_tvm")``, and :func:`compile` without Dynamo.

Importing this package imports PyTorch and registers the backend; where hetero_tvm is installed, PyTorch finds
the backend by itself (entry point ``torch_dynamo_backends``).
"""

from __future__ import annotations

from hetero_tvm.torch.backend import register
from hetero_tvm.torch.module import CompiledModule, compile

__all__ = ["CompiledModule", "compile"]

register()
