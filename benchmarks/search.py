"""Does the cost model know which points are fast?  Judged on shapes that it has not seen.

    python benchmarks/search.py collect --out DIR [--only cpu.matmul ...]     measure tables on this machine
    python benchmarks/search.py judge [--json FILE]                           the shipped tables
    python benchmarks/search.py replay [--json FILE]                          64 trials on the large ones

``judge`` takes each operator out in turn, on every machine, trains on the other tables of its space, and
asks the model for the best 8, 16 and 32 points of the table it has not seen.  Regret is how much slower the
best of these is than the best of the table; beside it are random points (the mean of many draws) and the same
trees on MetaSchedule's stock features.  ``replay`` lets the search itself spend 64 trials on each table of
128 points or more, which answers in place of the machine: how near to the best point it comes, beginning with
a model that has not seen the operator.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.search_cases import cases
from benchmarks.search_collect import collect
from benchmarks.search_replay import can_replay, line_of, other_shapes, replayed
from hetero_tvm.cli.common import load_target
from hetero_tvm.records.store import shipped_logs
from hetero_tvm.records.tables import SUFFIX, Table, read_tables, shipped_tables, write_tables
from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.search import pretrained
from hetero_tvm.search.cost_model import Description, SpaceModel
from hetero_tvm.search.measure.forked_workers import ForkedWorkers

SIZES = (8, 16, 32)
_DRAWS = 2000
_LEAST = 24
"""Points that a table must have to be judged: of fewer, any 16 hold the best."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect")
    collecting.add_argument("--out", type=Path, required=True)
    collecting.add_argument("--only", nargs="*", default=[], help="names of spaces or of operators")
    collecting.add_argument("--most", type=int, default=64, help="points of a table (default: 64)")
    collecting.add_argument("--seconds", type=float, default=math.inf, help="begin no table after so long")
    judging = commands.add_parser("judge")
    judging.add_argument("--stock", action="store_true", help="stock features too (some 50 ms a point)")
    replaying = commands.add_parser("replay")
    for one in (judging, replaying):
        one.add_argument("--json", type=Path)
        one.add_argument("--tables", type=Path, metavar="FOLDER", help="other tables than the shipped ones")
    options = parser.parse_args()
    return {"collect": _collect, "judge": _judge, "replay": _replay}[options.command](options)


def _collect(options: argparse.Namespace) -> int:
    """Measure what is not there yet, and write all tables of this machine into one file."""
    machine = load_target("cpu", None).machine
    spaces = {space.name: space for space in load_target("cpu", None).spaces}
    path = options.out / f"cpu-{machine.mcpu}{SUFFIX}"
    tables = read_tables(path) if path.exists() else []
    known = {
        (table.space, table.op) for table in tables if table.complete or len(table.points) > options.most / 2
    }
    start = time.monotonic()
    with ForkedWorkers(machine, machine.codegen_target()) as workers:
        for name, ops in cases(machine).items():
            for op in ops:
                wanted = not options.only or name in options.only or op.label in options.only
                late = time.monotonic() - start > options.seconds
                if not wanted or late or (name, op.to_json()) in known:
                    continue
                table = collect(spaces[name], op, machine, workers, options.most)
                same = (table.space, table.op)
                tables = [*(one for one in tables if (one.space, one.op) != same), table]
                write_tables(path, tables)
                print(f"{name} {op.label}: {len(tables[-1].points)} points", flush=True)
    return 0


def judged_spaces(
    folder: Path | None = None, stock: bool = False
) -> Iterator[tuple[dict[str, Any], list[Table]]]:
    """A row for each space with tables in ``folder`` (regrets, rank correlations), and those tables."""
    for space, tables in _tables_by_space(folder):
        judged = [table for table in tables if len(table.points) >= _LEAST]
        if len(judged) < 2:
            continue
        found = [_one(held, tables, space, stock) for held in judged]
        row = {"space": space.name, "tables": len(found), "points": sum(one.pop("points") for one in found)}
        yield row | {key: _mean(key, [one[key] for one in found]) for key in found[0]}, tables


def _tables_by_space(folder: Path | None) -> list[tuple[DesignSpace, list[Table]]]:
    """Tables of the present versions of the CPU's spaces; the shipped ones by default."""
    spaces = {space.name: space for space in load_target("cpu", None).spaces}
    by_space: dict[str, list[Table]] = defaultdict(list)
    for table in shipped_tables(folder or shipped_logs(), "cpu"):
        if table.space in spaces and table.version == spaces[table.space].version:
            by_space[table.space].append(table)
    return [(spaces[name], tables) for name, tables in sorted(by_space.items())]


def _replay(options: argparse.Namespace) -> int:
    rows, used = [], []
    for space, tables in _tables_by_space(options.tables):
        for table in tables:
            if can_replay(table, space):
                rows.append(replayed(table, tables, space))
                used.append(table)
                print(line_of(rows[-1]), flush=True)
    _write(options.json, used, {"operators": rows})
    return 0


def _judge(options: argparse.Namespace) -> int:
    rows, used = [], []
    for row, tables in judged_spaces(options.tables, options.stock):
        rows.append(row)
        used += tables
        print(_line(row), flush=True)
    _write(options.json, used, {"spaces": rows})
    return 0


def _write(path: Path | None, tables: Sequence[Table], rows: dict[str, Any]) -> None:
    """A results file, with the machines and the days of the tables."""
    if path is not None:
        machines = sorted({table.described_machine().mcpu for table in tables})
        days = sorted({table.created for table in tables})
        document = {"machines": machines, "measured": [days[0], days[-1]], **rows}
        path.write_text(json.dumps(document, indent=1) + "\n")


def _mean(key: str, values: Sequence[float]) -> float:
    """Geometric mean of regrets, taken of times; the plain mean of correlations."""
    if "regret" not in key:
        return float(np.mean(values))
    return math.exp(np.mean(np.log1p(values))) - 1


def _one(held: Table, tables: Sequence[Table], space: DesignSpace, stock: bool) -> dict[str, float]:
    others = other_shapes(held, tables)
    seconds = np.array([math.inf if s is None else s for s in held.seconds])
    points = [description for description, _ in pretrained.rows_of(held, space)]
    if len(points) != len(seconds):
        raise SystemExit(f"{held.space}: the space no longer has all points of a table; collect it again")
    found: dict[str, float] = {"points": len(points)}
    trained = pretrained.model_of(others, space)
    models = {"estimate": SpaceModel(), "model": SpaceModel(base=trained and trained.booster())}
    for name, model in models.items():
        score = model.score(points)
        found |= _quality(name, score, seconds)
    if stock:
        found |= _quality("stock", _stock_scores(held, others, space), seconds)
    best, draws = seconds.min(), np.random.default_rng(0)
    for size in SIZES:
        regrets = [seconds[draws.permutation(len(seconds))[:size]].min() / best for _ in range(_DRAWS)]
        found[f"random regret@{size}"] = math.exp(np.mean(np.log(regrets))) - 1
    return found


def _quality(name: str, score: np.ndarray, seconds: np.ndarray) -> dict[str, float]:
    from scipy.stats import spearmanr

    order = np.argsort(-score, kind="stable")
    found = {f"{name} spearman": float(np.nan_to_num(spearmanr(score, -seconds)[0]))}
    for size in SIZES:
        found[f"{name} regret@{size}"] = float(seconds[order[:size]].min() / seconds.min() - 1)
    return found


def _stock_scores(held: Table, others: Sequence[Table], space: DesignSpace) -> np.ndarray:
    """The same trees, on MetaSchedule's features of the emitted kernels and without the space's estimate."""
    from benchmarks.search_stock import stock_features

    model = SpaceModel()
    for number, table in enumerate(others):
        for row, s in zip(stock_features(table, space), table.seconds, strict=True):
            model.add(f"{number}", Description(tuple(row), 1.0), s)
    return model.score([Description(tuple(row), 1.0) for row in stock_features(held, space)])


def _line(row: dict[str, Any]) -> str:
    kinds = [kind for kind in ("model", "estimate", "stock", "random") if f"{kind} regret@16" in row]
    parts = [f"{row['space']:20} {row['tables']} tables, {row['points']} points"]
    for kind in kinds:
        regrets = " ".join(f"{row[f'{kind} regret@{size}']:.1%}" for size in SIZES)
        rank = f" spearman {row[f'{kind} spearman']:.2f}" if f"{kind} spearman" in row else ""
        parts.append(f"{kind}{rank} regret@8/16/32 {regrets}")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
