"""Cost models that are trained before a search begins, from tables of measured points.

A file (``cpu.models.json.gz``) holds, per design space, boosted trees that correct the space's estimate. It
is made from tables by :func:`train`, and equal tables make equal files.  A model serves machines whose
vectors are as wide as those of a machine that it was trained on: on others the estimate alone is the better
beginning.
"""

from __future__ import annotations

import base64
import gzip
import json
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hetero_tvm.errors import RecordError, UsageError
from hetero_tvm.host.files import write_whole
from hetero_tvm.host.install import extra_command
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import from_json
from hetero_tvm.records.record import TRIAL, Record, Site, valid
from hetero_tvm.records.tables import Table
from hetero_tvm.schedules.base import DesignSpace, thaw
from hetero_tvm.search.cost_model import Description, SpaceModel, described, has_trees

_LEAST_POINTS = 24
"""Points of a space, of all its tables, that trees can learn something from."""


@dataclass(frozen=True)
class Pretrained:
    """Trees of one design space.

    Parameters
    ----------
    version : of the space.
    features : numbers that the trees expect of a point.
    lanes : vector widths of the machines that they were trained on.
    trees : in XGBoost's own format.
    """

    version: int
    features: int
    lanes: tuple[int, ...]
    trees: bytes

    def booster(self) -> Any:
        """The trees, ready to predict."""
        import xgboost

        found = xgboost.Booster()
        found.load_model(bytearray(self.trees))
        return found


@lru_cache(maxsize=128)
def rows_of(table: Table, space: DesignSpace) -> tuple[tuple[Description, float | None], ...]:
    """Points of a table that the space still has, as the cost model sees them, with their seconds."""
    op, machine = table.operator(), table.described_machine()
    if space.refuses(op, machine) is not None:
        return ()
    knobs, found = space.knobs(op, machine), []  # not space.check(), which makes them for every point
    for point, seconds in zip(table.each_point(), table.seconds, strict=True):
        if any(point.get(knob.name, knob.absent) not in knob.choices for knob in knobs):
            continue
        found.append((described(space, op, point, machine, knobs), seconds))
    return tuple(found)


def train(tables: Iterable[Table], spaces: Sequence[DesignSpace]) -> dict[str, Pretrained]:
    """A model for each space that tables of its present version say enough about.

    Raises
    ------
    UsageError : XGBoost is not installed.
    """
    if not has_trees():
        raise UsageError("training cost models needs XGBoost", hint=extra_command("search"))
    named = {space.name: space for space in spaces}
    of_space: dict[str, list[Table]] = defaultdict(list)
    for table in tables:
        if table.space in named and table.version == named[table.space].version:
            of_space[table.space].append(table)
    found = {}
    for name in sorted(of_space):
        model = model_of(of_space[name], named[name])
        if model is not None:
            lanes = sorted({table.described_machine().lanes for table in of_space[name]})
            booster = model.booster()
            trees = bytes(booster.save_raw("ubj"))
            found[name] = Pretrained(named[name].version, booster.num_features(), tuple(lanes), trees)
    return found


def tables_of(
    records: Iterable[Record], spaces: Sequence[DesignSpace], machine: Machine, target: str
) -> list[Table]:
    """Tables of the trials that were made on ``machine``; records without a contract tell nothing.

    A warning counts the records whose contract or point nothing here knows.
    """
    named = {space.name: space for space in spaces}
    site = Site.of(machine, target)
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        space = named.get(record.space)
        if space is not None and record.version == space.version and record.op and record.site.alike(site):
            groups[(record.space, record.op)].append(record)
    tables, unknown = [], 0
    for (name, op), group in groups.items():
        try:
            from_json(op)
        except ValueError:
            unknown += len(group)
            continue
        times = {r.candidate: r for r in valid(group) if r.role == TRIAL and r.point is not None}
        by_knobs: dict[tuple[str, ...], list[Record]] = defaultdict(list)
        for record in times.values():
            by_knobs[tuple(sorted(record.point))].append(record)
        for alike in by_knobs.values():
            points = [thaw(dict(sorted(record.point.items()))) for record in alike]
            seconds = [record.seconds if record.ok else None for record in alike]
            fields = {"complete": False, "created": max(record.created for record in alike)[:10]}
            try:
                table = Table.of(name, named[name].version, from_json(op), machine, points, seconds, **fields)
                named[name].refuses(table.operator(), machine)
            except (TypeError, ValueError, AttributeError):  # of words where numbers belong, and the like
                unknown += len(alike)
                continue
            tables.append(table)
    if unknown:
        warnings.warn(
            f"{unknown} records are of operators or points that this version does not know", stacklevel=2
        )
    return tables


def model_of(tables: Sequence[Table], space: DesignSpace) -> SpaceModel | None:
    """A cost model that has seen all points of some tables; None where these are too few."""
    model = SpaceModel()
    for number, table in enumerate(tables):
        for description, seconds in rows_of(table, space):
            model.add(f"{number}", description, seconds)
    return model if len(model) >= _LEAST_POINTS else None


def write_models(path: Path, models: Mapping[str, Pretrained]) -> None:
    """Write a file of models; equal models give equal bytes.

    Raises
    ------
    RecordError : the file cannot be written; an older one stays as it is.
    """
    fields = {
        name: {**vars(model), "trees": base64.b64encode(model.trees).decode()}
        for name, model in models.items()
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, gzip.compress(json.dumps(fields, sort_keys=True).encode(), 9, mtime=0))
    except OSError as error:
        raise RecordError(
            f"the cost models cannot be written to {path}: {error.strerror}",
            hint="free some space, or name another folder with --out",
        ) from error


def models_file(folder: Path, target: str) -> Path:
    """File of the models of a kind of target in a folder of records."""
    return folder / f"{target}.models.json.gz"


@lru_cache(maxsize=4)
def read_models(path: Path) -> dict[str, Pretrained]:
    """Models of a file; {} when there is none.  :class:`RecordError` when it holds something else."""
    try:
        fields = json.loads(gzip.decompress(path.read_bytes()))
        return {
            name: Pretrained(
                one["version"], one["features"], tuple(one["lanes"]), base64.b64decode(one["trees"])
            )
            for name, one in fields.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(
            f"the cost models in {path} cannot be read: {error}",
            hint="write them again with `python -m hetero_tvm.db train`",
        ) from error


def models_of(folders: Sequence[Path], target: str) -> dict[str, Pretrained]:
    """Models by space, of the first of some folders that has a file of them."""
    return next(filter(None, (read_models(models_file(folder, target)) for folder in folders)), {})


def base_of(space: DesignSpace, machine: Machine, models: Mapping[str, Pretrained]) -> Any:
    """Trees that a search of ``space`` on ``machine`` may begin with; None where there are none."""
    found = models.get(space.name)
    if found is None or found.version != space.version or machine.lanes not in found.lanes:
        return None
    return found.booster()
