"""``python -m tests.campaign.kills``: commands that are killed at random moments, and what comes after.

A ``tune``, a ``build`` and an export are ended by ``kill -9`` (of the whole process group) at moments drawn
evenly over their duration.  Then: no process may live on, what lies on the disk is the old or the new
file, and the same command, given again, ends well, measures no candidate twice, and leaves neither lock
nor temporary file.  The other signals, and the death of a worker alone, come after.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

from tests.campaign import processes, small_models

ROOT = Path(__file__).resolve().parents[2]
ORPHAN_SECONDS = 15.0
"""A worker that is in the middle of a build may finish that first."""
TRIALS = 24
FAR = 2.0
"""Times beyond this multiple of the best may be measured again."""
KEEP: Path | None = None
"""Folder for what is left of cases with faults."""
DISTURBED = "disturbed"
"""Status of a trial that is not to be trusted: it may be measured again."""


@dataclass
class Tally:
    """What a series of kills showed."""

    name: str
    moments: int = 0
    faults: list[str] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    orphan_seconds: float = 0.0

    def through(self, moments: int) -> Iterator[int]:
        """Count the moments, and tell after each how the series stands: one takes up to a minute."""
        start = monotonic()
        for self.moments in range(1, moments + 1):
            yield self.moments
            told = f"{self.moments} of {moments}, {len(self.faults)} faults, {monotonic() - start:.0f} s"
            counts = "".join(f", {value} {name}" for name, value in sorted(self.counts.items()))
            print(f"{self.name}: {told}{counts}", file=sys.stderr, flush=True)

    def fault(self, text: str) -> None:
        self.faults.append(text)
        print(f"FAULT {self.name} #{self.moments}: {text}", flush=True)

    def row(self) -> str:
        counts = ", ".join(f"{value} {name}" for name, value in sorted(self.counts.items()))
        return (
            f"| {self.name} | {self.moments} | {len(self.faults)} | {counts} | {self.orphan_seconds:.1f} s |"
        )


class Workplace:
    """Folders of one series: model, records, results, temporary files, compiled helpers."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.logs, self.out, self.temporary = folder / "logs", folder / "out", folder / "tmp"
        self.temporary.mkdir()
        self.model = small_models.save(folder / "network.onnx")
        self.mark = processes.new_mark()

    def keep(self, tally: Tally, said: str) -> None:
        """Copy what a fault may be told from: records, results, and what the last command said."""
        if KEEP is not None:
            kept = KEEP / f"{tally.name} {tally.moments}".replace(" ", "-").replace(",", "")
            for folder in (self.logs, self.out):
                if folder.exists():
                    shutil.copytree(folder, kept / folder.name, dirs_exist_ok=True)
            (kept / "said.txt").write_text(said)

    def command(self, name: str, *options: str) -> list[str]:
        common = ["--logs", str(self.logs), "--out", str(self.out), "--no-shipped-records", "-q"]
        return [sys.executable, "-m", f"hetero_tvm.{name}", str(self.model), *common, *options]

    def tune(self, trials: int = TRIALS) -> list[str]:
        return self.command("tune", "--trials", str(trials), "--patience", "0")

    def start(self, command: list[str]) -> subprocess.Popen:
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, processes.MARK: self.mark, "TMPDIR": str(self.temporary)}
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            command, env={**environment, "PYTHONPATH": paths}, start_new_session=True, text=True, **pipes
        )

    def run(self, command: list[str]) -> tuple[int, str, float]:
        """Status, what was said on stderr, seconds."""
        start = monotonic()
        process = self.start(command)
        _, said = process.communicate()
        return process.returncode, said, monotonic() - start

    def records(self) -> tuple[list[dict], int]:
        """Records on disk, and how many lines are none."""
        found, torn = [], 0
        for path in self.logs.glob("*.jsonl"):
            for line in path.read_bytes().split(b"\n"):
                if line.strip():
                    try:
                        found.append(json.loads(line))
                    except ValueError:
                        torn += 1
        return found, torn

    def trials(self, believed: bool = False) -> list[tuple[str, str]]:
        """Task and candidate of each trial on disk, without those that the search took back.

        ``believed`` : without those whose first time is hard to believe.  The search looks at them again,
        and takes them back where others have the cores at that moment.
        """
        found: list[tuple[str, str]] = []
        first: dict[tuple[str, str], float] = {}
        best: dict[str, float] = {}
        for record in self.records()[0]:
            if record.get("role", "trial") == "trial":
                point = record.get("point") or record.get("trace")
                one = (record["key"], json.dumps(point, sort_keys=True))
                if record["status"] == DISTURBED:
                    found = [other for other in found if other != one]
                else:
                    found.append(one)
                    seconds = record.get("seconds") or 0.0
                    first.setdefault(one, seconds)
                    best[one[0]] = min(best.get(one[0], seconds), seconds)
        return [one for one in found if not believed or first[one] < FAR * best[one[0]]]

    def wanting(self, most: int = TRIALS) -> str | None:
        """What is wrong with the number of trials once a search is through."""
        count = len(set(self.trials()))
        disturbed = sum(record.get("status") == DISTURBED for record in self.records()[0])
        return None if TRIALS - disturbed <= count <= most else f"{count} trials, not {TRIALS}"

    def litter(self) -> list[str]:
        """What a command that ended well must not leave."""
        # `.ses` is onnxruntime's identity; locks are files that stay, a few for all folders;
        # `cc...` are those of a compiler that was killed while it linked.
        kept = re.compile(r"\.ses|\.hetero_tvm-.*\.lock|cc\w+\.(res|s|o|cdtor\.[co]|ld|le)")
        names = [path.name for path in self.temporary.iterdir()]
        found = [f"tmp/{name}" for name in names if not kept.fullmatch(name)]
        expected = {"model.so", "model.manifest.json", "report.html"}
        if self.out.is_dir():
            found += [f"out/{path.name}" for path in self.out.iterdir() if path.name not in expected]
        if self.logs.is_dir():
            found += [f"logs/{path.name}" for path in self.logs.iterdir() if path.suffix != ".jsonl"]
        return found

    def check_whole(self, tally: Tally) -> None:
        """The library on disk, if any, is whole, and its sidecar belongs to it."""
        from hetero_tvm.errors import HeteroTVMError
        from hetero_tvm.runtime import checksum
        from hetero_tvm.runtime.manifest import read_manifest, sidecar_path, verify_sidecar

        path = self.out / "model.so"
        if not path.exists():
            tally.counts["without a library yet"] += 1
            return
        try:
            read_manifest(path)
            checksum.verify(path)
            verify_sidecar(path)
        except HeteroTVMError as error:
            tally.fault(f"a torn library: {error}")
        tally.counts["without the sidecar"] += not sidecar_path(path).exists()

    def check_gone(self, tally: Tally) -> None:
        left, seconds = processes.wait_until_gone(self.mark, ORPHAN_SECONDS)
        tally.orphan_seconds = max(tally.orphan_seconds, seconds)
        if left:
            tally.fault(f"processes live on: {left}")
            processes.kill_all(self.mark)


def killed(
    place: Workplace, command: list[str], moment: float, how: Callable[[subprocess.Popen], None]
) -> tuple[int | None, str]:
    """Run a command and end it after ``moment`` seconds; its status and what it said last.

    The status is None when it was through before.
    """
    process = place.start(command)
    try:
        process.wait(moment)
        process.stderr.close()
        return None, ""
    except subprocess.TimeoutExpired:
        how(process)
    _, said = process.communicate()
    return process.returncode, said


def kill_group(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGKILL)


def repeated(before: list[tuple[str, str]], now: list[tuple[str, str]]) -> int:
    """Trials among those on disk now that are known points measured again."""
    known = Counter(before)
    return sum((Counter(one for one in now if one in known) - known).values())


def after(place: Workplace, tally: Tally, command: list[str], before: list[tuple[str, str]]) -> str:
    """The same command again: it ends well, repeats nothing of ``before``, and cleans up.  Returns what it
    said."""
    status, said, _ = place.run(command)
    if status:
        tally.fault(f"the resumed command ends with {status}: {said[-300:]}")
    # What the command itself found may be there twice: it looks again where a time is far from the predicted
    # one, which may be less than twice the best.
    again = repeated(before, place.trials(believed=True))
    if again:
        tally.fault(f"{again} known points were proposed again")
    if lost := set(before) - set(place.trials()):
        tally.fault(f"records were lost: {lost}")
    torn = place.records()[1]
    tally.counts["torn lines"] += torn
    if torn > 1:
        tally.fault(f"{torn} torn lines")
    if litter := place.litter():
        tally.fault(f"litter: {litter}")
    place.check_whole(tally)
    return said


def tuning(folder: Path, moments: int, rng: random.Random, how: str = "kill -9") -> Tally:
    """Kills of ``tune``, each followed by a resume that must come to exactly its trials."""
    ways = {
        "kill -9": kill_group,
        "SIGTERM": lambda p: os.killpg(p.pid, signal.SIGTERM),
        "SIGHUP": lambda p: os.killpg(p.pid, signal.SIGHUP),
        "Ctrl-C": lambda p: os.killpg(p.pid, signal.SIGINT),
        "Ctrl-C twice": twice,
    }
    tally = Tally(f"tune, {how}")
    seconds = reference_seconds(folder)
    for _ in tally.through(moments):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            place = Workplace(Path(name))
            status, said = killed(place, place.tune(), rng.uniform(0.0, seconds), ways[how])
            place.check_gone(tally)
            if how != "kill -9":
                tally.counts[f"status {status}"] += 1
                check_status(tally, how, status)
                if "Traceback" in said and "in _run" in said:  # while Python starts, it is Python's to say
                    tally.fault(f"a traceback: {said[-500:]}")
            before, faults = place.trials(believed=True), len(tally.faults)
            tally.counts["trials before"] += len(before)
            said = after(place, tally, place.tune(), before)
            if wanting := place.wanting():
                tally.fault(f"after the resume: {wanting}")
            if len(tally.faults) > faults:
                place.keep(tally, said)
    return tally


def twice(process: subprocess.Popen) -> None:
    for _ in range(2):
        try:
            os.killpg(process.pid, signal.SIGINT)
        except ProcessLookupError:
            return
        sleep(0.3)


def check_status(tally: Tally, how: str, status: int | None) -> None:
    """A command that is still importing ends by the signal itself, a later one with 128 + its number."""
    number = {"SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP}.get(how, signal.SIGINT)
    # Python without a handler of ours turns Ctrl-C into status 130 by itself, or dies of the signal.
    if status not in (None, 0, 128 + number, -number, 1 if number == signal.SIGINT else None):
        tally.fault(f"status {status}")


_SECONDS: dict[Path, float] = {}


def reference_seconds(folder: Path) -> float:
    """Seconds of a whole tune here and now; the helpers in C++ are compiled by it."""
    if folder not in _SECONDS:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            place = Workplace(Path(name))
            status, said, seconds = place.run(place.tune())
            assert status == 0, said
            _SECONDS[folder] = seconds
    return _SECONDS[folder]


def building(folder: Path, moments: int, rng: random.Random) -> Tally:
    """Kills of ``build`` over an older library."""
    tally = Tally("build, kill -9")
    place = Workplace(folder)
    status, said, seconds = place.run(place.command("build"))
    assert status == 0, said
    for _ in tally.through(moments):
        old = (place.out / "model.so").read_bytes()
        if killed(place, place.command("build"), rng.uniform(0.0, seconds), kill_group)[0] is None:
            tally.counts["through before"] += 1
        place.check_gone(tally)
        tally.counts["old library"] += (place.out / "model.so").read_bytes() == old
        place.check_whole(tally)
        if tally.moments % 5 == 0 or tally.moments == moments:
            after(place, tally, place.command("build"), [])
    return tally


def exporting(folder: Path, moments: int, rng: random.Random) -> Tally:
    """Kills of processes that export again and again."""
    from hetero_tvm import api

    tally = Tally("export, kill -9")
    place = Workplace(folder)
    optimized = api.optimize_model(api.import_model(str(place.model)))
    built = api.build_model(optimized, logs=place.logs, use_shipped=False)  # never run: it may fork
    start = monotonic()
    built.export(place.out)
    seconds = monotonic() - start
    for _ in tally.through(moments):
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                while True:
                    built.export(place.out)
            finally:
                os._exit(1)
        sleep(rng.uniform(0.0, 2 * seconds))
        for _ in range(100):
            try:
                os.killpg(pid, signal.SIGKILL)
                break
            except ProcessLookupError:  # not a leader yet
                sleep(0.001)
        _, code = os.waitpid(pid, 0)
        if code != signal.SIGKILL:
            tally.fault(f"the export ended by itself: {code}")
        tally.counts["left scratch"] += bool(list(place.out.glob(".export-*")))
        place.check_whole(tally)
    built.export(place.out)
    if litter := place.litter():
        tally.fault(f"litter: {litter}")
    return tally


def workers(folder: Path, moments: int, rng: random.Random, which: str) -> Tally:
    """The death of the fork server, or of one candidate's process, alone: the run goes on."""
    tally = Tally(f"tune, kill -9 of its {which}")
    seconds = reference_seconds(folder)
    for _ in tally.through(moments):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            place = Workplace(Path(name))
            process = place.start(place.tune())
            sleep(rng.uniform(0.2, 0.7) * seconds)
            victim = next(_workers(place.mark, which, 10.0), None)
            if victim is not None and process.poll() is None:
                tally.counts["killed"] += 1
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            _, said = process.communicate()
            if process.returncode:
                tally.fault(f"status {process.returncode}: {said[-300:]}")
            trials = place.trials(believed=True)
            if (wanting := place.wanting()) or len(trials) != len(set(trials)):
                tally.fault(f"{wanting}; {len(trials)} trials, {len(set(trials))} points")
            tally.counts["trials lost"] += sum(r.get("status") == "crash" for r in place.records()[0])
            place.check_gone(tally)
    return tally


def _workers(mark: str, which: str, seconds: float) -> Iterator[int]:
    """Processes of a search: its fork server, or the children of that."""
    end = monotonic() + seconds
    while monotonic() < end:
        found = {pid for pid, line in processes.marked(mark).items() if "measure.zygote" in line}
        for pid in found:
            if (processes.parent_of(pid) in found) == (which == "child"):
                yield pid
        sleep(0.002)


SERIES: dict[str, Callable[[Path, int, random.Random], Tally]] = {
    "tune": tuning,
    "build": building,
    "export": exporting,
    "SIGTERM": lambda f, n, r: tuning(f, max(1, n // 10), r, "SIGTERM"),
    "SIGHUP": lambda f, n, r: tuning(f, max(1, n // 10), r, "SIGHUP"),
    "Ctrl-C": lambda f, n, r: tuning(f, max(1, n // 10), r, "Ctrl-C"),
    "Ctrl-C twice": lambda f, n, r: tuning(f, max(1, n // 10), r, "Ctrl-C twice"),
    "server": lambda f, n, r: workers(f, max(1, n // 10), r, "server"),
    "child": lambda f, n, r: workers(f, max(1, n // 10), r, "child"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.kills", description=__doc__)
    parser.add_argument("--moments", type=int, default=50, help="kills per series; signals get a tenth")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(SERIES), help="series to run")
    parser.add_argument("--keep", type=Path, help="folder for records and results of cases with faults")
    options = parser.parse_args()
    global KEEP
    KEEP = options.keep
    tallies = []
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        for series in options.only or SERIES:
            folder = Path(name) / series.replace(" ", "-")
            folder.mkdir()
            tally = SERIES[series](folder, options.moments, random.Random(f"{options.seed} {series}"))
            tallies.append(tally)
            print(tally.row(), flush=True)
    print("\n| series | moments | faults | counts | last process gone after |\n|---|---|---|---|---|")
    print("\n".join(tally.row() for tally in tallies))
    return 1 if any(tally.faults for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
