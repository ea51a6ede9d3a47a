"""Report on the spaces' defaults and their estimates: where results say that the analytic model is wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.results_file import FINAL, summary
from hetero_tvm.ops.base import from_json
from hetero_tvm.records.candidates import point_key
from hetero_tvm.records.record import TRIAL, VERIFIED, Record
from hetero_tvm.records.store import read_records
from hetero_tvm.schedules.base import Point, thaw
from hetero_tvm.search.cost_model import described
from hetero_tvm.targets.cuda.spaces import CUDA_SPACES
from hetero_tvm.targets.registry import parse_target

_SPACES = {space.name: space for space in CUDA_SPACES}

_FAR = 1.1
"""A default this much slower than the best is told, with what the best does otherwise."""
_LEAST = 8
"""Trials from which an order of choices means anything."""
_TOLD = 6


def report(document: dict[str, Any], logs: Path) -> list[str]:
    """Lines on the device, every entry, and how the defaults did."""
    device = document["device"]
    lines = [f"{device['name']}, {document['arch']}, torch {device.get('torch')}, {device.get('compiler')}"]
    for name, entries in document.get("sections", {}).items():
        told = [entry for entry in entries if name != "smoke" or entry["status"] not in FINAL]
        lines += [f"{name}: {len(entries)} entries"]
        lines += [f"  {entry['task']}: {summary(entry)}" for entry in told]
    records = [record for path in sorted(logs.glob("cuda*.jsonl")) for record in read_records(path)]
    return [*lines, *defaults(document, records)]


def defaults(document: dict[str, Any], records: Iterable[Record]) -> list[str]:
    """Lines on how far each kernel's default is from the best, and how well the order of choices predicts.

    The order is judged by Spearman's rank correlation between the prior that the search starts with and
    measured speed: 1 is the right order, 0 a useless one, -1 the reverse.
    """
    known = {
        entry["task"]: entry
        for entries in document.get("sections", {}).values()
        for entry in entries
        if "op" in entry
    }
    trials: dict[tuple[str, str], list[Record]] = defaultdict(list)
    verified: dict[tuple[str, str], Record] = {}
    for record in records:
        if record.ok and record.point and _SPACES[record.space].version == record.version:
            if record.role == TRIAL:
                trials[record.space, record.task].append(record)
            elif record.role == VERIFIED:
                verified[record.space, record.task] = record
    lines = ["defaults (their time over that of the best):"]
    for (space, task), found in sorted(trials.items()):
        winner = verified.get((space, task))
        ratio = winner.default_seconds / winner.seconds if winner and winner.default_seconds else None
        line = f"  {space} {task}: " + (f"{ratio:.2f}" if ratio else "not compared")
        entry = known.get(task)
        if entry is not None:
            line += _placed(entry, found, document["arch"])
        if ratio and ratio > _FAR and entry is not None:
            line += f"; {_difference(entry['points']['default']['point'], winner.point)}"
        lines += [line, *(f"    {text}" for text in _orders(found))]
    return lines


def _placed(entry: dict[str, Any], trials: Sequence[Record], arch: str) -> str:
    """Place of the default among the trials, and the correlation of the prior."""
    fastest = sorted(trials, key=lambda record: record.seconds)
    default = point_key(entry["points"]["default"]["point"])
    place = next((i for i, record in enumerate(fastest, 1) if point_key(record.point) == default), None)
    text = f", place {place} of {len(trials)}" if place else ""
    if len(trials) < _LEAST:
        return text
    machine = parse_target(f"cuda:{arch}").with_precision(entry["precision"]).machine
    space, op = _SPACES[entry["space"]], from_json(entry["op"])
    knobs = [knob for knob in space.knobs(op, machine) if len(knob.choices) > 1]
    prior, speed = [], []
    for record in trials:
        point = thaw(record.point)
        if any(point.get(knob.name) not in knob.choices for knob in knobs):
            continue
        prior.append(1 / described(space, op, point, machine, knobs).estimate)
        speed.append(1 / record.seconds)
    return text + f", order {spearman(prior, speed):+.2f}"


def _difference(default: Point, best: Point) -> str:
    """Knobs in which the best point differs from the default."""
    pairs = ((name, default.get(name), best[name]) for name in best)
    return ", ".join(
        f"{name} {list_of(a)} -> {list_of(b)}" for name, a, b in pairs if list_of(a) != list_of(b)
    )


def list_of(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _orders(trials: Sequence[Record]) -> list[str]:
    """Lines per knob: its choices with the best time of each over the best of all, fastest first."""
    if len(trials) < _LEAST:
        return []
    lines = []
    for name in trials[0].point:
        times: dict[Any, list[float]] = defaultdict(list)
        for record in trials:
            times[thaw(record.point).get(name)].append(record.seconds)
        ordered = sorted(times, key=lambda choice: min(times[choice]))
        least = min(times[ordered[0]])
        told = [f"{choice} {min(times[choice]) / least:.2f}" for choice in ordered[:_TOLD]]
        if len(ordered) > 1:
            lines.append(f"{name}: {', '.join(told)}" + (" ..." if len(ordered) > _TOLD else ""))
    return lines


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation, equal values sharing their ranks; 0 where one of them does not vary."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return 0.0
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, np.float64)
    return np.asarray([((array < value).sum() + (array <= value).sum()) / 2 for value in array])
