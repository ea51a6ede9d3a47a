"""All benchmarks in one command, into one file with machine, versions and noise.

    python benchmarks/all.py --quick                            # about five minutes on two idle cores
    python benchmarks/all.py --out results.json [--only models operators] [--keep]
    python benchmarks/compare.py old.json results.json          # what changed beyond the noise

Each suite runs in a process of its own and hands over its rows case by case; each is on disk when it is
known, so a run that was cut off goes on with ``--keep`` (the same command and file; what failed is tried
again).  With ``--minutes`` no case is begun after so long; with ``--keep`` the next call does the rest.
``--folder`` keeps what was built.  A row says how many cores others used while it was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measured import DISTURBED, Others, ResultsFile, Row, facts, failed
from benchmarks.suites import SUITES, Setup, Suite
from benchmarks.tables import show

_PEERS = {False: "onnxruntime,openvino,torch,tvm", True: "onnxruntime,openvino,torch"}
"""Other runtimes, by whether the run is quick: TVM with schedules of its own takes minutes of its time."""
_SILENCE = {True: 900, False: 3600}
"""Seconds that a case may take, when quick and otherwise: what takes longer hangs."""


def main(argv: Sequence[str] | None = None) -> int:
    options = parsed(argv)
    chosen = [SUITES[name] for name in options.only or SUITES]
    if options.list:
        for suite in chosen:
            print(
                f"{suite.name}: {suite.about}\n    {', '.join(suite.cases(options.quick)) or '(not quick)'}"
            )
        return 0
    if options.suite:
        return _serve(SUITES[options.suite], options)
    try:
        head = {**facts(), "quick": options.quick, "peers": options.vs.split(",")}
        results = ResultsFile(options.out, head, options.keep)
    except (OSError, ValueError) as error:
        print(f"error: --out: {error}\nWhat to do: leave out --keep, or name another file", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        left = _run(chosen, results, options.folder or Path(scratch), options)
    print(show(results.document))
    broken = sum(map(failed, results.rows))
    print(f"{len(results.rows)} rows, {broken} failed, {left} cases left: {options.out}")
    return 1 if broken or left else 0


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options of the command line; a quick run compares with fewer runtimes by default."""
    options = make_parser().parse_args(argv)
    options.vs = options.vs or _PEERS[options.quick]
    return options


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few cases and rounds")
    parser.add_argument("--out", type=Path, default=Path("benchmarks.json"), metavar="FILE")
    parser.add_argument("--only", nargs="+", choices=SUITES, metavar="SUITE", help=", ".join(SUITES))
    runtimes = f"runtimes (default: {_PEERS[False]}; quick: {_PEERS[True]}, PyTorch beside one model only)"
    parser.add_argument("--vs", metavar="NAMES", help=runtimes)
    parser.add_argument("--keep", action="store_true", help="go on with --out: only what is missing")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keeps what was built")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no case after so long")
    parser.add_argument("--list", action="store_true", help="only list suites and cases")
    parser.add_argument("--suite", choices=SUITES, help=argparse.SUPPRESS)
    parser.add_argument("--cases", type=json.loads, help=argparse.SUPPRESS)
    return parser


def _run(chosen: Sequence[Suite], results: ResultsFile, folder: Path, options: argparse.Namespace) -> int:
    """Measure what is missing; gives the number of cases that were not begun."""
    end = time.monotonic() + 60 * options.minutes
    left = 0
    for suite in chosen:
        cases = [case for case in suite.cases(options.quick) if not results.has(suite.name, case)]
        while cases and time.monotonic() < end:
            for answer in answers(suite, cases, folder, end, options):
                cases.remove(answer["case"])
                results.forget(suite.name, answer["case"])
                results.add(complete(suite, answer))
                print(_line(suite, answer), file=sys.stderr, flush=True)
        left += len(cases)
    return left


def answers(
    suite: Suite, cases: Sequence[str], folder: Path, end: float, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Answers of a process that measures ``cases`` one after another.  One that ends or hangs fails the case
    that it was at; the rest needs another process."""
    command = [sys.executable, "-m", "benchmarks.all", "--suite", suite.name, "--folder", str(folder)]
    command += ["--vs", options.vs, "--cases", json.dumps(list(cases)), *["--quick"] * options.quick]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[1],
        text=True,
        start_new_session=True,
    )
    try:
        for case in cases:
            if time.monotonic() >= end:
                return
            process.stdin.write("\n")
            process.stdin.flush()
            answer = _answer(process, _SILENCE[options.quick])
            if answer is None:
                reason = f"the process ended, or gave no answer for {_SILENCE[options.quick]} s"
                row = Row(case, "", failed=reason).to_json()
                yield {"case": case, "rows": [row], "seconds": 0.0, "others": 0.0}
                return
            yield answer
    except BrokenPipeError:
        yield {"case": case, "rows": [Row(case, "", failed="the process ended").to_json()]}
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def _answer(process: subprocess.Popen[str], seconds: float) -> dict[str, Any] | None:
    """The next answer; None where none comes."""
    timer = threading.Timer(seconds, lambda: os.killpg(process.pid, signal.SIGKILL))
    timer.start()
    try:
        line = process.stdout.readline()
    finally:
        timer.cancel()
    return json.loads(line) if line.endswith("\n") else None


def _serve(suite: Suite, options: argparse.Namespace) -> int:
    """Measure one case for every line of standard input; print what was found as JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is no answer
    options.folder.mkdir(parents=True, exist_ok=True)
    setup = Setup(options.quick, options.folder, tuple(options.vs.split(",")))
    with setup.stack:
        for case, _ in zip(options.cases, sys.stdin, strict=False):
            others, started = Others(), time.perf_counter()
            rows = []
            try:
                for row in suite.run(case, setup):
                    rows.append(row.to_json())
            except Exception as error:  # a row of the results
                words = f"{type(error).__name__}: {error}".splitlines()[0]
                rows.append(Row(case, "", failed=words).to_json())
            found = {"seconds": round(time.perf_counter() - started, 1), "others": round(others.cores(), 3)}
            print(json.dumps({"case": case, "rows": rows, **found}), file=answers, flush=True)
    return 0


def complete(suite: Suite, answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows as they are kept; the last of a case says that it is complete."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    for number, row in enumerate(answer["rows"], 1):
        complete = {"suite": suite.name, **row, "at": now}
        if suite.timed and not row.get("counted"):
            complete["others"] = answer.get("others", 0.0)
        if number == len(answer["rows"]):
            complete |= {"seconds": answer.get("seconds", 0.0), "last": True}
        yield complete


def _line(suite: Suite, answer: dict[str, Any]) -> str:
    words = [row["failed"] for row in answer["rows"] if "failed" in row]
    text = f"{suite.name}: {answer['case']}, {answer.get('seconds', 0.0):.0f} s"
    if suite.timed and (others := answer.get("others", 0.0)) > DISTURBED:
        text += f", others used {others:.1f} cores"
    return text + "".join(f"\n  failed: {one}" for one in words)


if __name__ == "__main__":
    sys.exit(main())
