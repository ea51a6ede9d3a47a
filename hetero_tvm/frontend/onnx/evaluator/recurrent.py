"""Recurrent layers of onnx's evaluator with the activations that their kernels have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx.reference.ops.op_rnn import RNN_14


class RNN(RNN_14):
    """RNN, whose class in onnx knows the hyperbolic tangent alone: ``Relu`` is the other one of PyTorch."""

    op_domain = ""

    def choose_act(
        self, name: str, alpha: float | None, beta: float | None
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Function of an activation."""
        if name.lower() == "relu":
            return lambda x: np.maximum(x, 0)
        return super().choose_act(name, alpha, beta)
