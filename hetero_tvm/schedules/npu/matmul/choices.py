"""Tiles to choose from, and the best of them beside what is held in L1."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu.matmul.cost import estimate
from hetero_tvm.schedules.npu.matmul.roles import NOTHING, Roles
from hetero_tvm.schedules.npu.matmul.tiles import (
    STATIONARY,
    Tiles,
    fits,
    fits_l0c,
    fits_ub,
    l1_bytes,
    part_of,
    piece_rows,
)
from hetero_tvm.schedules.npu.tiles import ceil_div, even

MOST = 48
"""Number of tiles that a space offers: the first ones by estimate."""
_PARTS = (2, 4, 8, 16)
_MOST_SPLIT = 5
"""Number of tiles more for each number of parts of the reduction."""


def candidates(op: Matmul, spec: NPUSpec, held: Roles = NOTHING, l1: int | None = None) -> Iterator[Tiles]:
    """Tiles that fit every scratchpad, over a grid of sensible sizes."""
    bm, bn, bk = spec.matrix_block
    l0c = spec.scratchpad("l0c") // 4
    l1 = spec.scratchpad("l1") if l1 is None else l1
    for parts_m in (2, 4, 8, 16, 32):
        tm = even(op.m, bm * parts_m, bm) if op.m > bm else op.m
        for parts_n in (2, 4, 8, 16, 32):
            tn = even(op.n, bn * parts_n, bn) if op.n > bn else op.n
            if tm * tn > l0c:
                continue
            rows = piece_rows(op, tm, tn, spec)
            if not fits_ub(op, tn, rows, spec):
                continue
            room = min(spec.scratchpad("l0a") // (4 * tm), spec.scratchpad("l0b") // (4 * tn))
            for limit in {room, 128, 64, 32}:
                if limit > room or limit < bk:
                    continue
                tk = even(op.k, limit // bk * bk, bk)
                for stationary in STATIONARY:
                    span = ceil_div(op.n, tn) if stationary == "w" else ceil_div(op.m, tm)
                    for sub in {1, 2, 3, 4, span}:
                        if sub > span or not fits_l0c(sub, tm, tn, spec):
                            continue
                        for slices in (1, 2, 4):
                            if slices > 1 and (slices - 1) * tk >= op.k:
                                continue
                            for ring in (1, 2, 4) if "x" in held and stationary == "w" else (2, 4):
                                tiles = Tiles(
                                    stationary, tm, tn, tk, slices=slices, sub=sub, ring=ring, rows=rows
                                )
                                if l1_bytes(op, tiles, 1, held) <= l1:
                                    yield tiles


def too_large(op: Matmul, spec: NPUSpec) -> str | None:
    """Reason why there are no tiles to choose from; None where there are."""
    return None if any(True for _ in candidates(op, spec)) else f"no tile fits the scratchpads of {spec.name}"


@functools.lru_cache(maxsize=512)
def ranked(op: Matmul, spec: NPUSpec) -> tuple[Tiles, ...]:
    """Tiles to choose from, the best ones by estimate first; then those that cut the reduction, which
    rounds sums in between: nobody gets them without asking."""

    def best(tiles: Iterator[Tiles], most: int) -> list[Tiles]:
        return sorted(tiles, key=lambda t: estimate(op, t, spec))[:most]

    found = best(candidates(op, spec), MOST)
    return (*found, *(t for parts in _PARTS for t in best(_split(op, parts, spec), _MOST_SPLIT)))


def _split(op: Matmul, parts: int, spec: NPUSpec) -> Iterator[Tiles]:
    """Tiles of parts of the reduction, when the activations of all of it take most of L1."""
    if 4 * op.m * op.k > spec.scratchpad("l1") and op.k % (parts * spec.matrix_block[2]) == 0:
        for tiles in candidates(part_of(op, parts), spec):
            if tiles.stationary == "x":
                yield replace(tiles, parts=parts)


@functools.lru_cache(maxsize=4096)
def _best(op: Matmul, spec: NPUSpec, held: Roles, l1: int) -> Tiles | None:
    fitting = candidates(op, spec, held, l1)
    return min(fitting, key=lambda t: estimate(op, t, spec, held), default=None)


def fitted(op: Matmul, point: Point | None, spec: NPUSpec, held: Roles, l1: int) -> Point | None:
    """The given tiles if they fit, else the best that do; with as deep a ring as there is room for."""
    given = Tiles.of(point) if point is not None else None
    if given is None or not fits(op, given, spec, held, l1):
        given = _best(op, spec, held, l1)
        if given is None:
            return None
    tiles = _deepened(op, given, held, lambda t: fits(op, t, spec, held, l1))
    return {"tiles": tiles.choice(), "panels": 2 if l1_bytes(op, tiles, 2, held) <= l1 else 1}


def in_place(op: Matmul, spec: NPUSpec, held: Roles, l1: int, most: int) -> list[Point]:
    """The best tiles by estimate, of different sizes, that fit with these operands in L1 and without."""
    fitting = sorted(candidates(op, spec, held, l1), key=lambda t: estimate(op, t, spec, held))
    found: dict[tuple[str, int, int, int, int], Tiles] = {}
    for t in fitting:
        if len(found) < most and fits(op, t, spec):
            found.setdefault((t.stationary, t.tm, t.tn, t.tk, t.sub), t)
    return [{"tiles": t.choice()} for t in found.values()]


def _deepened(op: Matmul, t: Tiles, held: Roles, fit: Callable[[Tiles], bool]) -> Tiles:
    """The tiles with as deep a ring as has room, up to the whole stream: what the next kernel streams arrives
    while this one computes."""
    stages = ceil_div(op.k, t.tk * t.slices)
    whole = stages * ceil_div(op.n, t.tn)
    if t.stationary == "w":
        whole = ceil_div(ceil_div(op.n, t.tn), t.sub) if "x" in held else stages * ceil_div(op.m, t.tm)
    while t.ring < min(whole, 64):
        deeper = replace(t, ring=t.ring * 2)
        if not fit(deeper):
            break
        t = deeper
    return t
