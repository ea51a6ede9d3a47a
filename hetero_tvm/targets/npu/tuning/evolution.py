"""Evolution: new combinations, crossed and changed from the best ones and chosen by a cost model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from hetero_tvm.records.candidates import point_key
from hetero_tvm.records.combinations import Combination
from hetero_tvm.schedules.base import Point
from hetero_tvm.search.cost_model import Description, SpaceModel
from hetero_tvm.targets.npu.tuning.choices import Choices, residency_of, without_residency

_PARENTS, _CHILDREN, _BATCH, _AT_RANDOM = 16, 96, 6, 2
"""Parents and children of a round; children that are timed: by the cost model, and at random."""
_LARGEST, _MOST_ALIKE = 3, 5
"""Most parents (5) that have the same families of points for the largest (3) kernels."""
_CROSSED_SHARE = 0.4
"""Share of children that have two parents."""
_RESIDENCY_SHARE = 0.3
"""Share of changes that change residency knobs."""
_IN_PLACE_SHARE = 0.4
"""Share of the other changes that take a point for the kernel's surroundings."""


def plain(combination: Combination, kernels: Mapping[str, Choices]) -> dict[str, Point]:
    """The combination without points that are defaults and without unknown tasks."""
    entries = combination.items()
    return {key: point for key, point in entries if key in kernels and point != kernels[key].default}


def text_of(combination: Combination) -> str:
    """Text that is equal for equal combinations."""
    return point_key(combination)


class Evolution:
    """Proposes combinations of points of some kernels.

    The cost model is gradient-boosted trees over the features of every kernel's point, its residency knobs
    and its time alone; it corrects the sum of the times alone.
    """

    def __init__(self, kernels: Mapping[str, Choices], seed: int):
        self.kernels, self.dice = kernels, random.Random(seed)
        self.model = SpaceModel()
        self.large = sorted(kernels, key=lambda key: -kernels[key].alone(kernels[key].default))

    def learn(self, combination: Combination, cycles: float | None) -> None:
        """Add the cycles that a whole model took; None: it failed."""
        self.model.add("model", self._described(combination), cycles)

    def _described(self, combination: Combination) -> Description:
        points = [(k, combination.get(key, k.default)) for key, k in self.kernels.items()]
        alone = sum(kernel.alone(point) for kernel, point in points)
        features = [x for kernel, point in points for x in kernel.features(point)]
        return Description((*features, 1e6 / max(alone, 1.0)), max(alone, 1.0))

    def next(self, archive: Mapping[str, tuple[Combination, float | None]]) -> list[Combination]:
        """Combinations to time next; none when hardly anything is new.  ``archive``: known ones by text."""
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
        score = self.model.score([self._described(child) for child in fresh])
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
            families = tuple(self.kernels[key].family(combination.get(key)) for key in self.large[:_LARGEST])
            seen[families] += 1
            if seen[families] <= _MOST_ALIKE:
                parents.append(combination)
        return parents[:_PARENTS]

    def _child(self, parents: Sequence[Combination]) -> Combination:
        child = dict(self._parent(parents))
        if self.dice.random() < _CROSSED_SHARE:
            other = self._parent(parents)
            for key, kernel in self.kernels.items():
                if self.dice.random() < 0.5:
                    child[key] = other.get(key, kernel.default)
        for _ in range(self.dice.choice((1, 1, 2))):
            key = self._kernel()
            child[key] = self._mutated(key, child.get(key, self.kernels[key].default))
        return child

    def _parent(self, parents: Sequence[Combination]) -> Combination:
        """A random parent: the better, the likelier."""
        return parents[min(self.dice.randrange(len(parents)), self.dice.randrange(len(parents)))]

    def _kernel(self) -> str:
        """Key of a random kernel: the larger, the likelier."""
        keys = list(self.kernels)
        weights = [self.kernels[key].alone(self.kernels[key].default) ** 0.5 for key in keys]
        return self.dice.choices(keys, weights)[0]

    def _mutated(self, key: str, point: Point) -> Point:
        kernel = self.kernels[key]
        if len(kernel.listed) == 1 or self.dice.random() < _RESIDENCY_SHARE:
            changed = {**point, **self.dice.choice(kernel.residency_changes({}))}
            return changed if changed != point else without_residency(point)
        if kernel.in_place and self.dice.random() < _IN_PLACE_SHARE:
            return {**self.dice.choice(kernel.in_place), **residency_of(point)}
        # Points that are fast alone are likelier.
        ranks = [self.dice.randrange(len(kernel.listed)) for _ in range(2)]
        return {**kernel.listed[min(ranks)], **residency_of(point)}
