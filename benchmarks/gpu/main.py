"""The command line of ``benchmarks/gpu.py``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import calibration, shipping
from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.runtime.cuda import devices as cuda_runtime

_BEFORE_ROW = 30.0
"""Seconds that must be left for a row to be begun."""


def parser() -> argparse.ArgumentParser:
    from benchmarks.gpu.sections import SECTIONS

    steps = ["smoke", *(section.name for section in SECTIONS), "models"]
    result = argparse.ArgumentParser(description="Kernels and models on an NVIDIA GPU, beside PyTorch.")
    result.add_argument("--only", nargs="*", choices=steps, help="these steps (default: all)")
    result.add_argument("--trials", type=int, default=128, help="candidates of the main rows (default: 128)")
    result.add_argument("--minutes", type=float, default=9.0, help="start nothing after these (default: 9)")
    result.add_argument("--again", action="store_true", help="forget the rows that are not right")
    result.add_argument("--quick", action="store_true", help="small shapes, two candidates each")
    result.add_argument("--out", type=Path, help="write the JSON here, row by row, instead of on stdout")
    result.add_argument("--logs", type=Path, help="tuning records (default: beside --out)")
    group = result.add_argument_group("afterwards, on any machine")
    group.add_argument("--report", action="store_true", help="print what --out holds, and how defaults did")
    group.add_argument("--ship", type=Path, metavar="LOGS", help="add the best records of --out to LOGS")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        if options.report or options.ship:
            return _afterwards(options)
        return _measure(options)
    except HeteroTVMError as error:
        print(f"error: {error}")
        return 1


def _afterwards(options: argparse.Namespace) -> int:
    if options.out is None or not options.out.exists():
        print("error: --out must name the results of an earlier run")
        return 1
    document = json.loads(options.out.read_text())
    logs = options.logs or options.out.parent / "logs"
    if options.report:
        print("\n".join(calibration.report(document, logs)))
    if options.ship:
        print("\n".join(shipping.ship(logs, options.ship)))
    return 0


def _measure(options: argparse.Namespace) -> int:
    import torch

    emulated = cuda_runtime.emulating()
    if not emulated and not torch.cuda.is_available():
        print("error: PyTorch sees no NVIDIA GPU (HETERO_TVM_CUDA_EMULATE=1 checks numbers without one)")
        return 1
    from benchmarks.gpu import box
    from benchmarks.gpu.book import Book
    from benchmarks.gpu.rows import LIMITS, Bench
    from benchmarks.gpu.worker import Worker
    from hetero_tvm.search.measure.device_workers import DeviceWorkers, open_benches
    from hetero_tvm.targets.registry import parse_target

    target = parse_target("cuda")
    head = {"device": box.facts(), "arch": target.machine.arch, "emulated": emulated, "quick": options.quick}
    book = Book(options.out, head, options.minutes)
    if options.again:
        book.forget_bad()
    with tempfile.TemporaryDirectory() as scratch:
        logs = options.logs or (options.out.parent / "logs" if options.out else Path(scratch) / "logs")
        # Inductor's cache outlives the command, not the machine.
        inductor = {"TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "hetero_tvm-inductor")}
        worker = Worker(target.machine.arch, inductor)
        try:
            benches = open_benches(target, None)
            with DeviceWorkers(benches, target.machine, target.offload[0], LIMITS) as workers:
                trials = 2 if options.quick else options.trials
                bench = Bench(
                    target, workers, worker, logs, trials, options.quick, left=lambda: book.seconds_left
                )
                _steps(options, bench, book, Path(scratch))
        finally:
            worker.close()
    return _finish(options, book)


def _steps(options: argparse.Namespace, bench: Any, book: Any, scratch: Path) -> None:
    from benchmarks.gpu import models, smoke
    from benchmarks.gpu.rows import measure_row
    from benchmarks.gpu.sections import SECTIONS

    def wanted(name: str) -> bool:
        return options.only is None or name in options.only

    def begin(name: str) -> None:
        minutes = book.seconds_left / 60
        print(f"{name} ... ({minutes:.1f} minutes left, {time.strftime('%X')})", file=sys.stderr, flush=True)

    def kernels(first: bool) -> None:
        for section in filter(lambda section: wanted(section.name), SECTIONS):
            cases = section.small if bench.small else section.cases
            cases = [case for case in cases if case.first == first]
            if cases:
                begin(section.name)
            for case in cases:
                book.row(
                    section.name,
                    case.label,
                    lambda s=section, c=case: measure_row(s.name, c, bench),
                    _BEFORE_ROW,
                )

    if wanted("smoke"):
        begin("smoke")
        try:
            smoke.smoke(SECTIONS, bench, book, more=not bench.small)
        except Exception:  # a space that cannot even list its points must not keep the others from running
            traceback.print_exc()
        models.features(bench, book, scratch)
        book.row("smoke", "ceilings", lambda: bench.worker.ask({"do": "roofs"}, 60.0))
    kernels(first=True)
    if wanted("models"):
        begin("models")
        names = (models.TINY,) if bench.small else models.MODELS
        models.models(bench, book, scratch, names, {} if bench.small else models.SIZES)
    kernels(first=False)


def _finish(options: argparse.Namespace, book: Any) -> int:
    if options.out is None:
        print(json.dumps(book.document, indent=1))
    rows = [row for rows in book.document.get("sections", {}).values() for row in rows]
    bad = [row for row in rows if row["status"] not in ("ok", "refused")]
    for row in bad:
        print(f"NOT RIGHT {row['task']}: {row['status']} {str(row.get('why', ''))[:200]}", file=sys.stderr)
    if book.skipped:
        print(f"not started, time is over: {', '.join(book.skipped)}; run it again", file=sys.stderr)
        return 3
    print("complete" if not bad else f"complete, but {len(bad)} rows are not right", file=sys.stderr)
    return 1 if bad else 0
