"""New combinations from the best ones: crossed, changed, and chosen by a model of what whole models take."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from hetero_tvm.records.candidates import point_key
from hetero_tvm.records.combinations import Combination
from hetero_tvm.schedules.base import Point
from hetero_tvm.search.cost_model import SpaceModel
from hetero_tvm.targets.npu.tuning.choices import Choices, placing_of, without_placing

_PARENTS, _CHILDREN, _BATCH, _AT_RANDOM = 16, 96, 6, 2
_LARGE, _ALIKE = 3, 5
"""So many parents may have the same families of so many of the largest kernels."""
_CROSSED, _PLACED, _IN_PLACE = 0.4, 0.3, 0.4
"""Shares: of children those of two parents; of changes those of placing, of others those in place."""


def plain(combination: Combination, kernels: Mapping[str, Choices]) -> dict[str, Point]:
    """Without what is default anyway, and without tasks that are not there."""
    entries = combination.items()
    return {key: point for key, point in entries if key in kernels and point != kernels[key].default}


def text_of(combination: Combination) -> str:
    """Equal for equal combinations."""
    return point_key(combination)


class Evolution:
    """Proposes combinations of points of some kernels.

    The model of costs is gradient-boosted trees over what the spaces say of every kernel's point, how it is
    placed and what it takes alone; it corrects the sum of the times alone.
    """

    def __init__(self, kernels: Mapping[str, Choices], seed: int):
        self.kernels, self.dice = kernels, random.Random(seed)
        self.model = SpaceModel()
        self.large = sorted(kernels, key=lambda key: -kernels[key].alone(kernels[key].default))

    def learn(self, combination: Combination, cycles: float | None) -> None:
        """What a whole model took; None: it failed."""
        self.model.add("model", self._features(combination), cycles)

    def _features(self, combination: Combination) -> list[float]:
        points = [(k, combination.get(key, k.default)) for key, k in self.kernels.items()]
        alone = sum(kernel.alone(point) for kernel, point in points)
        return [*(x for kernel, point in points for x in kernel.features(point)), 1e6 / max(alone, 1.0)]

    def next(self, archive: Mapping[str, tuple[Combination, float | None]]) -> list[Combination]:
        """The next ones to time; [] when hardly anything is new.  ``archive``: what is known, by text."""
        parents = self._parents(archive)
        children: dict[str, Combination] = {}
        for _ in range(4 * _CHILDREN):
            child = plain(self._child(parents), self.kernels)
            if (text := text_of(child)) not in archive:
                children[text] = child
            if len(children) == _CHILDREN:
                break
        if not children:
            return []
        fresh = list(children.values())
        score = self.model.score(np.asarray([self._features(child) for child in fresh], np.float64))
        order = np.argsort(-score)
        chosen, rest = ([fresh[n] for n in part] for part in (order[:_BATCH], order[_BATCH:]))
        return chosen + self.dice.sample(rest, min(_AT_RANDOM, len(rest)))

    def _parents(self, archive: Mapping[str, tuple[Combination, float | None]]) -> list[Combination]:
        """The best ones, of different families of the largest kernels."""
        known = [(cycles, text) for text, (_, cycles) in archive.items() if cycles is not None]
        seen: Counter = Counter()
        parents = []
        for _, text in sorted(known):
            combination = archive[text][0]
            families = tuple(self.kernels[key].family(combination.get(key)) for key in self.large[:_LARGE])
            seen[families] += 1
            if seen[families] <= _ALIKE:
                parents.append(combination)
        return parents[:_PARENTS]

    def _child(self, parents: Sequence[Combination]) -> Combination:
        child = dict(self._parent(parents))
        if self.dice.random() < _CROSSED:
            other = self._parent(parents)
            for key, kernel in self.kernels.items():
                if self.dice.random() < 0.5:
                    child[key] = other.get(key, kernel.default)
        for _ in range(self.dice.choice((1, 1, 2))):
            key = self._kernel()
            child[key] = self._mutated(key, child.get(key, self.kernels[key].default))
        return child

    def _parent(self, parents: Sequence[Combination]) -> Combination:
        """The better, the likelier."""
        return parents[min(self.dice.randrange(len(parents)), self.dice.randrange(len(parents)))]

    def _kernel(self) -> str:
        """One to change: large ones are likelier."""
        keys = list(self.kernels)
        weights = [self.kernels[key].alone(self.kernels[key].default) ** 0.5 for key in keys]
        return self.dice.choices(keys, weights)[0]

    def _mutated(self, key: str, point: Point) -> Point:
        kernel = self.kernels[key]
        if len(kernel.listed) == 1 or self.dice.random() < _PLACED:
            changed = {**point, **self.dice.choice(kernel.placings({}))}
            return changed if changed != point else without_placing(point)
        if kernel.in_place and self.dice.random() < _IN_PLACE:
            return {**self.dice.choice(kernel.in_place), **placing_of(point)}
        # Fast ones alone are likelier.
        places = [self.dice.randrange(len(kernel.listed)) for _ in range(2)]
        return {**kernel.listed[min(places)], **placing_of(point)}
