"""Measured records as shipped ones: the best of each kernel, for each architecture that runs it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from hetero_tvm.records.appending import append_line
from hetero_tvm.records.candidates import point_key
from hetero_tvm.records.record import TRIAL, VERIFIED, Record
from hetero_tvm.records.store import read_records
from hetero_tvm.schedules.base import thaw
from hetero_tvm.targets.cuda.spaces import CUDA_SPACES

_SPACES = {space.name: space for space in CUDA_SPACES}

BASE = {"sm_90a": "sm_90", "sm_100a": "sm_100", "sm_120a": "sm_120"}
"""Architectures whose points, as far as they use none of its own instructions, are those of another: the
compiler makes the same machine code of them."""


def ship(logs: Path, shipped: Path) -> list[str]:
    """Add the best records in ``logs`` to the files in ``shipped``; lines that say what was done.

    A kernel whose shipped record is as fast already keeps it.
    """
    lines = []
    for path in sorted(logs.glob("cuda-sm_*.jsonl")):
        records = read_records(path)
        kinds = {record.mcpu for record in records}
        found = best_of(records)
        for arch in sorted(kinds & set(BASE)):
            found += best_of(for_base(records, arch))
        for name, fresh in _by_file(found).items():
            known = {_identity(record): record for record in read_records(shipped / name)}
            better = [record for record in fresh if _better(record, known.get(_identity(record)))]
            for record in better:
                append_line(shipped / name, record.to_json())
            lines.append(f"{shipped / name}: {len(better)} records added, {len(fresh) - len(better)} known")
    return lines or [f"no records of a GPU in {logs}"]


def best_of(records: Iterable[Record]) -> list[Record]:
    """Best record of each kernel: the newest that won a comparison, else the fastest trial."""
    kernels: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for record in records:
        if record.ok and record.point and _SPACES[record.space].version == record.version:
            kernels[_identity(record)].append(record)
    found = []
    for each in kernels.values():
        won = [record for record in each if record.role == VERIFIED]
        trials = [record for record in each if record.role == TRIAL]
        if won:
            found.append(max(won, key=lambda record: record.created))
        elif trials:
            found.append(min(trials, key=lambda record: record.seconds))
    return found


def for_base(records: Iterable[Record], arch: str) -> list[Record]:
    """Records of ``arch`` whose points its base has as well, as records of the base.

    They are trials: what they were compared with may not be there.  A point is taken for one of ``arch``
    alone when it holds warp groups (see :class:`hetero_tvm.schedules.cuda.products.tiles.Tile`).
    """
    return [
        dataclasses.replace(record, mcpu=BASE[arch], role=TRIAL, default_seconds=None)
        for record in records
        if record.mcpu == arch and record.ok and record.point and not own_instructions(record.point)
    ]


def own_instructions(point: Mapping[str, object]) -> bool:
    """Whether a point needs the instructions that an architecture with an ``a`` has for itself."""
    from hetero_tvm.schedules.cuda.products.tiles import Tile

    tile = thaw(point).get("tile")
    return isinstance(tile, tuple) and len(tile) >= 6 and Tile.of(tile).group


def _identity(record: Record) -> tuple[object, ...]:
    return (record.key, record.space, record.version, record.mcpu, record.isa, record.device)


def _by_file(records: Iterable[Record]) -> dict[str, list[Record]]:
    files: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        files[f"{record.target}-{record.mcpu}.jsonl"].append(record)
    return files


def _better(record: Record, known: Record | None) -> bool:
    if known is None:
        return True
    return point_key(record.point) != point_key(known.point) and record.seconds < known.seconds
