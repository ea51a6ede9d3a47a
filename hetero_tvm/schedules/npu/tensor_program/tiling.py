"""Boxes as the machine sees them: few axes, and tiles of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.tensor_program.stages import Load, Map, Value
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at

RANK = 4
"""Dimensions of a region of the machine."""
_RUN = 32
"""Elements along an axis that make a transfer worth its granules."""


def loads_of(value: Value) -> list[Load]:
    """The distinct reads of an expression, in order."""
    if isinstance(value, Load):
        return [value]
    return list(dict.fromkeys(load for part in value.operands for load in loads_of(part)))


def simplified(stage: Map) -> Map:
    """The stage without axes of extent 1, axes in the order of the result, and those merged that every access
    walks as one."""
    kept = len(stage.extents) - stage.reduced
    first = [n for n in range(kept) if stage.extents[n] > 1]
    first.sort(key=lambda n: -abs(stage.out.strides[n]))
    order = first + [n for n in range(kept, len(stage.extents)) if stage.extents[n] > 1]
    reads = loads_of(stage.value)
    groups: list[list[int]] = []
    for n in order:
        if groups and (groups[-1][-1] < kept) == (n < kept):
            last = groups[-1][-1]
            if all(a.strides[last] == a.strides[n] * stage.extents[n] for a in (stage.out, *reads)):
                groups[-1].append(n)
                continue
        groups.append([n])

    # An axis of extent 1 stands for a single result.
    single = not groups or groups[0][0] >= kept

    def taken(load: Load) -> Load:
        strides = tuple(load.strides[g[-1]] for g in groups)
        return Load(load.buffer, load.base, (0, *strides) if single else strides)

    extents = tuple(math.prod(stage.extents[n] for n in g) for g in groups)
    reduced = sum(g[0] >= kept for g in groups)
    if single:
        extents = (1, *extents)
    value = stage.value.mapped(taken)
    return dataclasses.replace(stage, extents=extents, out=taken(stage.out), value=value, reduced=reduced)


@dataclasses.dataclass
class Tiling:
    """Tile sizes per axis, and where a tile begins."""

    extents: tuple[int, ...]
    tile: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of tiles per axis."""
        return tuple(ceil_div(n, t) for n, t in zip(self.extents, self.tile, strict=True))

    def sizes(self, at: Sequence[Index]) -> tuple[Index, ...]:
        """Extents of the tile at indices ``at``: less at the end."""
        return tuple(extent_at(n, t, i) for n, t, i in zip(self.extents, self.tile, at, strict=True))

    def start(self, load: Load, at: Sequence[Index]) -> Index:
        """Flat index of the first element of the tile."""
        base: Index = load.base
        for i, t, s in zip(at, self.tile, load.strides, strict=True):
            if s and not (isinstance(i, int) and i == 0):
                base = base + i * (t * s)
        return base


def tile_of(
    extents: tuple[int, ...],
    accesses: Sequence[Load],
    bytes_of: Callable[[tuple[int, ...]], int],
    room: int,
    most: int,
) -> tuple[int, ...] | None:
    """A tile whose buffers take at most ``room`` bytes (``bytes_of(tile)``), of at most ``most`` elements
    and of no more than four axes; None when not even one element fits.

    Axes grow in this order: the one along which each access is contiguous, first to a transfer's worth,
    then those and the others from the innermost on as far as there is room.
    """
    tile = [1] * len(extents)
    if bytes_of(tuple(tile)) > room:
        return None
    fast = []
    for access in accesses:
        moving = [n for n, s in enumerate(access.strides) if s]
        if moving:
            fast.append(min(moving, key=lambda n: abs(access.strides[n])))
    fast = list(dict.fromkeys(fast))
    inner = [n for n in reversed(range(len(extents))) if n not in fast]

    def grow(axis: int, limit: int) -> None:
        if tile[axis] == 1 and extents[axis] > 1 and sum(t > 1 for t in tile) >= RANK:
            return
        low, high = tile[axis], min(extents[axis], limit)
        while low < high:
            middle = (low + high + 1) // 2
            trial = (*tile[:axis], middle, *tile[axis + 1 :])
            if bytes_of(trial) <= room and math.prod(trial) <= most:
                low = middle
            else:
                high = middle - 1
        # As few tiles as that allows, of even size.
        tile[axis] = ceil_div(extents[axis], ceil_div(extents[axis], low))

    for limit in (_RUN, 4 * _RUN):
        for axis in fast:
            grow(axis, limit)
    for axis in (*fast, *inner):
        grow(axis, extents[axis])
    return tuple(tile)
