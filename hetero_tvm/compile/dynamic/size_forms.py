"""Sizes at which a number that a model computes of them is not what its form tells.

An extent's form is fitted to a few sizes, and a whole quotient that agrees with all of these may be another
than the one that the model computes: ``(n + 2)//3`` is ``n//2*2//3`` at most sizes.  What a model computes of
its sizes is known at all of them (:mod:`hetero_tvm.compile.dynamic.size_values`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hetero_tvm.compile.dynamic.choices import SizeArithmetic, points_of
from hetero_tvm.frontend import ImportedModel
from hetero_tvm.frontend.signature import Symbol
from hetero_tvm.schedules.extents import Extent, Unfit
from hetero_tvm.schedules.fitting import fit

_MOST_POINTS = 1 << 14
_MOST_WORK = 1 << 21
"""Sizes that are looked at, and these times the nodes that are computed."""
_MOST_ELEMENTS = 64
"""Elements of a number that tells extents, pads or the ends of slices."""


def misfits(model: ImportedModel, symbols: Sequence[Symbol]) -> Iterator[dict[str, int]]:
    """Sizes at which a whole number that the model's operators take is not of the form that it has at the
    sizes of the import: of each number the least, one in the middle and the largest."""
    arithmetic = SizeArithmetic(model)
    told = {name for node in model.clean.proto.graph.node for name in node.input}
    read = {name for node in arithmetic.nodes for name in node.input}
    opened = model.open
    assert opened is not None
    if not arithmetic.nodes:
        return
    points = points_of(symbols, min(_MOST_POINTS, _MOST_WORK // len(arithmetic.nodes)))
    here = {s.name: np.array([at[s.name] for at in opened.sizes]) for s in symbols}
    there = {s.name: points[:, n] for n, s in enumerate(symbols)}
    known, values = arithmetic.values(here, len(opened.sizes)), arithmetic.values(there, len(points))
    seen: set[tuple[int, ...]] = set()
    for node in arithmetic.nodes:
        name = node.output[0]
        if name not in values or name not in known or (name not in told and name in read):
            continue
        if values[name].dtype.kind != "i" or values[name][0].size > _MOST_ELEMENTS:
            continue
        witnessed, every = (
            np.broadcast_to(each[name], (count, *each[name].shape[1:])).reshape(count, -1)
            for each, count in ((known, len(opened.sizes)), (values, len(points)))
        )
        for column, actual in zip(witnessed.T, every.T, strict=True):
            try:
                form = fit([int(n) for n in column], opened.sizes)
            except Unfit:
                continue  # whoever needs it says so
            other = np.flatnonzero(actual != (form.at(there) if isinstance(form, Extent) else form))
            for place in dict.fromkeys(other[[0, len(other) // 2, -1]].tolist() if len(other) else ()):
                if (at := tuple(points[place].tolist())) not in seen:
                    seen.add(at)
                    yield {s.name: size for s, size in zip(symbols, at, strict=True)}
