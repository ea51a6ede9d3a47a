"""``python -m tests.campaign.guard_pages``: kernels beside memory that nobody may touch.

Generated graphs are built and run in a process where each input, output and intermediate tensor ends at a
page that cannot be read or written, and then in one where each begins behind such a page.  A kernel that goes
beyond its tensors ends the process, which tells the kernel, how far, and of what; writes to the bytes that
alignment leaves over are reported.  Every call is made with three contents of fresh memory: a result that
differs was computed from what nothing had written, and one that is not ONNX Runtime's is told as well.

``--open`` gives each graph an axis of a range of sizes; ``--images`` generates networks of convolutions,
pools, pads and concatenations in their place, most with open batches and extents; ``--pytest ARGUMENTS``
guards the models of tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.campaign.graphs.settings import add_options

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PLACES = ("end", "start")


def compiled(folder: Path) -> Path:
    """The library that is preloaded."""
    library = folder / "guard.so"
    command = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-o", str(library), str(HERE / "guard.cc")]
    subprocess.run([*command, "-ldl"], check=True)
    return library


def environment(library: Path, place: str, log: Path, alignment: int = 16) -> dict[str, str]:
    """Variables of a process whose blocks lie at one end of their pages."""
    return {
        **os.environ,
        "LD_PRELOAD": str(library),
        "GUARD_LIBRARY": str(library),
        "GUARD_AT": place,
        "GUARD_LOG": str(log),
        "GUARD_ALIGNMENT": str(alignment),
    }


def graphs(options: argparse.Namespace, library: Path, place: str, end: float) -> Iterator[str]:
    """Faults of the generated graphs, each with its seed."""
    seed, last = options.seed, options.seed + options.count
    while seed < last and time.monotonic() < end:
        log = library.with_suffix(".log")
        log.write_text("")
        command = [sys.executable, "-m", "tests.campaign.guard_pages.process", str(seed), str(last)]
        command += ["--nodes", str(options.nodes), "--until", str(end), "--target", options.target]
        command += ["--open"] * options.open + ["--arena"] * options.arena
        command += ["--images"] * options.images
        command += ["--precision", options.precision] if options.precision else []
        command += ["--threads", str(options.threads)] if options.threads else []
        variables = environment(library, place, log, options.alignment)
        child = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)
        assert child.stdout
        for line in child.stdout:
            word, number, *said = line.split(maxsplit=2)
            if word == "begin":
                seed = int(number)
            elif word == "fault":
                yield f"seed {number}, {place}: {said[0].strip()}"
            elif word == "sum":
                print(f"{place}: {line.strip()}", flush=True)
        child.wait()
        for line in dict.fromkeys(log.read_text().splitlines()):
            yield f"seed {seed}, {place}: {line}"
        if not child.returncode:
            return
        yield f"seed {seed}, {place}: the process ended with {child.returncode}"
        seed += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.guard_pages", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first graph")
    parser.add_argument("--nodes", type=int, default=12, help="most nodes of a graph")
    parser.add_argument("--open", action="store_true", help="with an axis of a range of sizes")
    parser.add_argument("--images", action="store_true", help="networks over signals, images and volumes")
    parser.add_argument("--arena", action="store_true", help="intermediate tensors share an arena, as usual")
    parser.add_argument(
        "--alignment",
        type=int,
        help="of blocks at an end, in bytes; by default 16, what inputs of a library have, and 64 for "
        "tests, some of which compile kernels without what libraries are compiled with",
    )
    parser.add_argument("--at", choices=PLACES, action="append", help="end of the pages; both by default")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after this time")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, help="arguments of pytest")
    add_options(parser)
    options = parser.parse_args()
    options.alignment = options.alignment or (64 if options.pytest else 16)
    end, faults = time.monotonic() + 60 * options.minutes, []
    with tempfile.TemporaryDirectory(prefix="guard-pages-") as name:
        library = compiled(Path(name))
        for place in options.at or PLACES:
            if options.pytest:
                log = library.with_suffix(".log")
                command = [sys.executable, "-m", "pytest", "-p", "tests.campaign.guard_pages.plugin"]
                command += ["-p", "no:faulthandler"]
                command += ["--arena"] * options.arena + options.pytest
                variables = environment(library, place, log, options.alignment)
                ended = subprocess.run(command, cwd=ROOT, env=variables).returncode
                found = log.read_text().splitlines() if log.exists() else []
                faults += [f"{place}: {line}" for line in dict.fromkeys(found)]
                faults += [f"{place}: pytest ended with {ended}"] if ended < 0 else []
                log.unlink(missing_ok=True)
                continue
            for fault in graphs(options, library, place, end):
                print(fault, flush=True)
                faults.append(fault)
    print(f"{len(faults)} faults", *faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
