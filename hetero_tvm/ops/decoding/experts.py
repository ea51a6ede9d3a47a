"""Operators of mixtures of experts: each row goes through a few of many MLPs, which a router picks.

A *slot* is a row and one of its experts: ``top`` of them for each row, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_tvm.ops.decoding.contracts import Linear


@dataclass(frozen=True)
class Route:
    """The experts of each row, from the router's logits [rows, experts].

    Results are the expert and its share of each slot, the slots in the order of their experts, and for each
    place of that order the length of the *run* that begins there: neighbours of one expert, at most ``run``,
    that are multiplied together; 0 inside of runs.

    Parameters
    ----------
    experts, top : number of experts; of those that a row goes through.
    normalised : the shares of a row have the sum 1; else they are parts of the softmax over all experts.
    sigmoid : experts are judged by the sigmoid of their logits, which their shares are then, not by a
        softmax.
    corrected : an operand [experts] is added to what experts are judged by, and not to their shares.
    groups, kept : experts in as many groups, of which as many as are ``kept`` are considered: those whose
        best expert is best, or whose best two are in sum where experts are judged by a sigmoid.
    scale : of all shares.
    sparse : half the bound below the best logit, as a share, of those that the softmax of a share is over:
        one expert after the other, without those that came before (SparseMixer); 0 for none.
    """

    experts: int
    top: int
    normalised: bool = True
    sigmoid: bool = False
    corrected: bool = False
    groups: int = 1
    kept: int = 1
    scale: float = 1.0
    sparse: float = 0.0

    def reference(
        self, logits: np.ndarray, run: int, correction: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """The results."""
        powers = np.exp(logits - logits.max(1, keepdims=True))
        judged = 1 / (1 + np.exp(-logits)) if self.sigmoid else powers / powers.sum(1, keepdims=True)
        wished = judged if correction is None else judged + correction
        if self.groups > 1:
            parts = np.sort(wished.reshape(len(logits), self.groups, -1), 2)
            best = parts[:, :, -2:].sum(2) if self.sigmoid else parts[:, :, -1]
            left = np.argsort(-best, 1, kind="stable")[:, self.kept :]
            wished = wished.reshape(len(logits), self.groups, -1).copy()
            np.put_along_axis(wished, left[:, :, None], -np.inf, 1)
            wished = wished.reshape(logits.shape)
        chosen = np.argsort(-wished, 1, kind="stable")[:, : self.top]
        shares = np.take_along_axis(judged, chosen, 1)
        if self.sparse:
            shares = self._sparse(logits, chosen)
        elif self.normalised:
            shares = shares / shares.sum(1, keepdims=True)
        shares = shares * self.scale
        chosen = chosen.reshape(-1)
        order = np.argsort(chosen, kind="stable")
        runs = np.zeros_like(order)
        for expert in range(self.experts):
            places = np.flatnonzero(chosen[order] == expert)
            for first in range(0, len(places), run):
                runs[places[first]] = min(run, len(places) - first)
        return chosen, shares.reshape(-1), order, runs

    def _sparse(self, logits: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        shares, left = np.empty(chosen.shape), logits.copy()
        for turn, picked in enumerate(chosen.T[:, :, None]):
            peak = np.take_along_axis(logits, picked, 1)
            near = peak - left <= 2 * self.sparse * np.maximum(np.abs(logits), peak)
            shares[:, turn] = 1 / (np.exp(left - peak) * near).sum(1)
            np.put_along_axis(left, picked, -np.inf, 1)
        return shares


@dataclass(frozen=True)
class ExpertLinear:
    """A product of each slot with the matrix of its expert.

    Parameters
    ----------
    linear : the product of one expert; it adds no residual.
    experts : number of matrices, whose packed panels lie one expert after the other.
    spread : slots that read the same row of X: ``top``, or 1 where X has a row for each slot.
    scaled : rows are multiplied by the share of their slot, which is an operand, before the product.
    """

    linear: Linear
    experts: int
    spread: int = 1
    scaled: bool = False

    def reference(
        self,
        x: np.ndarray,
        weights: np.ndarray,
        chosen: np.ndarray,
        bias: np.ndarray | None = None,
        shares: np.ndarray | None = None,
    ) -> np.ndarray:
        """The result [slots, n] for weights [experts, n, k] and a bias [experts, n], n twice when gated."""
        factors = np.ones(len(chosen), x.dtype) if shares is None else shares
        rows = (x[slot // self.spread][None] * factors[slot] for slot in range(len(chosen)))
        return np.concatenate(
            [
                self.linear.reference(row, weights[e], None if bias is None else bias[e])
                for row, e in zip(rows, chosen, strict=True)
            ]
        )


@dataclass(frozen=True)
class Combine:
    """``Y = R + sum of share * D`` over the slots of each row [rows, n].

    Parameters
    ----------
    residual : there is R; else the sum stands alone.
    shares : there are shares; else the sum is of D alone.
    shared : all rows went through one more expert: ``sigmoid(gate) * S`` is added, with gate [rows, 1].
    """

    n: int
    top: int
    shared: bool = False
    residual: bool = True
    shares: bool = True

    def reference(
        self,
        d: np.ndarray,
        shares: np.ndarray | None = None,
        residual: np.ndarray | float = 0.0,
        s: np.ndarray | None = None,
        gate: np.ndarray | None = None,
    ) -> np.ndarray:
        """The result."""
        weighted = d if shares is None else d * shares[:, None]
        y = residual + weighted.reshape(-1, self.top, self.n).sum(1)
        return y if s is None or gate is None else y + s / (1 + np.exp(-gate))
