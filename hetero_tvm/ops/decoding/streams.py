"""Contracts of models whose layers see several streams of rows (AltUp of Gemma 3n), and of the MLPs of these
of which few channels are not 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_LEAST_SQUARE = 1e-5
"""Bound from below of the mean square that a row is divided by the root of."""


@dataclass(frozen=True)
class Mix:
    """Sums of streams with shares of their own for each row: ``Y[o] = sum_i shares[row, o * given + i] *
    X[i]``.

    Operands are the streams X, each [rows, width], then the shares [rows, made * given]; results are the
    streams Y.

    Parameters
    ----------
    width, given, made : channels; number of streams X and Y.
    fixed : shares that are the same for all rows, which have no operand then; empty for none.
    """

    width: int
    given: int
    made: int
    fixed: tuple[float, ...] = ()

    def reference(self, *operands: np.ndarray) -> list[np.ndarray]:
        """The results."""
        rows = len(operands[0])
        shares = np.tile(np.array(self.fixed, np.float32), (rows, 1)) if self.fixed else operands[-1]
        shares = shares.reshape(rows, self.made, self.given)
        x = np.stack(operands[: self.given], 1)
        return list(np.einsum("noi,niw->onw", shares, x))


@dataclass(frozen=True)
class Rescale:
    """X [rows, width] with the mean square that the rows of another operand like it have."""

    width: int
    least: float = _LEAST_SQUARE

    def reference(self, x: np.ndarray, other: np.ndarray) -> np.ndarray:
        """The result."""
        wanted = np.sqrt((other * other).mean(-1, keepdims=True))
        return x * (wanted / np.sqrt(np.maximum((x * x).mean(-1, keepdims=True), self.least)))


@dataclass(frozen=True)
class SparseGate:
    """``Y = gelu(max(G - mean(G) - cut * deviation(G), 0)) * U`` for G and U beside each other,
    [rows, 2 * width]; gelu by the tangent.

    Parameters
    ----------
    cut : deviations from the mean that a channel has to exceed.
    """

    width: int
    cut: float

    def reference(self, x: np.ndarray) -> np.ndarray:
        """The result."""
        gate, up = x[:, : self.width], x[:, self.width :]
        bound = gate.mean(-1, keepdims=True) + self.cut * gate.std(-1, keepdims=True)
        above = np.maximum(gate - bound, 0)
        return 0.5 * above * (1 + np.tanh(np.sqrt(2 / np.pi) * (above + 0.044715 * above**3))) * up
