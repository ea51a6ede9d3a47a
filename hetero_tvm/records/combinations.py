"""Combinations: one point per kernel of a model, and the records of what the whole model took.

Where kernels overlap and share memory, what is best alone need not be best beside its neighbours.  The
records of such a target have one more entry per model, whose candidates are *combinations*.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_tvm.records.record import Record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.schedules.base import Point, thaw
from hetero_tvm.schedules.task import Task

Combination = Mapping[str, Point]
"""Task key -> point; tasks that are not in it have their default."""


@dataclass(frozen=True)
class ChoiceSpace:
    """Stand-in for a design space where records keep another choice than that of a kernel's point."""

    name: str
    version: int = 1


@dataclass(frozen=True)
class Subject:
    """Stand-in for what is no kernel where records ask for a task."""

    key: str
    name: str
    space: ChoiceSpace
    op: None = None


def subject_key(parts: Iterable[Any]) -> str:
    """Key of what has these parts, values of JSON in any order."""
    return hashlib.sha256(json.dumps(sorted(parts)).encode()).hexdigest()[:16]


class WholeModel(Subject):
    """Stand-in for a model: its kernels and how often each is called."""

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> WholeModel:
        parts = [(t.key, t.count, t.space.name, t.space.version) for t in tasks if t.space is not None]
        return cls(subject_key(parts), "whole model", ChoiceSpace("whole-model"))


@dataclass(frozen=True)
class Known:
    """Knowledge of earlier runs for a search over combinations.

    Parameters
    ----------
    alone : by task, points with their seconds alone.
    past : combinations that were timed as whole models, with their seconds; None where that failed.
    """

    alone: Mapping[str, Sequence[tuple[Point, float]]] = field(default_factory=dict)
    past: Sequence[tuple[Combination, float | None]] = ()


@dataclass(frozen=True)
class Found:
    """The best combination, and what the model takes, in ``unit``.

    Parameters
    ----------
    default, best : with all defaults, with this combination: ``best <= default``.
    second : seconds per unit.
    """

    combination: Combination
    default: float
    best: float
    unit: str
    second: float

    def __str__(self) -> str:
        ratio = self.best / self.default if self.default else 1.0
        return (
            f"whole model: {self.default:,.0f} {self.unit} by default, {self.best:,.0f} tuned "
            f"({ratio:.3f} x default)"
        )


def combination_of(record: Record) -> dict[str, dict[str, Any]]:
    return {key: thaw(point) for key, point in (record.point or {}).items()}


def best_combination(tasks: Iterable[Task], store: RecordStore) -> tuple[Combination, Record, str] | None:
    """The one to build a model with, its record, and the layer of that; None when there is none."""
    found = store.best(WholeModel.of(tasks))
    return None if found is None else (combination_of(found[0]), *found)
