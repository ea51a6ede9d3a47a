"""Tables of measured points: what a cost model is trained on and judged by.

A record says what one trial of a user's search took; a table holds many points of one operator, losers and
failures too, measured together on one machine.  A line of a file is a table, as JSON; files are compressed
and named by kind of target and microarchitecture (``cpu-znver5.tables.jsonl.gz``), so that machines are
added by adding files.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero_tvm.errors import RecordError
from hetero_tvm.host.files import write_whole
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import FusedOp, from_json
from hetero_tvm.records.candidates import find_object, type_reference
from hetero_tvm.schedules.base import Point, thaw

SUFFIX = ".tables.jsonl.gz"


@dataclass(frozen=True)
class Table:
    """Points of one operator with their times on one machine.

    Parameters
    ----------
    space, version : the design space that the points are of.
    op : the contract, as JSON.
    machine, machine_type : the machine's description as JSON, and ``module:Class`` that reads it.
    knobs : names of the decisions.
    choices : choices of each knob.
    points : for each point the index of its choice of every knob.
    seconds : per call; None for a point that failed.
    default : index of the point that the space chose by itself when the table was made; None for none of
        these.
    complete : whether these are all kernels of the space, or a random part of them.
    created : day on which they were measured.
    """

    space: str
    version: int
    op: str
    machine: str
    machine_type: str
    knobs: tuple[str, ...]
    choices: tuple[tuple[Any, ...], ...]
    points: tuple[tuple[int, ...], ...]
    seconds: tuple[float | None, ...]
    default: int | None = None
    complete: bool = True
    created: str = ""

    @classmethod
    def of(
        cls,
        space: str,
        version: int,
        op: FusedOp,
        machine: Machine,
        points: Sequence[Point],
        seconds: Sequence[float | None],
        **fields: Any,
    ) -> Table:
        """A table of points that all have the same knobs."""
        knobs = tuple(points[0])
        choices = tuple(tuple(dict.fromkeys(point[knob] for point in points)) for knob in knobs)
        places = tuple(
            tuple(listed.index(point[knob]) for knob, listed in zip(knobs, choices, strict=True))
            for point in points
        )
        short = tuple(None if s is None else float(f"{s:.4g}") for s in seconds)
        kind = type_reference(machine)
        text = machine.to_json()
        return cls(space, version, op.to_json(), text, kind, knobs, choices, places, short, **fields)

    def operator(self) -> FusedOp:
        """The contract."""
        return from_json(self.op)

    def described_machine(self) -> Machine:
        """The machine on which the points were measured."""
        return find_object(self.machine_type).from_json(self.machine)

    def each_point(self) -> list[dict[str, Any]]:
        """The points, as spaces have them."""
        named = [dict(zip(self.knobs, listed, strict=True)) for listed in self._chosen()]
        return [thaw(point) for point in named]

    def _chosen(self) -> Iterator[list[Any]]:
        for places in self.points:
            yield [listed[place] for listed, place in zip(self.choices, places, strict=True)]

    def to_json(self) -> str:
        """Line of a file."""
        return json.dumps(vars(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Table:
        """``ValueError`` when the text is no table."""
        try:
            fields = {name: _frozen(value) for name, value in json.loads(text).items()}
            found = cls(**fields)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a table: {error}") from None
        if len(found.points) != len(found.seconds) or len(found.knobs) != len(found.choices):
            raise ValueError("a table with more points than times, or knobs without choices")
        return found


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def read_tables(path: Path) -> list[Table]:
    """Tables of a file.  :class:`RecordError` when it cannot be read or holds something else."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [Table.from_json(line) for line in file if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise RecordError(f"the tables in {path} cannot be read: {error}") from error


def write_tables(path: Path, tables: Iterable[Table]) -> None:
    """Write a file; equal tables give equal bytes."""
    text = "".join(table.to_json() + "\n" for table in tables)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, gzip.compress(text.encode(), 9, mtime=0))


def shipped_tables(folder: Path | None, target: str) -> list[Table]:
    """Tables of all machines of a kind of target in a folder of shipped records."""
    paths = [] if folder is None else sorted(folder.glob(f"{target}-*{SUFFIX}"))
    return [table for path in paths for table in read_tables(path)]
