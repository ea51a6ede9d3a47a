"""Ends of ranges of sizes that nobody gave: the model's own, or ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hetero_tvm.frontend.dimensions import Declared, Sum, symbol_of
from hetero_tvm.frontend.signature import Span

_DEFAULT_HIGH = {0: 8}
"""Largest size of a dimension that is left open, by axis: a batch; a sequence otherwise."""
_DEFAULT_LENGTH = 512

Given = Mapping[str, Sequence["int | Span | Sum"]]


def default_high(axis: int) -> int:
    """Largest size of a dimension of this axis that is left open."""
    return _DEFAULT_HIGH.get(axis, _DEFAULT_LENGTH)


def within(given: Given, declared: Declared, most: Mapping[str, Sequence[int | None]]) -> Given:
    """The given dimensions, where ranges without an end are cut at what the model takes.

    Parameters
    ----------
    given : dimensions by input name.
    declared : the inputs as the model file declares them; dimensions of one name are cut together.
    most : largest sizes that the model takes, by input name; None where it says none.
    """
    spans: dict[str, list[Span]] = {}
    bounds: dict[str, list[int]] = {}
    names: dict[tuple[str, int], str] = {}
    for name, dims in given.items():
        known, ends = declared.get(name) or (), most.get(name, ())
        for axis, dim in enumerate(dims):
            if not isinstance(dim, Span):
                continue
            there = known[axis] if axis < len(known) else None
            symbol = symbol_of(there if isinstance(there, str) and there else f"{name}_{axis}")
            names[name, axis] = symbol
            spans.setdefault(symbol, []).append(dim)
            end = ends[axis] if axis < len(ends) else None
            if end is not None and end < max(dim.low, default_high(axis)):
                bounds.setdefault(symbol, []).append(end)

    def cut(dim: int | Span | Sum, symbol: str | None) -> int | Span | Sum:
        if not isinstance(dim, Span) or symbol not in bounds or any(one.high for one in spans[symbol]):
            return dim
        low, high = max(one.low for one in spans[symbol]), min(bounds[symbol])
        return dataclasses.replace(dim, low=low, high=high) if high // dim.step * dim.step >= low else dim

    return {
        name: tuple(cut(dim, names.get((name, axis))) for axis, dim in enumerate(dims))
        for name, dims in given.items()
    }
