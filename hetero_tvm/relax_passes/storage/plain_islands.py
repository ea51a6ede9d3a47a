"""Convolutions that stay plain among those on channel blocks.

Blocks hold zeros where a convolution has few filters, and a filter of a group multiplies zeros for the
channels of the others: such a convolution may take a few times as long on blocks as on plain images, more
than conversions cost.  Which of them stay plain is a minimum cut: a node on the side of the source is plain,
and what is cut are the kernels of both forms and the conversions of images between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from hetero_tvm.host.tvm import Var
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.storage.image_nodes import ConvNode, ImageNode
from hetero_tvm.relax_passes.storage.minimum_cut import source_side

_CLEAR, _CLEAR_OF_LARGE, _LARGE = 0.6, 0.7, 3e5
"""Time of the plain kernel, by the blocked one's, below which it may be chosen, as estimates are rough; and
where it saves many cycles, of which conversions that run worse than thought take a small part."""

_UNITS = 1e8
"""Units that all costs together have in the cut, whose capacities are integers: sums of them are exact."""

_SOURCE, _SINK = 0, 1


class LayoutCosts(NamedTuple):
    """Cycles of the kernels of a target."""

    kernels: Callable[[Conv2d, Conv2d], tuple[float, float] | None]
    """Cycles of a convolution's plain form and of its blocked one; None where it stays as it is."""
    conversion: Callable[[tuple[int, ...], bool], float]
    """Cycles of an image's way from plain to blocks (True) or back."""


def plain_islands(
    graph: Graph,
    nodes: Mapping[Var, ImageNode],
    forms: Mapping[Var, tuple[Conv2d, Conv2d]],
    reads_plain: Callable[[ImageNode, int], bool],
    costs: LayoutCosts,
) -> set[Var]:
    """Convolutions that stay plain.

    Parameters
    ----------
    nodes : all bindings that can work on blocks; convolutions that are not in ``forms`` do.
    forms : plain and blocked form of the convolutions that have a choice.
    reads_plain : whether a node on blocks takes a plain operand, by its number, as it is.
    """
    clear = {}
    for var, (plain, blocked) in forms.items():
        known = costs.kernels(plain, blocked)
        if known is not None and _is_clear(*known):
            clear[var] = known
    if not clear:
        return set()
    cut = _Cut(nodes, clear)
    for var in nodes:
        readers = graph.users(var)
        inside = [user for user in readers if user in nodes]
        asked = [u for u in inside if not _takes_plain(nodes[u], var, reads_plain)]
        image = shape_of(var)
        cut.forwards(cut.number[var], asked, costs.conversion(image, True))
        cut.backwards(var, inside, len(inside) < len(readers), costs.conversion(image, False))
    outside: dict[Var, dict[Var, None]] = {}
    for var, node in nodes.items():
        for x in node.images:
            if x not in nodes and not _takes_plain(node, x, reads_plain):
                outside.setdefault(x, {})[var] = None
    for x, asked in outside.items():
        cut.forwards(_SOURCE, list(asked), costs.conversion(shape_of(x), True))
    plain_side = cut.source_side()
    return {var for var in clear if cut.number[var] in plain_side}


def _is_clear(plain: float, blocked: float) -> bool:
    return plain < (_CLEAR_OF_LARGE if blocked - plain > _LARGE else _CLEAR) * blocked


def _takes_plain(node: ImageNode, x: Var, reads_plain: Callable[[ImageNode, int], bool]) -> bool:
    return all(reads_plain(node, index) for index, image in enumerate(node.images) if image.same_as(x))


class _Cut:
    """Edges between numbered nodes, with what it costs to cut them."""

    def __init__(self, nodes: Mapping[Var, ImageNode], clear: Mapping[Var, tuple[float, float]]):
        self.number = {var: n for n, var in enumerate(nodes, 2)}
        self.count = 2 + len(nodes)
        self.edges: list[tuple[int, int, float]] = []
        for var, node in nodes.items():
            if var in clear:
                plain, blocked = clear[var]
                self.edges += [(_SOURCE, self.number[var], blocked), (self.number[var], _SINK, plain)]
            elif isinstance(node, ConvNode):
                self.edges.append((self.number[var], _SINK, math.inf))

    def forwards(self, producer: int, readers: Sequence[Var], cost: float) -> None:
        """A conversion to blocks where the producer is plain and any reader is not."""
        if readers:
            self._through(producer, readers, cost, forwards=True)

    def backwards(self, var: Var, readers: Sequence[Var], outside: bool, cost: float) -> None:
        """A conversion to plain where ``var`` is on blocks and a reader is not, or one is ``outside``."""
        if outside:
            self.edges.append((_SOURCE, self.number[var], cost))
        elif readers:
            self._through(self.number[var], readers, cost, forwards=False)

    def _through(self, producer: int, readers: Collection[Var], cost: float, forwards: bool) -> None:
        between, self.count = self.count, self.count + 1
        pairs = [(producer, between, cost), *((between, self.number[u], math.inf) for u in readers)]
        self.edges += [(a, b, c) if forwards else (b, a, c) for a, b, c in pairs]

    def source_side(self) -> set[int]:
        """Nodes on the source's side of the least cut."""
        capacities = [capacity for _, _, capacity in self.edges if math.isfinite(capacity)]
        unit = max(1.0, sum(capacities) / _UNITS)
        return source_side(
            self.count,
            [
                (start, end, math.ceil(capacity / unit) if math.isfinite(capacity) else 2 * int(_UNITS))
                for start, end, capacity in self.edges
            ],
            _SOURCE,
            _SINK,
        )
