"""Recurrent layers whose state is projected, as layers whose state is not.

With a projection ``h = m P`` of the state ``m = o * tanh(c)``, the gates take ``h W = m (P W)``: a plain
layer with the weights ``P W``, whose results are projected behind it.  What the first step takes from ``h``
before it, which need not be of the form ``m P``, is added to its input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """LSTM layers with ``proj_size``."""
    aten = torch.ops.aten

    def lstm(
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        h, c = states
        if h.shape[-1] == c.shape[-1] and len(weights) == num_layers * (1 + bidirectional) * (
            4 if has_biases else 2
        ):
            return NotImplemented
        if x.dim() != 3 or (train and dropout):
            return NotImplemented
        y = x.transpose(0, 1) if batch_first else x
        directions, each = 1 + bidirectional, len(weights) // (num_layers * (1 + bidirectional))
        last_h, last_c = [], []
        for layer in range(num_layers):
            parts = []
            for reverse in range(directions):
                place = layer * directions + reverse
                given = weights[place * each : (place + 1) * each]
                ends = h[place : place + 1], c[place : place + 1]
                part, of_h, of_c = _direction(y.flip(0) if reverse else y, *ends, given, has_biases)
                parts.append(part.flip(0) if reverse else part)
                last_h.append(of_h)
                last_c.append(of_c)
            y = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        y = y.transpose(0, 1) if batch_first else y
        return y, torch.cat(last_h), torch.cat(last_c)

    def _direction(
        x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], has_biases: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One layer forwards over x [T, B, F]; results are projected."""
        of_x, of_h, *biases = weights[:-1]
        project = weights[-1]
        rest = torch.zeros(x.shape[0] - 1, *h.shape[1:], dtype=x.dtype)
        wide = torch.cat([x, torch.cat([h, rest])], -1)
        plain = [torch.cat([of_x, of_h], 1), of_h @ project, *biases]
        zeros = torch.zeros_like(c)
        y, m, c = aten.lstm.input(wide, [zeros, c], plain, has_biases, 1, 0.0, False, False, False)
        return y @ project.mT, m @ project.mT, c

    return {aten.lstm.input: lstm}
