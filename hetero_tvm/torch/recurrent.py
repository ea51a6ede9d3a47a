"""Recurrent layers in graphs of this backend: Dynamo leaves LSTM, GRU and RNN out by default."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch


class OfThisBackend:
    """A setting of Dynamo that is true for graphs that ``backend`` gets without gradients, and for no others.

    Gradients of these layers are compiled step by step, which takes minutes for long sequences: they stay
    in PyTorch until ``torch._dynamo.config.allow_rnn = True``.

    Parameters
    ----------
    backend : function that ``torch.compile`` calls with graphs.
    """

    def __init__(self, backend: Callable[..., Any]):
        self._backend = backend

    def __bool__(self) -> bool:
        if torch.is_grad_enabled():
            return False
        # The setting belongs to the process; which backend Dynamo traces for is known to its tracer alone.
        asking = sys._getframe(1).f_locals.get("self")
        compiler = getattr(getattr(getattr(asking, "tx", None), "output", None), "compiler_fn", None)
        for name in ("_torchdynamo_orig_backend", "compiler_fn"):
            while hasattr(compiler, name):
                compiler = getattr(compiler, name)
        return compiler is self._backend

    def __repr__(self) -> str:
        return f"<true for {self._backend.__name__} without gradients>"

    def __reduce__(self) -> tuple[type[bool], tuple[()]]:
        return bool, ()  # caches of other backends are keyed by Dynamo's settings


def take_recurrent_layers(backend: Callable[..., Any]) -> None:
    """Let Dynamo trace LSTM, GRU and RNN for ``backend``; what a user sets replaces it."""
    import torch._dynamo  # slow to import: this backend's modules have done so

    if torch._dynamo.config.allow_rnn is False:
        torch._dynamo.config.allow_rnn = OfThisBackend(backend)
