"""Minimum cuts of networks of integer capacities.

Dinitz, *Algorithm for solution of a problem of maximum flow in networks with power estimation*, 1970: each
phase finds the distances from the source, and fills paths that get one step farther at a time until none is
left.  Layouts of a thousand nodes take some milliseconds, and need no SciPy, which takes 100 MB.
"""

from __future__ import annotations

from collections.abc import Iterable


def source_side(count: int, edges: Iterable[tuple[int, int, int]], source: int, sink: int) -> set[int]:
    """Nodes on the source's side of the minimum cut; of several such cuts, of the one with the fewest there.

    Parameters
    ----------
    count : nodes, numbered from 0.
    edges : from, to and capacity, an integer of 0 or more; those of the same two nodes add up.
    """
    heads: list[int] = []
    left: list[int] = []
    """Capacity that flow leaves of each edge; edge ``e ^ 1`` is the way back of edge ``e``."""
    leaving: list[list[int]] = [[] for _ in range(count)]
    for start, end, capacity in edges:
        leaving[start].append(len(heads))
        leaving[end].append(len(heads) + 1)
        heads += [end, start]
        left += [capacity, 0]
    while True:
        level = _levels(source, heads, left, leaving)
        if level[sink] < 0:
            return {node for node in range(count) if level[node] >= 0}
        _fill(source, sink, heads, left, leaving, level)


def _levels(source: int, heads: list[int], left: list[int], leaving: list[list[int]]) -> list[int]:
    """Distance of each node from the source, over edges that are not full; -1 where none leads."""
    level = [-1] * len(leaving)
    level[source] = 0
    order = [source]
    for node in order:
        for edge in leaving[node]:
            if left[edge] and level[heads[edge]] < 0:
                level[heads[edge]] = level[node] + 1
                order.append(heads[edge])
    return level


def _fill(
    source: int, sink: int, heads: list[int], left: list[int], leaving: list[list[int]], level: list[int]
) -> None:
    """Fill paths from source to sink that get one level farther at each step, until there is none."""
    upcoming = [0] * len(leaving)  # the first edge of each node that may still lead on
    path: list[int] = []
    node = source
    while True:
        if node == sink:
            least = min(left[edge] for edge in path)
            for edge in path:
                left[edge] -= least
                left[edge ^ 1] += least
            full = next(n for n, edge in enumerate(path) if not left[edge])
            node = heads[path[full] ^ 1]
            del path[full:]
            continue
        while upcoming[node] < len(leaving[node]):
            edge = leaving[node][upcoming[node]]
            if left[edge] and level[heads[edge]] == level[node] + 1:
                path.append(edge)
                node = heads[edge]
                break
            upcoming[node] += 1
        else:
            if not path:
                return
            node = heads[path.pop() ^ 1]
            upcoming[node] += 1
