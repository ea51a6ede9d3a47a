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
    """

    experts: int
    top: int
    normalised: bool = True

    def reference(self, logits: np.ndarray, run: int) -> tuple[np.ndarray, ...]:
        """The results."""
        chosen = np.argsort(-logits, 1, kind="stable")[:, : self.top]
        powers = np.exp(logits - logits.max(1, keepdims=True))
        shares = np.take_along_axis(powers, chosen, 1)
        shares = shares / (shares if self.normalised else powers).sum(1, keepdims=True)
        chosen = chosen.reshape(-1)
        order = np.argsort(chosen, kind="stable")
        runs = np.zeros_like(order)
        for expert in range(self.experts):
            places = np.flatnonzero(chosen[order] == expert)
            for first in range(0, len(places), run):
                runs[places[first]] = min(run, len(places) - first)
        return chosen, shares.reshape(-1), order, runs


@dataclass(frozen=True)
class ExpertLinear:
    """A product of each slot with the matrix of its expert.

    Parameters
    ----------
    linear : the product of one expert; it adds no residual.
    experts : number of matrices, whose packed panels lie one expert after the other.
    spread : slots that read the same row of X: ``top``, or 1 where X has a row for each slot.
    """

    linear: Linear
    experts: int
    spread: int = 1

    def reference(
        self, x: np.ndarray, weights: np.ndarray, chosen: np.ndarray, bias: np.ndarray | None = None
    ) -> np.ndarray:
        """The result [slots, n] for weights [experts, n, k] and a bias [experts, n], n twice when gated."""
        rows = (x[slot // self.spread][None] for slot in range(len(chosen)))
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
    shared : all rows went through one more expert: ``sigmoid(gate) * S`` is added, with gate [rows, 1].
    """

    n: int
    top: int
    shared: bool = False

    def reference(
        self,
        d: np.ndarray,
        shares: np.ndarray,
        residual: np.ndarray,
        s: np.ndarray | None = None,
        gate: np.ndarray | None = None,
    ) -> np.ndarray:
        """The result."""
        y = residual + (d * shares[:, None]).reshape(-1, self.top, self.n).sum(1)
        return y if s is None or gate is None else y + s / (1 + np.exp(-gate))
