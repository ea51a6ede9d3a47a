"""PyTorch's front door: ``torch.compile(model, backend="hetero_tvm")``, and :func:`compile` without Dynamo.

Importing this package imports PyTorch and registers the backend; where hetero_tvm is installed, PyTorch finds
the backend by itself (entry point ``torch_dynamo_backends``).
"""

from __future__ import annotations

import importlib.util

from hetero_tvm.host.install import extra_command

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError(f"hetero_tvm.torch needs PyTorch: {extra_command('torch')}", name="torch")

from hetero_tvm.torch.backend import register
from hetero_tvm.torch.module import CompiledModule, compile

__all__ = ["CompiledModule", "compile"]

register()
