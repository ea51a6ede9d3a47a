"""The command line of ``benchmarks/gpu.py``."""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu import calibration, shipping
from benchmarks.gpu.results_file import FINAL, ResultsFile
from hetero_tvm.errors import HeteroTVMError, UsageError
from hetero_tvm.runtime.cuda import devices as cuda_runtime

if TYPE_CHECKING:
    from benchmarks.gpu.measure import Setup

_RESERVE = 30.0
"""Seconds that must be left for a case to be begun."""


def parser() -> argparse.ArgumentParser:
    from benchmarks.gpu.sections import SECTIONS

    steps = ["smoke", *(section.name for section in SECTIONS), "models"]
    result = argparse.ArgumentParser(description="Kernels and models on an NVIDIA GPU, beside PyTorch.")
    result.add_argument("--only", nargs="*", choices=steps, help="these steps (default: all)")
    result.add_argument("--trials", type=int, default=128, help="candidates of the main cases (default: 128)")
    minutes = "start nothing after these (default: 7.5); what runs ends within another minute"
    result.add_argument("--minutes", type=float, default=7.5, help=minutes)
    result.add_argument("--again", action="store_true", help="forget the entries that are not right")
    result.add_argument("--quick", action="store_true", help="small shapes, two candidates each")
    result.add_argument("--out", type=Path, help="write the JSON here, entry by entry, instead of on stdout")
    result.add_argument("--logs", type=Path, help="tuning records (default: the folder logs beside --out)")
    keep = "copy results and records there after each entry, and go on with them where --out is not there"
    result.add_argument("--keep", type=Path, metavar="DIR", help=keep)
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

    if options.keep and not options.out:
        raise UsageError("--keep is for results in a file", hint="add --out FILE")
    emulated = cuda_runtime.emulating()
    if not emulated and not torch.cuda.is_available():
        print("error: PyTorch sees no NVIDIA GPU (HETERO_TVM_CUDA_EMULATE=1 checks numbers without one)")
        return 1
    from benchmarks.gpu import device_info
    from benchmarks.gpu.measure import LIMITS, Setup
    from benchmarks.gpu.worker import Worker
    from hetero_tvm.search.measure.device_workers import DeviceWorkers, open_devices
    from hetero_tvm.targets.registry import parse_target

    target = parse_target("cuda")
    head = {"device": device_info.facts(), "arch": target.machine.arch, "emulated": emulated}
    with tempfile.TemporaryDirectory() as scratch:
        logs = options.logs or (options.out.parent / "logs" if options.out else Path(scratch) / "logs")
        keep = Keeper(options.keep, options.out, logs) if options.keep else lambda: None
        results = ResultsFile(options.out, {**head, "quick": options.quick}, options.minutes, keep)
        if options.again:
            results.forget_bad()
        # Inductor's cache outlives the command, not the machine.
        inductor = {"TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "hetero_tvm-inductor")}
        worker = Worker(target.machine.arch, inductor)
        try:
            devices = open_devices(target.device_door, {}, target.devices_here(), None)
            with DeviceWorkers(devices, target.machine, target.device_door.compiler, LIMITS) as workers:
                trials = 2 if options.quick else options.trials
                setup = Setup(
                    target, workers, worker, logs, trials, options.quick, left=lambda: results.seconds_left
                )
                _steps(options, setup, results, Path(scratch))
        finally:
            worker.close()
    return _finish(options, results)


class Keeper:
    """A second copy of results and records, in a folder that outlives the one of ``--out``.

    Parameters
    ----------
    folder : where the copy is; what it holds is taken over at once when there are no results yet.
    out, logs : the results file and the folder of records.
    """

    def __init__(self, folder: Path, out: Path, logs: Path):
        self._pairs = [(out, folder / out.name), (logs, folder / "logs")]
        if not out.exists():
            for ours, kept in self._pairs:
                _copy(kept, ours)

    def __call__(self) -> None:
        for ours, kept in self._pairs:
            _copy(ours, kept)


def _copy(source: Path, goal: Path) -> None:
    """Copy a file, or the files of a folder; each is the old one or the new one at any moment."""
    if source.is_dir():
        for each in source.iterdir():
            _copy(each, goal / each.name)
    elif source.exists():
        goal.parent.mkdir(parents=True, exist_ok=True)
        fresh = goal.with_name(goal.name + ".new")
        shutil.copyfile(source, fresh)
        os.replace(fresh, goal)


def _steps(options: argparse.Namespace, setup: Setup, results: ResultsFile, scratch: Path) -> None:
    from benchmarks.gpu import models, smoke
    from benchmarks.gpu.measure import measure_case
    from benchmarks.gpu.sections import SECTIONS

    def wanted(name: str) -> bool:
        return options.only is None or name in options.only

    def begin(name: str) -> None:
        left = max(0.0, results.seconds_left / 60)
        print(f"{name} ... ({left:.1f} minutes left, {time.strftime('%X')})", file=sys.stderr, flush=True)

    def kernels(first: bool) -> None:
        for section in filter(lambda section: wanted(section.name), SECTIONS):
            cases = section.small if setup.small else section.cases
            cases = [case for case in cases if case.first == first]
            if cases:
                begin(section.name)
            for case in cases:
                measure = functools.partial(measure_case, section.name, case, setup)
                results.entry(section.name, case.label, measure, _RESERVE)

    if wanted("smoke"):
        begin("smoke")
        try:
            smoke.smoke(SECTIONS, setup, results, more=not setup.small)
        except Exception:  # a space that cannot even list its points must not keep the others from running
            traceback.print_exc()
        models.features(setup, results, scratch)
        results.entry("smoke", "ceilings", lambda: setup.worker.ask({"do": "roofs"}, 60.0))
    kernels(first=True)
    if wanted("models"):
        begin("models")
        names = (models.TINY,) if setup.small else models.MODELS
        models.models(setup, results, scratch, names, {} if setup.small else models.SIZES)
    kernels(first=False)


def _finish(options: argparse.Namespace, results: ResultsFile) -> int:
    if options.out is None:
        print(json.dumps(results.document, indent=1))
    bad = [entry for entry in results.all_entries() if entry["status"] not in FINAL]
    for entry in bad:
        why = str(entry.get("why", ""))[:200]
        print(f"NOT RIGHT {entry['task']}: {entry['status']} {why}", file=sys.stderr)
    if results.skipped:
        print(f"not started, time is over: {', '.join(results.skipped)}; run it again", file=sys.stderr)
        return 3
    print("complete" if not bad else f"complete, but {len(bad)} entries are not right", file=sys.stderr)
    return 1 if bad else 0
