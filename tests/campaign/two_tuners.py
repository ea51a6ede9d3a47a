"""``python -m tests.campaign.two_tuners``: searches that add to one folder of records at the same time.

Each round starts two ``tune`` commands, the second one a random moment after the first, with libraries in
folders of their own or in one.  In every third round the first of them is ended by ``kill -9`` on its way.
Then: whoever lived ends well, the file of records has no torn line, no record of either is lost, no trial
was measured by one that the other had recorded before it proposed it (a batch of each may be on its way),
the libraries are whole and no process lives on.  A third command then finds nothing left to do.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.campaign import kills
from tests.campaign.kills import TRIALS, Tally, Workplace

BATCH = 8
"""Candidates that one search measures at a time: as many of each may be the same."""


def both(place: Workplace, tally: Tally, rng: random.Random, apart: float, one_out: bool, kill: bool) -> None:
    """Two searches, and what is left of them."""
    first = place.start(place.tune())
    second_out = place.out if one_out else place.folder / "other"
    command = place.tune()
    command[command.index("--out") + 1] = str(second_out)
    try:
        first.wait(apart)
    except kills.subprocess.TimeoutExpired:
        pass
    second = place.start(command)
    if kill:
        try:
            first.wait(rng.uniform(0.0, 2 * apart))
        except kills.subprocess.TimeoutExpired:
            kills.kill_group(first)
            tally.counts["killed"] += 1
    for name, process in (("first", first), ("second", second)):
        _, said = process.communicate()
        expected = (0, -kills.signal.SIGKILL) if kill and name == "first" else (0,)
        if process.returncode not in expected:
            tally.fault(f"the {name} ends with {process.returncode}: {said[-300:]}")
        if "Traceback" in said:
            tally.fault(f"a traceback of the {name}: {said[-500:]}")
    place.check_gone(tally)
    records, torn = place.records()
    if torn > kill:
        tally.fault(f"{torn} torn lines")
    trials = place.trials(believed=True)
    again = sum(count - 1 for count in Counter(trials).values())
    tally.counts["measured by both at once"] += again
    if again > BATCH:
        tally.fault(f"{again} trials were measured by both")
    tally.counts["trials"] += len(set(trials))
    for out in {place.out, second_out}:
        place.out = out
        place.check_whole(tally)
    place.out = place.folder / "out"


def searches(folder: Path, rounds: int, rng: random.Random) -> Tally:
    """Rounds of two searches, each in a folder of its own."""
    tally = Tally("two tuners")
    seconds = kills.reference_seconds(folder)
    for _ in tally.through(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            place, faults = Workplace(Path(name)), len(tally.faults)
            kill = tally.moments % 3 == 0
            both(place, tally, rng, rng.uniform(0.0, 0.5) * seconds, tally.moments % 2 == 0, kill)
            before = place.trials(believed=True)
            said = kills.after(place, tally, place.tune(), before)
            if wanting := place.wanting(most=TRIALS + 2 * BATCH):
                tally.fault(f"in the end: {wanting}")
            if len(tally.faults) > faults:
                place.keep(tally, said)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.two_tuners", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for records and results of rounds with faults")
    options = parser.parse_args()
    kills.KEEP = options.keep
    with tempfile.TemporaryDirectory(prefix="two-tuners-") as name:
        tally = searches(Path(name), options.rounds, random.Random(options.seed))
    print("| series | rounds | faults | counts | last process gone after |\n|---|---|---|---|---|")
    print(tally.row())
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
