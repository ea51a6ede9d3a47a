"""``python -m tests.campaign.soak``: calls for an hour, with the memory, threads and files of every process.

Two servers run side by side on one library: a process whose eight threads call, and one that loads in the
parent, forks four children and lets each call; every minute it replaces a child.  Every result is compared
with the first, bit by bit.  With ``--leaks`` it instead counts what loads, callers and files leave behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import monotonic, sleep

import numpy as np

from tests.campaign import processes, small_models

ROOT = Path(__file__).resolve().parents[2]
CALLERS, CHILDREN, REPLACED_SECONDS = 8, 4, 60.0


def exported(folder: Path, seed: int = 0) -> Path:
    """A small library, made in a process of its own so that no compiler is loaded here."""
    model = small_models.save(folder / f"network{seed}.onnx", seed=seed)
    path = folder / f"network{seed}.so"
    command = [sys.executable, "-m", "hetero_tvm.build", str(model), "--out", str(path), "-q"]
    subprocess.run([*command, "--no-shipped-records", "--logs", str(folder / "logs")], check=True, cwd=ROOT)
    return path


def sample(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((24, 96)).astype(np.float32)


class Counts:
    """Calls and wrong results of one process, in a file that others read."""

    def __init__(self, path: Path):
        self.path, self.calls, self.wrong = path, 0, 0

    def note(self, right: bool) -> None:
        self.calls += 1
        self.wrong += not right

    def save(self) -> None:
        fresh = self.path.with_suffix(".fresh")
        fresh.write_text(json.dumps([self.calls, self.wrong]))
        os.replace(fresh, self.path)


def call_for_ever(library: object, truths: list[np.ndarray], counts: Counts, pause: float, seed: int) -> None:
    """Calls with the samples in turn; results of earlier calls must stay as they are."""
    rng = random.Random(seed)
    inputs = [sample(index) for index in range(len(truths))]
    kept: list[tuple[int, np.ndarray]] = []
    while True:
        index = rng.randrange(len(inputs))
        kept.append((index, library(inputs[index])))  # type: ignore[operator]
        if len(kept) > 3:
            earlier, result = kept.pop(0)
            counts.note(np.array_equal(result, truths[earlier]))
        sleep(rng.uniform(0, 2 * pause))


def save_for_ever(counts: Counts) -> None:
    while True:
        counts.save()
        sleep(5)


def serve_threads(path: Path, folder: Path, pause: float) -> None:
    """Eight callers in one process; now and then one ends and another begins."""
    from hetero_tvm.runtime import load

    library = load(path, pin=False)
    truths = [library(sample(index)).copy() for index in range(4)]
    counts = Counts(folder / f"threads-{os.getpid()}.json")
    for caller in range(CALLERS):
        arguments = (library, truths, counts, pause, caller)
        threading.Thread(target=call_for_ever, args=arguments, daemon=True).start()

    def short() -> None:
        counts.note(np.array_equal(library(sample(0)), truths[0]))

    while True:
        for _ in range(5):
            thread = threading.Thread(target=short)
            thread.start()
            thread.join()
        counts.save()
        sleep(5)


def serve_forked(path: Path, folder: Path, pause: float) -> None:
    """Load, fork, let the children call; replace one every minute."""
    from hetero_tvm.runtime import load

    library = load(path, pin=False)
    truths = [library(sample(index)).copy() for index in range(4)]
    children: list[int] = []
    while True:
        while len(children) < CHILDREN:
            pid = os.fork()
            if pid == 0:
                counts = Counts(folder / f"forked-{os.getpid()}.json")
                threading.Thread(target=save_for_ever, args=(counts,), daemon=True).start()
                try:
                    call_for_ever(library, truths, counts, pause / 2, os.getpid())
                finally:
                    os._exit(9)
            children.append(pid)
        end = monotonic() + REPLACED_SECONDS
        while monotonic() < end:
            sleep(1)
            library(sample(0))  # the parent calls as well
            for child in children:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    raise SystemExit(f"a child ended with {os.waitstatus_to_exitcode(status)}")
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children.pop(0), 0)


def soak(minutes: float, pause: float, folder: Path, out: Path | None) -> bool:
    """Run both servers and sample them; whether all was well."""
    path, mark = exported(folder), processes.new_mark()
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, processes.MARK: mark, "PYTHONPATH": paths}
    servers = {}
    for kind in ("threads", "forked"):
        command = [sys.executable, "-m", "tests.campaign.soak", "--serve", kind, str(path), str(folder)]
        servers[kind] = subprocess.Popen([*command, "--pause", str(pause)], env=environment, cwd=ROOT)
    start, rows, dead = monotonic(), [], []
    try:
        while monotonic() - start < 60 * minutes and not dead:
            sleep(min(10.0, 60 * minutes / 20))
            row = {"seconds": round(monotonic() - start), **_sample(servers)}
            rows.append(row)
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            dead = [kind for kind, server in servers.items() if server.poll() is not None]
    finally:
        processes.kill_all(mark)
        for server in servers.values():
            server.wait()
    tallies = [json.loads(file.read_text()) for file in folder.glob("*-*.json")]
    calls, wrong = sum(t[0] for t in tallies), sum(t[1] for t in tallies)
    return _tell(rows, calls, wrong, dead)


def _sample(servers: dict[str, subprocess.Popen]) -> dict[str, list[int]]:
    """Per server: processes, RSS and PSS in kB, threads and descriptors, all of its processes together."""
    found = {}
    for kind, server in servers.items():
        pids = [server.pid]
        pids += [pid for pid in processes.children(server.pid)]
        sizes = [processes.memory(pid) for pid in pids]
        found[kind] = [
            len(pids),
            sum(rss for rss, _ in sizes) // 1024,
            sum(pss for _, pss in sizes) // 1024,
            sum(map(processes.threads, pids)),
            sum(map(processes.descriptors, pids)),
        ]
    return found


def _tell(rows: list[dict], calls: int, wrong: int, dead: list[str]) -> bool:
    """A table of the curve at ten moments; growth is the last quarter against the second one."""
    print(f"{calls:,} calls, {wrong} wrong results" + (f"; ended by themselves: {dead}" if dead else ""))
    print("| seconds | server | processes | RSS MB | PSS MB | threads | descriptors |\n" + "|---" * 7 + "|")
    for row in rows[:: max(1, len(rows) // 10)]:
        for kind in ("threads", "forked"):
            count, rss, pss, threads, files = row[kind]
            line = f"| {row['seconds']} | {kind} | {count} | {rss / 1024:.1f} | {pss / 1024:.1f} |"
            print(f"{line} {threads} | {files} |")
    well = not wrong and not dead and calls > 0
    quarter = len(rows) // 4
    for kind in ("threads", "forked") if quarter else ():
        for index, name, least in ((2, "PSS kB", 4096), (3, "threads", 1), (4, "descriptors", 1)):
            second = np.median([row[kind][index] for row in rows[quarter : 2 * quarter]])
            last = np.median([row[kind][index] for row in rows[-quarter:]])
            print(f"{kind}: {name} {second:g} in the second quarter, {last:g} in the last")
            well = well and last - second <= max(least, 0.03 * second)
    return well


# what is left behind -----------------------------------------------------------------------------
def leaks(folder: Path) -> bool:
    """Figures of loads, of short callers, and of a thousand files."""
    import shutil

    from hetero_tvm.runtime import load

    paths = [exported(folder, seed) for seed in range(4)]
    pid, x, well = os.getpid(), sample(0), True

    def figures() -> tuple[float, int, int]:
        import gc

        gc.collect()
        sleep(0.5)
        return processes.memory(pid)[0] / 1e6, processes.threads(pid), processes.descriptors(pid)

    def tell(name: str, before: tuple[float, int, int], most: float) -> None:
        nonlocal well
        after = figures()
        print(
            f"| {name} | {before[0]:.1f} -> {after[0]:.1f} MB | {before[1]} -> {after[1]} | "
            f"{before[2]} -> {after[2]} |",
            flush=True,
        )
        well = (
            well and after[0] - before[0] <= most and after[1] - before[1] <= 1 and after[2] <= before[2] + 1
        )

    print("| what | RSS | threads | descriptors |\n|---|---|---|---|")
    net = load(paths[0], pin=False)
    net(x)
    before = figures()
    held = [load(paths[0], pin=False) for _ in range(31)]
    for one in held:
        one(x)
    tell("31 loads of one file, all held", before, 31.0)
    before = figures()
    for _ in range(200):
        thread = threading.Thread(target=net, args=(x,))
        thread.start()
        thread.join()
    tell("200 short-lived callers", before, 4.0)
    del held

    def visit(number: int) -> None:
        copy = folder / f"copy{number}.so"
        shutil.copyfile(paths[number % len(paths)], copy)
        assert load(copy, threads=1)(x).shape == (24, 96)
        copy.unlink()

    for number in range(50):
        visit(number)
    before = figures()
    for number in range(1000):
        visit(number)
    tell("1,000 loads and unloads of different files", before, 30.0)
    return well


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=0.05, help="mean seconds between calls of one caller")
    parser.add_argument("--leaks", action="store_true", help="count what loads and callers leave behind")
    parser.add_argument("--out", type=Path, metavar="FILE", help="every sample as JSON lines")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        kind, path, folder = options.serve
        serve = serve_threads if kind == "threads" else serve_forked
        serve(Path(path), Path(folder), options.pause)
        return 1
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        if options.leaks:
            well = leaks(Path(name))
        else:
            well = soak(options.minutes, options.pause, Path(name), options.out)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
