"""Sizes among which a model may be another one: those at which a comparison of sizes comes out otherwise.

An imported model says how it computes with sizes (:class:`hetero_tvm.frontend.sizing.Sizing`): what it
compares is computed for all sizes in the ranges, or for as many as there is time for, with those among them
that are close to where a comparison changes.  Each way in which the comparisons come out has a few sizes that
stand for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from hetero_tvm.compile.dynamic.size_values import UnknownValue, Values, computed, decided, value_of
from hetero_tvm.frontend import ImportedModel
from hetero_tvm.frontend.signature import Symbol
from hetero_tvm.frontend.sizing import Sizing
from hetero_tvm.schedules.extents import Extent, Sizes, Unfit
from hetero_tvm.schedules.fitting import fit

_MOST_POINTS = 1 << 18
_MOST_WORK = 1 << 22
"""Sizes that are tried, and these times the nodes that are computed."""
_AT_ONCE = 1 << 16
_CLOSE, _BESIDE = 24, 2
"""Sizes closest to a change whose neighbours, up to so many steps away, are tried as well."""
_CROSSINGS = 1 << 14
_MOST_SIZES = 24
"""Sizes that stand for others: the model is imported at each.  And ways in which comparisons come out."""


class SizeArithmetic:
    """Arithmetic of the open sizes of a model.

    Attributes
    ----------
    nodes : in the order in which they are computed.
    """

    def __init__(self, model: ImportedModel):
        opened = model.open
        assert opened is not None
        several = [one.clean.sizing for one in (model, *opened.others)]
        first = several[0] or Sizing()
        self._leaves = _fitted(several, opened.sizes)
        self._constants = {name: value_of(array) for name, array in first.constants.items()}
        self.nodes = list(first.nodes)

    def values(self, sizes: Mapping[str, int | np.ndarray], count: int) -> Values:
        """Values that are known at so many sizes, by name."""
        values = self._leaf_values(sizes, count)
        for node in self.nodes:
            self._step(node, values)
        return values

    def _leaf_values(self, sizes: Mapping[str, int | np.ndarray], count: int) -> Values:
        """Constants, and the extents that are asked for, at these sizes."""
        values = dict(self._constants)
        for name, (shape, extents) in self._leaves.items():
            columns = [
                np.broadcast_to(np.asarray(e.at(sizes) if isinstance(e, Extent) else e, np.int64), (count,))
                for e in extents
            ]
            values[name] = np.stack(columns, 1).reshape(count, *shape) if columns else np.zeros((1, *shape))
        return values

    def _step(self, node, values: Values) -> np.ndarray | None:
        """Compute a node, where its operands are known; what it decides."""
        if any(name and name not in values for name in node.input) or len(node.output) > 1:
            return None
        operands = [values[name] if name else None for name in node.input]
        try:
            result = values[node.output[0]] = computed(node, operands)
        except UnknownValue:
            return None
        return decided(node, operands, result)


class Choices(SizeArithmetic):
    """Comparisons of sizes in a model with open sizes."""

    def __init__(self, model: ImportedModel):
        super().__init__(model)
        assert model.open is not None
        self._top = model.open.sizes[0]
        self._codes = np.random.default_rng(0).integers(1, 1 << 62, 4096, np.int64)
        sizing = model.clean.sizing
        self.known = self._prune(sizing.conditions if sizing else ())

    def _prune(self, conditions: Sequence[str]) -> bool:
        """Keep the nodes that comparisons follow from; whether all ``conditions`` are known."""
        values = self._leaf_values(self._top, 2)
        deciding, makers = [], {}
        for node in self.nodes:
            makers[node.output[0]] = node
            if self._step(node, values) is not None:
                deciding.append(node.output[0])
        needed, wanted = set(), deciding
        while wanted:
            name = wanted.pop()
            if name in makers and name not in needed:
                needed.add(name)
                wanted.extend(makers[name].input)
        self.nodes = [node for node in self.nodes if node.output[0] in needed]
        return all(name in values for name in conditions)

    def sizes(self, symbols: Sequence[Symbol]) -> list[tuple[dict[str, int], dict[str, tuple[int, int]]]]:
        """Sizes that stand for the ways in which comparisons come out, but for that of the largest sizes,
        each with the ends of those that are like it; of each way one first."""
        if not self.nodes:
            return []
        points = points_of(symbols, min(_MOST_POINTS, _MOST_WORK // len(self.nodes)))
        codes, close = self._codes_at(symbols, points)
        if close is not None:
            more = _beside(symbols, points[close])
            points = np.concatenate([points, more])
            codes = np.concatenate([codes, self._codes_at(symbols, more)[0]])
        usual = self._codes_at(symbols, np.array([[self._top[s.name] for s in symbols]]))[0][0]
        classes, counts = np.unique(codes, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        found = []
        for n in [n for n in order if classes[n] != usual][:_MOST_SIZES]:
            alike = points[codes == classes[n]]
            ends = {s.name: (int(c.min()), int(c.max())) for s, c in zip(symbols, alike.T, strict=True)}
            # What is a number by one rule at all of them may be the same as by another at some.
            for turn, place in enumerate(sorted({0, len(alike) // 2, len(alike) - 1})):
                size = {s.name: int(size) for s, size in zip(symbols, alike[place], strict=True)}
                found.append((turn, size, ends))
        found.sort(key=lambda each: each[0])
        return [(size, ends) for _, size, ends in found[:_MOST_SIZES]]

    def _codes_at(
        self, symbols: Sequence[Symbol], points: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Number of the way in which comparisons come out, and the places of the points closest to others;
        None for these where all points are there already."""
        codes, margins = [], []
        for start in range(0, len(points), _AT_ONCE):
            part = points[start : start + _AT_ONCE]
            columns = {s.name: part[:, n] for n, s in enumerate(symbols)}
            values = self._leaf_values(columns, len(part))
            code, near = np.zeros(len(part), np.int64), []
            for number, node in enumerate(self.nodes):
                decision = self._step(node, values)
                if decision is None:
                    continue
                flat = decision.reshape(len(decision), -1).astype(np.int64)
                factors = self._codes[(number * 31 + np.arange(flat.shape[1])) % len(self._codes)]
                with np.errstate(over="ignore"):
                    code = code * 1000003 + (flat * factors).sum(1)
                near.append(_margin(node, values, len(part)))
            codes.append(code)
            margins.append(near)
        joined = np.concatenate(codes)
        if len(points) == np.prod([len(s.sizes) for s in symbols], dtype=float):
            return joined, None
        columns = [np.concatenate(each) for each in zip(*margins, strict=True) if each[0] is not None]
        close = [np.argpartition(c, min(_CLOSE, len(c) - 1))[:_CLOSE] for c in columns]
        return joined, np.unique(np.concatenate(close)) if close else None


def _fitted(
    several: Sequence[Sizing | None], sizes: Sequence[Sizes]
) -> dict[str, tuple[tuple[int, ...], list[int | Extent]]]:
    """Shape and elements of the extents that are asked for, of those that are polynomials of the sizes."""
    found = {}
    for name, array in several[0].leaves.items() if several[0] else ():
        arrays = [one.leaves.get(name) if one else None for one in several]
        if any(other is None or other.shape != array.shape for other in arrays):
            continue
        try:
            elements = [
                fit([int(n) for n in each], sizes) for each in zip(*map(np.ravel, arrays), strict=True)
            ]
        except Unfit:
            continue
        found[name] = array.shape, elements
    return found


def _margin(node, values: Values, count: int) -> np.ndarray | None:
    """Distances between a node's operands, where they are two; None where nothing says them."""
    if len(node.input) != 2 or not all(name in values for name in node.input):
        return None
    one, other = (values[name].reshape(len(values[name]), -1).astype(float) for name in node.input)
    if one.shape[1] != other.shape[1] and 1 not in (one.shape[1], other.shape[1]):
        return None
    return np.broadcast_to(np.abs(one - other).min(1, initial=np.inf), (count,))


def points_of(symbols: Sequence[Symbol], most: int) -> np.ndarray:
    """Sizes in the ranges: all, or those along lines through some of them, next to diagonals, and others."""
    every = [np.arange(s.low, s.high + 1, s.step) for s in symbols]
    if np.prod([len(sizes) for sizes in every], dtype=float) <= most:
        return np.stack([grid.ravel() for grid in np.meshgrid(*every, indexing="ij")], 1)
    generator = np.random.default_rng(0)

    def drawn(count: int) -> np.ndarray:
        return np.stack([generator.choice(sizes, count) for sizes in every], 1)

    share = max(most // (8 * len(symbols)), 1)
    corners = [(sizes[0], sizes[len(sizes) // 2], sizes[-1]) for sizes in every]
    found = [drawn(most // 4), np.array(list(itertools.product(*corners)))[:share]]
    for n, sizes in enumerate(every):
        along = sizes if len(sizes) <= share else generator.choice(sizes, share, replace=False)
        for line in [*found[1], *drawn(4)][: max(share // len(along), 1)]:
            part = np.repeat(line[None], len(along), 0)
            part[:, n] = along
            found.append(part)
    for one, other in itertools.combinations(range(len(every)), 2):
        part = drawn(share)
        part[:, other] = part[:, one] + generator.integers(-2, 3, share) * symbols[other].step
        found.append(part)
    return _inside(symbols, np.concatenate(found))


def _beside(symbols: Sequence[Symbol], points: np.ndarray) -> np.ndarray:
    """Neighbours of sizes along one axis or two, and where sizes that several of them have cross."""
    steps = range(-_BESIDE, _BESIDE + 1)
    moved = []
    for one, other in itertools.combinations_with_replacement(range(len(symbols)), 2):
        for a, b in itertools.product(steps, steps if one != other else (0,)):
            shift = np.zeros(len(symbols), np.int64)
            shift[other] += b * symbols[other].step
            shift[one] += a * symbols[one].step
            moved.append(points + shift)
    most = max(int(_CROSSINGS ** (1 / len(symbols))) // 3, 1)
    axes = []
    for symbol, column in zip(symbols, points.T, strict=True):
        sizes, counts = np.unique(column, return_counts=True)
        often = sizes[np.argsort(-counts, kind="stable")[:most]]
        axes.append(np.unique(np.add.outer(often, [-symbol.step, 0, symbol.step])))
    crossings = np.stack([grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")], 1)
    return _inside(symbols, np.concatenate([*moved, crossings]))


def _inside(symbols: Sequence[Symbol], points: np.ndarray) -> np.ndarray:
    """Points all coordinates of which are sizes in the ranges."""
    fits = [(c >= s.low) & (c <= s.high) & (c % s.step == 0) for s, c in zip(symbols, points.T, strict=True)]
    return points[np.logical_and.reduce(fits)]
