"""Division of the rows and keys of an attention among blocks of threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.attention import Attention, Heads
from hetero_tvm.schedules.base import Knob
from hetero_tvm.schedules.cuda.values import vector_of

_FEW_ROWS = 16
"""Number of queries below which the rows of a block come from all heads that share keys."""
SPLITS = (1, 2, 4, 8, 16)
"""Numbers of parts that the keys may be cut into."""


class SplitTile(Protocol):
    """The shape of a block's work, as far as splits of the keys go."""

    keys: int
    splits: int

    @property
    def choice(self) -> tuple[int, ...]:
        """The tile as a knob's choice."""


def is_grouped(op: Attention) -> bool:
    """Whether a block's rows are the queries of all heads that share keys, not of one head."""
    return op.heads > op.kv_heads and op.q_len < _FEW_ROWS


def rows_of(op: Attention) -> int:
    """Number of rows that share keys."""
    return op.q_len * (op.heads // op.kv_heads if is_grouped(op) else 1)


def blocks_of(op: Attention, rows: int) -> int:
    """Number of blocks of one split."""
    return op.batch * (op.kv_heads if is_grouped(op) else op.heads) * -(-rows_of(op) // rows)


def split_choices(op: Attention, keys: int) -> tuple[int, ...]:
    """Numbers of parts that the keys can be cut into, none of them empty."""
    blocks = -(-op.kv_len // keys)
    return tuple(n for n in SPLITS if n <= blocks and (n - 1) * -(-blocks // n) < blocks)


def tile_knob(op: Attention, tiles: Sequence[SplitTile]) -> Knob:
    """Knob ``tile``: each tile with every number of splits."""
    choices = [
        dataclasses.replace(tile, splits=splits).choice
        for tile in tiles
        for splits in split_choices(op, tile.keys)
    ]
    return Knob("tile", tuple(choices))


def default_splits(op: Attention, rows: int, keys: int, machine: GpuModel) -> int:
    """Number of parts that gives every multiprocessor a block, each of four blocks of keys at least.

    Shorter parts would not pay for the second kernel that merges them.
    """
    blocks, steps = blocks_of(op, rows), -(-op.kv_len // keys)
    choices = [n for n in split_choices(op, keys) if n == 1 or n * 4 <= steps]
    if blocks * 2 > machine.sms:
        return 1
    return next((n for n in choices if n * blocks >= machine.sms), choices[-1])


def width_of(place: Heads, extent: int, dtype: str) -> int:
    """Elements of the widest copy, up to 16 bytes, that rows of ``extent`` elements at ``place`` allow."""
    return vector_of(dtype, extent, place.offset, place.batch, place.head, place.row)
