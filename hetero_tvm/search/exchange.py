"""Records as MetaSchedule's own database (``JSONDatabase``), and back.

A record of a design space becomes a trace that samples one category per knob and annotates the root block
with the point, so that MetaSchedule can store, sort and mutate it; a record of the stock rules keeps its
trace.  The workload is the operator's unscheduled TensorIR, which carries the contract.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hetero_tvm.errors import RecordError
from hetero_tvm.host.tvm import PrimFunc, tvm
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import FusedOp, from_json
from hetero_tvm.ops.te_workload import OP_ATTR
from hetero_tvm.records.candidates import is_scheduled, point_key
from hetero_tvm.records.record import TRIAL, Record, Site, new_record
from hetero_tvm.schedules.base import DesignSpace, thaw
from hetero_tvm.schedules.sampled import trace_text
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.search.metaschedule import load_metaschedule

_SPACE, _POINT = "hetero.space", "hetero.point"
"""Annotations of the root block: the space with its version, the point as JSON."""

_FILES = ("database_workload.json", "database_tuning_record.json")


def export(
    folder: Path, records: Iterable[Record], spaces: Mapping[str, DesignSpace], machine: Machine
) -> tuple[int, dict[str, int]]:
    """Write a ``JSONDatabase`` into ``folder``.

    Returns
    -------
    How many records went in, and for the others reason -> number.

    Raises
    ------
    RecordError : the files could not be written whole; they are as they were.
    """
    ms = load_metaschedule()
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in _FILES]
    before = [path.stat().st_size if path.exists() else None for path in paths]
    known = _lines(paths[1])
    database = ms.database.JSONDatabase(work_dir=str(folder), allow_missing=True)
    target = tvm.target.Target(machine.codegen_target())
    workloads: dict[str, Any] = {}
    count, left_out = 0, {}
    for record in records:
        reason = _refusal(record, spaces)
        if reason is not None:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        try:
            module = _module(from_json(record.op).workload())
            trace = _trace_of(record, module, spaces, machine)
        except ValueError as error:
            left_out[str(error)] = left_out.get(str(error), 0) + 1
            continue
        if record.key not in workloads:
            workloads[record.key] = database.commit_workload(module)
        arguments = ms.arg_info.ArgInfo.from_entry_func(module, remove_preproc=False)
        workload = workloads[record.key]
        database.commit_tuning_record(
            ms.database.TuningRecord(trace, workload, [record.seconds], target, arguments)
        )
        count += 1
    del database
    # MetaSchedule does not look, and writes no workload twice.
    if count and (_lines(paths[1]) != known + count or not paths[0].read_bytes().endswith(b"]\n")):
        for path, size in zip(paths, before, strict=True):
            if size is None:
                path.unlink(missing_ok=True)
            else:
                os.truncate(path, size)
        raise RecordError(
            f"the database in {folder} could not be written whole",
            hint="free some space, or name another folder",
        )
    return count, left_out


def _lines(path: Path) -> int:
    """Number of the lines of a file that are whole."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(line.endswith(b"]\n") for line in file)


def _refusal(record: Record, spaces: Mapping[str, DesignSpace]) -> str | None:
    """Reason why a record cannot be in a database of schedules; None when it can."""
    if not record.ok:
        return "no time"
    if not record.op:
        return "no contract in the record (made by an earlier version, or a kernel without one)"
    if not is_scheduled(record.space) and record.space not in spaces:
        return f"no design space {record.space} here"
    return None


def _module(function: PrimFunc) -> Any:
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _trace_of(record: Record, module: Any, spaces: Mapping[str, DesignSpace], machine: Machine) -> Any:
    """Trace of a record.  ``ValueError``: its point is none of the space's, or its trace does not apply."""
    schedule = tvm.s_tir.Schedule(module)
    if record.trace is not None:
        try:
            tvm.s_tir.schedule.Trace.apply_json_to_schedule(json.loads(record.trace), schedule)
        except Exception as error:  # TVM raises many kinds
            raise ValueError("its trace does not apply (made by another version, or edited)") from error
        return schedule.trace
    space, op, point = spaces[record.space], from_json(record.op), thaw(record.point or {})
    space.check(op, point, machine)
    root = schedule.get_sblock("root")
    schedule.annotate(root, _SPACE, f"{record.space}:{record.version}")
    schedule.annotate(root, _POINT, point_key(point))
    for knob in space.knobs(op, machine):
        count, chosen = len(knob.choices), knob.choices.index(point.get(knob.name, knob.absent))
        decision = schedule.sample_categorical(list(range(count)), [1.0 / count] * count, decision=chosen)
        schedule.annotate(root, f"hetero.{knob.name}", decision)
    return schedule.trace


def read(folder: Path, spaces: Mapping[str, DesignSpace], site: Site) -> list[Record]:
    """Records of a ``JSONDatabase``, as trials on the machine of ``site``.

    Raises
    ------
    RecordError : there is no database in ``folder``, or it cannot be read.
    """
    paths = [folder / name for name in _FILES]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise RecordError(
            f"{folder} holds no database of MetaSchedule: no {', '.join(missing)}",
            hint="name the work_dir of its tuning; records of hetero_tvm are merged with `db merge`",
        )
    ms = load_metaschedule()
    try:
        database = ms.database.JSONDatabase(*map(str, paths))
        entries = list(database.get_all_tuning_records())
    except Exception as error:  # TVM raises many kinds
        raise RecordError(f"the database in {folder} cannot be read: {error}") from error
    return [record for entry in entries if (record := _record_of(entry, spaces, site)) is not None]


def _record_of(entry: Any, spaces: Mapping[str, DesignSpace], site: Site) -> Record | None:
    """A record of a database's entry; None where it has no time."""
    times = [float(seconds) for seconds in entry.run_secs or ()]
    module = entry.workload.mod
    if not times or max(times) >= 1e9:
        return None
    (variable,) = module.get_global_vars()
    function = module[variable]
    text = function.attrs.get(OP_ATTR) if function.attrs else None
    op = from_json(str(text)) if text is not None else None
    annotated = _annotations(entry.trace)
    space = spaces.get(annotated.get(_SPACE, "").rpartition(":")[0])
    if _POINT in annotated and space is not None:
        candidate: dict[str, Any] = {"point": thaw(json.loads(annotated[_POINT]))}
    else:
        candidate, space = {"trace": trace_text(entry.trace)}, None
    key = task_key(function)
    name = op.label if op is not None else f"imported_{key[2:10]}"
    task = _task(key, name, op, function, space)
    return new_record(task, site, candidate, seconds=min(times), role=TRIAL)


def _task(key: str, name: str, op: FusedOp | None, workload: PrimFunc, space: DesignSpace | None) -> Task:
    flops, nbytes = (op.flops, op.nbytes) if op is not None else (0, 0)
    return Task(key, name, op, workload, space, (), flops, nbytes)


def _annotations(trace: Any) -> dict[str, str]:
    """Texts that a trace writes at blocks, by key."""
    found = {}
    for instruction in trace.insts:
        if instruction.kind.name == "Annotate" and isinstance(instruction.inputs[1], str):
            found[str(instruction.attrs[0])] = str(instruction.inputs[1])
    return found
