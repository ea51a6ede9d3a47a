"""Actions of ``db``, by the name of the subcommand."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_tvm.cli import common as cli_common
from hetero_tvm.errors import UsageError
from hetero_tvm.host.terminal import Column, console, figure, number_of, table
from hetero_tvm.records import database
from hetero_tvm.records.database import Filter
from hetero_tvm.records.record import Record
from hetero_tvm.records.store import shipped_logs, user_logs


def run(options: argparse.Namespace) -> int:
    """Run the subcommand that the options name; returns its exit status."""
    return _ACTIONS[options.command](options)


def _folder(options: argparse.Namespace, writes: bool = False) -> Path:
    if not options.shipped:
        if options.logs is None:
            return user_logs()
        if not writes and not options.logs.is_dir():
            raise UsageError(
                f"--logs {options.logs}: there is no such folder",
                hint="without --logs, db reads the records of this user's searches",
            )
        return options.logs
    folder = shipped_logs()
    if writes or folder is None:
        raise UsageError("the shipped records are not written to" if writes else "no records were shipped")
    return folder


def _filter(options: argparse.Namespace) -> Filter:
    return Filter(options.op, options.extents, options.target, options.machine, options.role)


def _selected(options: argparse.Namespace) -> list[Record]:
    return database.select(_folder(options), _filter(options))


# looking ---------------------------------------------------------------------------------------
def _list(options: argparse.Namespace) -> int:
    return _tell(options, _selected(options))


def _show(options: argparse.Namespace) -> int:
    options.op = options.task
    found = [record for group in database.by_task(_selected(options)).values() for record in group]
    if not found:
        raise UsageError(
            f"no record of {options.task!r} in {_folder(options)}", hint="`db list` prints what there is"
        )
    return _tell(options, sorted(found, key=lambda r: (r.task, r.seconds or float("inf"))), detailed=True)


def _best(options: argparse.Namespace) -> int:
    groups = database.by_task(_selected(options)).values()
    best = [record for group in groups if (record := database.best_of(group)) is not None]
    return _tell(options, sorted(best, key=lambda r: (r.task, r.mcpu)))


def _stats(options: argparse.Namespace) -> int:
    found = database.stats(_selected(options))
    if options.json:
        cli_common.print_json({"folder": str(_folder(options)), **found})
        return 0
    count, kernels = number_of(found["records"], "record"), number_of(found["tasks"], "kernel")
    cli_common.say(options, f"{_folder(options)}: {count} of {kernels}")
    for name in ("spaces", "machines", "roles", "statuses"):
        for text, count in sorted(found[name].items(), key=lambda item: -item[1]):
            cli_common.say(options, f"  {name[:-1] if name != 'statuses' else 'status':8} {text}: {count}")
    if found["first"]:
        cli_common.say(options, f"  from {found['first']} to {found['last']}")
    return 0


def _tell(options: argparse.Namespace, records: Sequence[Record], detailed: bool = False) -> int:
    if options.json:
        cli_common.print_json({"records": [cli_common.plain(record) for record in records]})
        return 0
    if not detailed and records and (sys.stdout.isatty() or "COLUMNS" in os.environ):
        if not options.quiet:  # files and pipes get a line for each
            printer = console()
            printer.print(table("records", _COLUMNS, list(map(_cells, records)), printer.width))
    else:
        for record in records:
            cli_common.say(options, _line(record, detailed))
    if not detailed:
        folder = _folder(options)
        count = f"{len(records)} record{'s' * (len(records) != 1)}"
        nothing = "" if folder.is_dir() else ", a folder that does not exist; the first tune makes it"
        cli_common.say(options, f"{count} in {folder}{nothing}")
    return 0


_COLUMNS = (
    Column("kernel", text=True),
    Column("ms"),
    Column("gain", rank=1),
    Column("status"),
    Column("space", rank=3),
    Column("machine", rank=2),
    Column("date", rank=4),
)


def _cells(record: Record) -> tuple[str, ...]:
    time = "" if record.seconds is None else figure(record.seconds * 1e3, 4)
    gain = _gain(record)
    return (
        record.task,
        time,
        "" if gain is None else f"{gain:.2f} x",
        _status(record),
        record.space,
        _machine(record),
        record.created[:10],
    )


def _gain(record: Record) -> float | None:
    """Time of the default by the record's; None where either is unknown."""
    if not record.default_seconds or not record.seconds:
        return None
    return record.default_seconds / record.seconds


def _status(record: Record) -> str:
    return record.role if record.status == "ok" else f"{record.role}, {record.status}"


def _machine(record: Record) -> str:
    return f"{record.target}:{record.device or record.mcpu}/{record.threads}"


def _line(record: Record, detailed: bool) -> str:
    time = "" if record.seconds is None else f"{figure(record.seconds * 1e3, 4)} ms"
    found = _gain(record)
    gain = "" if found is None else f" ({found:.2f} x default)"
    status, where = _status(record), _machine(record)
    what = f" {record.candidate[:120]}" if detailed else ""
    spread = f" +{record.spread:.0%}" if detailed and record.spread else ""
    return (
        f"{record.created[:10]}  {record.task}  {record.space}  {where}  {status}  {time}{spread}{gain}{what}"
    )


def _verify(options: argparse.Namespace) -> int:
    folder = _folder(options)
    found = [*database.problems(folder), *_stale(_selected(options))]
    if options.json:
        cli_common.print_json({"folder": str(folder), "problems": found})
    else:
        for text in found:
            cli_common.say(options, text)
        count = len(database.select(folder, Filter()))
        cli_common.say(options, f"{folder}: {number_of(count, 'record')}, {number_of(len(found), 'problem')}")
    return 1 if found else 0


def _stale(records: Sequence[Record]) -> list[str]:
    """Records that no search or build uses any more: their space has another version, or lost the point."""
    from hetero_tvm.ops.base import from_json
    from hetero_tvm.schedules.base import thaw

    texts: dict[str, int] = {}
    kinds: dict[str, Any] = {}
    for record in records:
        if record.target not in kinds:
            kinds[record.target] = _target(record.target)
        target = kinds[record.target]
        space = {} if target is None else {s.name: s for s in target.spaces}
        if record.space not in space or record.role == "fresh":
            continue
        found = space[record.space]
        text = None
        if record.version != found.version:
            text = f"{record.space}: version {record.version} of the space, it is at {found.version} now"
        elif record.op and record.point is not None and record.site.mcpu == target.machine.mcpu:
            try:
                found.check(from_json(record.op), thaw(record.point), target.machine)
            except (ValueError, KeyError, TypeError) as error:
                text = f"{record.task}: {error}"
        if text:
            texts[text] = texts.get(text, 0) + 1
    return [f"{text} ({count} records are not used)" for text, count in texts.items()]


def _target(kind: str) -> Any:
    """The target of a kind on this machine; None where it cannot be made here."""
    from hetero_tvm.errors import HeteroTVMError

    try:
        return cli_common.load_target(kind or "cpu", None)
    except HeteroTVMError:
        return None


# changing --------------------------------------------------------------------------------------
def _merge(options: argparse.Namespace) -> int:
    added = database.merge(_folder(options, writes=True), options.sources)
    if options.json:
        cli_common.print_json({"added": added})
    for path, count in added.items():
        cli_common.say(options, f"{path}: {count} new records")
    return 0


def _prune(options: argparse.Namespace) -> int:
    keep = database.winners_only if options.winners else database.without_void
    before, after = database.prune(_folder(options, writes=True), keep, _filter(options))
    if options.json:
        cli_common.print_json({"before": before, "after": after})
    cli_common.say(options, f"{before - after} of {number_of(before, 'record')} removed")
    return 0


def _export(options: argparse.Namespace) -> int:
    from hetero_tvm.search import exchange

    target = cli_common.load_target(options.target or "cpu", None)
    here = [r for r in _selected(options) if r.target == target.kind and r.mcpu == target.machine.mcpu]
    spaces = {space.name: space for space in target.spaces}
    count, left_out = exchange.export(options.out, here, spaces, target.machine)
    if options.json:
        cli_common.print_json({"exported": count, "left_out": left_out, "folder": str(options.out)})
    cli_common.say(options, f"{number_of(count, 'record')} of {target.machine.mcpu} in {options.out}")
    for reason, number in left_out.items():
        cli_common.say(options, f"left out: {number}, {reason}")
    return 0


def _import(options: argparse.Namespace) -> int:
    from hetero_tvm.records.record import Site
    from hetero_tvm.search import exchange

    target = cli_common.load_target(options.target or "cpu", None)
    site = Site.of(target.machine, target.record_kind)
    records = exchange.read(options.source, {space.name: space for space in target.spaces}, site)
    count = database.add(_folder(options, writes=True), records)
    if options.json:
        cli_common.print_json({"read": len(records), "added": count})
    cli_common.say(options, f"{number_of(len(records), 'record')} read, {count} new as trials of {site.mcpu}")
    return 0


def _train(options: argparse.Namespace) -> int:
    from hetero_tvm.records.tables import shipped_tables
    from hetero_tvm.search import pretrained

    target = cli_common.load_target(options.target or "cpu", None)
    folder, kind = _folder(options, writes=options.out is None), target.record_kind
    folders = dict.fromkeys(one.resolve() for one in (folder, shipped_logs()) if one is not None)
    tables = [table for one in folders for table in shipped_tables(one, kind)]
    if not options.only_tables:
        tables += pretrained.tables_of(_selected(options), target.spaces, target.machine, kind)
    models = pretrained.train(tables, target.spaces)
    path = pretrained.models_file(options.out or folder, kind)
    pretrained.write_models(path, models)
    points = sum(len(table.points) for table in tables)
    if options.json:
        cli_common.print_json(
            {"tables": len(tables), "points": points, "spaces": list(models), "file": str(path)}
        )
    cli_common.say(options, f"{len(models)} spaces from {points} points of {len(tables)} tables: {path}")
    return 0


_ACTIONS = {
    "list": _list,
    "show": _show,
    "best": _best,
    "stats": _stats,
    "verify": _verify,
    "merge": _merge,
    "prune": _prune,
    "export": _export,
    "import": _import,
    "train": _train,
}
