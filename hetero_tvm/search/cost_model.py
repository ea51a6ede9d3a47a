"""Predicting which points of a design space are fast.

One model per space, shared by all tasks of that space: what is learnt on one shape helps the next.
Gradient-boosted trees correct the space's own estimate: with no data the estimate alone ranks, and every
measurement bends it.  A model may begin with trees that were trained before (``pretrained.py``); those of
this run then correct what they leave.  Within a task only ratios matter, so all are centred per task.
Without XGBoost (the extra ``search``) a ridge regression corrects the estimate, and nothing is known before.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Knob, Point

_LEAST_SAMPLES = 12
_FAILED = 4.0
"""A candidate without a time counts as this factor slower than the slowest measured one of its task."""
_ROUNDS = 50
_CAREFUL = {"max_depth": 2, "min_child_weight": 8, "lambda": 5}
"""Limits of trees for other operators than they were trained on."""


class Description(NamedTuple):
    """A point as the cost model sees it.

    Parameters
    ----------
    features : ``DesignSpace.features``, of one length for all points of a space.
    estimate : ``DesignSpace.estimate``: positive, its scale free.
    """

    features: tuple[float, ...]
    estimate: float


class SpaceModel:
    """Cost model of one design space.  Scores are log throughput up to a constant per task: higher is faster.

    Parameters
    ----------
    base : trees that were trained before, an ``xgboost.Booster``; None begins with the estimate alone.
    """

    def __init__(self, seed: int = 0, base: Any = None):
        self._seed, self._base = seed, base
        self._described: dict[str, list[Description]] = defaultdict(list)
        self._seconds: dict[str, list[float | None]] = defaultdict(list)
        self._booster: Any = None
        self._stale = False

    def __len__(self) -> int:
        return sum(map(len, self._seconds.values()))

    def add(self, task: str, described: Description, seconds: float | None) -> None:
        """Adds a measurement; ``seconds`` is None for a candidate that failed."""
        self._described[task].append(described)
        self._seconds[task].append(seconds)
        self._stale = True

    def forget(self, task: str, described: Description) -> None:
        """Takes measurements of a point back."""
        kept = [i for i, one in enumerate(self._described[task]) if one != described]
        self._described[task] = [self._described[task][i] for i in kept]
        self._seconds[task] = [self._seconds[task][i] for i in kept]
        self._stale = True

    def score(self, described: Sequence[Description]) -> np.ndarray:
        """Predicted log throughput of each point."""
        self._refit()
        score = self._begin(described)
        return score if self._booster is None else score + _corrections(self._booster, described)

    def booster(self) -> Any:
        """Trees trained with all measurements, to be shipped; None where there is nothing to learn.

        They must hold for other operators, on other machines: every task counts alike, however many points it
        has, no leaf is of a few points, and no rule has more than two conditions.
        """
        labels = self._residuals()
        if labels is None:
            return None
        counts = [len(s) for s in self._seconds.values() if any(one is not None for one in s)]
        weights = np.concatenate([np.full(count, len(labels[1]) / len(counts) / count) for count in counts])
        return _train(*labels, self._seed, weights=weights, **_CAREFUL)

    def _begin(self, described: Sequence[Description]) -> np.ndarray:
        """Scores before any measurement of this model."""
        prior = -np.log(np.maximum([one.estimate for one in described], 1e-12))
        if self._base is not None and self._base.num_features() != len(described[0].features):
            self._base = None  # trained for another version of the features
        return prior if self._base is None else prior + _corrections(self._base, described)

    def _refit(self) -> None:
        if not self._stale or len(self) < _LEAST_SAMPLES:
            return
        if (labels := self._residuals()) is not None:
            self._booster = _train(*labels, self._seed)
            self._stale = False

    def _residuals(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Features of what was measured, and what the scores before it were wrong by."""
        rows, labels = [], []
        for task, described in self._described.items():
            seconds = self._seconds[task]
            measured = [s for s in seconds if s is not None]
            if not measured:
                continue
            failed = max(measured) * _FAILED
            residual = -np.log([failed if s is None else s for s in seconds]) - self._begin(described)
            rows.append(matrix(described))
            labels.append(residual - median(residual))
        return (np.concatenate(rows), np.concatenate(labels)) if rows else None


class Ridge:
    """Linear corrections, where XGBoost is not installed: features and their squares, centred and scaled.

    The penalty is as strong as the data of a few points, so that few measurements bend the estimate little.
    """

    _PENALTY = 8.0

    def __init__(self, features: np.ndarray, labels: np.ndarray):
        self._mean, self._scale = features.mean(0), features.std(0) + 1e-9
        design = self._design(features)
        square = design.T @ design + self._PENALTY * np.eye(design.shape[1])
        self._weights = np.linalg.solve(square, design.T @ labels)

    def _design(self, features: np.ndarray) -> np.ndarray:
        scaled = np.clip((features - self._mean) / self._scale, -4, 4)
        return np.concatenate([scaled, scaled**2, np.ones((len(features), 1))], axis=1)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Corrections of points, one row each."""
        return self._design(features) @ self._weights


def has_trees() -> bool:
    """Whether XGBoost is installed."""
    return importlib.util.find_spec("xgboost") is not None


def _train(
    features: np.ndarray, labels: np.ndarray, seed: int, weights: np.ndarray | None = None, **limits: int
) -> Any:
    """Trees for features and labels; ``limits`` are parameters of theirs."""
    if not has_trees():
        return Ridge(features.astype(np.float64), labels)
    import xgboost

    parameters = {
        "max_depth": 4,
        "eta": 0.15,
        "min_child_weight": 1,
        "lambda": 1.0,
        "base_score": 0.0,
        "objective": "reg:squarederror",
        "nthread": 1,
        "seed": seed,
        "verbosity": 0,
        **limits,
    }
    data = xgboost.DMatrix(features, label=labels, weight=weights)
    return xgboost.train(parameters, data, num_boost_round=_ROUNDS)


def _corrections(booster: Any, described: Sequence[Description]) -> np.ndarray:
    if isinstance(booster, Ridge):
        return booster.predict(matrix(described))
    import xgboost

    return booster.predict(xgboost.DMatrix(matrix(described)))


def matrix(described: Sequence[Description]) -> np.ndarray:
    """Numbers that the trees see of points, one row each: no estimate, as its scale is free."""
    return np.asarray([one.features for one in described], np.float64)


def described(
    space: DesignSpace, op: FusedOp, point: Point, machine: Machine, knobs: Sequence[Knob] | None = None
) -> Description:
    """A point with the space's estimate; where it has none, the default's choices are the likeliest, and of
    the others those that stand first in their knobs.

    ``knobs`` : those of the space for this operator, if they are at hand.
    """
    features, estimate = space.features(op, point, machine), space.estimate(op, point, machine)
    if not features or estimate is None:
        knobs = space.knobs(op, machine) if knobs is None else knobs
        places = [knob.choices.index(point.get(knob.name, knob.absent)) for knob in knobs]
        features = features or places
        if estimate is None:
            estimate = 1.0
            default = _default(space, op, machine)
            for place, knob in zip(places, knobs, strict=True):
                first = knob.choices.index(default.get(knob.name, knob.absent))
                rank = 0 if place == first else place + (place < first)
                estimate /= 1 - 0.5 * rank / len(knob.choices)
    return Description((*map(float, features), *_machine_features(machine)), estimate)


@lru_cache(maxsize=256)
def _default(space: DesignSpace, op: FusedOp, machine: Machine) -> Point:
    """The default point, for all points that are compared with it."""
    return space.default(op, machine)


def _machine_features(machine: Machine) -> tuple[float, ...]:
    """Numbers that tell machines apart whose measurements train one model."""
    return (float(machine.lanes), float(machine.threads))
