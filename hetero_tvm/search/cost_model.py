"""Predicting which points of a design space are fast.

One model per space, shared by all tasks of that space: what is learnt on one shape helps the next.
Gradient-boosted trees correct the space's own analytic estimate (its last feature): with no data
the estimate alone ranks, and every measurement bends it.  Within a task only ratios matter, so both
are centred per task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np

from hetero_tvm.machines.base import Machine

_LEAST_SAMPLES = 12
_FAILED = 4.0
"""A candidate without a time counts as this factor slower than the slowest measured one of its task."""


class SpaceModel:
    """Cost model of one design space.

    Points are described by ``DesignSpace.features``, whose last value is the analytic estimate of
    the fraction of peak that the point reaches (any positive scale).  Scores are log throughput up to
    a constant per task: higher is faster.
    """

    def __init__(self, seed: int = 0):
        self._seed = seed
        self._features: dict[str, list[Sequence[float]]] = defaultdict(list)
        self._seconds: dict[str, list[float | None]] = defaultdict(list)
        self._booster = None
        self._stale = False

    def __len__(self) -> int:
        return sum(map(len, self._seconds.values()))

    def add(self, task: str, features: Sequence[float], seconds: float | None) -> None:
        """Adds a measurement; ``seconds`` is None for a candidate that failed."""
        self._features[task].append(features)
        self._seconds[task].append(seconds)
        self._stale = True

    def score(self, features: np.ndarray) -> np.ndarray:
        """Predicted log throughput of each row of ``features`` [points, features]."""
        self._refit()
        prior = _log_estimate(features)
        if self._booster is None:
            return prior
        import xgboost

        return prior + self._booster.predict(xgboost.DMatrix(features))

    def _refit(self) -> None:
        if not self._stale or len(self) < _LEAST_SAMPLES:
            return
        rows, targets = [], []
        for task, features in self._features.items():
            matrix, seconds = np.asarray(features, np.float64), self._seconds[task]
            measured = [s for s in seconds if s is not None]
            if not measured:
                continue
            failed = max(measured) * _FAILED
            residual = -np.log([failed if s is None else s for s in seconds]) - _log_estimate(matrix)
            rows.append(matrix)
            targets.append(residual - median(residual))
        if not rows:
            return
        import xgboost

        parameters = {
            "max_depth": 4,
            "eta": 0.15,
            "min_child_weight": 1,
            "lambda": 1.0,
            "base_score": 0.0,
            "objective": "reg:squarederror",
            "nthread": 1,
            "seed": self._seed,
            "verbosity": 0,
        }
        data = xgboost.DMatrix(np.concatenate(rows), label=np.concatenate(targets))
        self._booster = xgboost.train(parameters, data, num_boost_round=50)
        self._stale = False


def described(
    features: Sequence[float], decisions: Sequence[int], sizes: Sequence[int], machine: Machine
) -> list[float]:
    """Features of a point with an estimate of its speed at their end.

    Spaces for a machine with ``sorted_choices`` put that into the order of each knob's choices, the likely
    ones first, rather than into their last feature.

    Parameters
    ----------
    decisions, sizes : index of the point's choice of each knob; number of choices of each.
    """
    if not features:  # ranked by its decisions alone, with no prior
        features = [*map(float, decisions), 1.0]
    if not machine.sorted_choices:
        return list(features)
    prior = 1.0
    for index, size in zip(decisions, sizes, strict=True):
        prior *= 1 - 0.5 * index / size
    return [*features, prior]


def _log_estimate(features: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(features[:, -1], 1e-6))
