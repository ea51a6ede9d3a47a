"""The table of what a generator may add to a graph."""

from __future__ import annotations

from collections.abc import Callable

from tests.campaign.graphs.builder import Builder

Step = Callable[[Builder], object]

OPERATORS: list[tuple[float, Step]] = []
"""Weight and step of every operator, or family of operators."""

PATTERNS: list[tuple[float, Step]] = []
"""Weight and step of every group of nodes that a fusion matches, or nearly."""


def operator(weight: float = 1.0) -> Callable[[Step], Step]:
    """Enter a step into ``OPERATORS``."""

    def enter(step: Step) -> Step:
        OPERATORS.append((weight, step))
        return step

    return enter


def pattern(weight: float = 1.0) -> Callable[[Step], Step]:
    """Enter a step into ``PATTERNS``."""

    def enter(step: Step) -> Step:
        PATTERNS.append((weight, step))
        return step

    return enter
