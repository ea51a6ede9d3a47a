"""What changed between two files of ``benchmarks/all.py`` beyond the noise.

    python benchmarks/compare.py OLD.json NEW.json [--tolerance 3] [--absolute]

Ends with status 3 where something got worse, 0 where nothing did, 2 where the files cannot be compared.

A figure that has a peer of the same version in both files is compared as *ours / peer*: both ran in turn,
so the machine's own changes cancel.  Others are compared as they are; between two machines only those that
are counted, not timed.  A change counts when it is larger than the tolerance and than three times the noise
of both files, which is known of figures that were taken in rounds (``benchmarks/measured.py``); of others a
tenth is assumed.  Rows that were measured while others used the cores are listed and not judged (``--busy``
does).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measured import DISTURBED, Figure, figure_of, noise_of, read

WORSE = 3
"""Exit status where something got worse."""
_UNKNOWN_NOISE = 0.1
_TIMES_NOISE = 3.0
_COUNTED = 0.001
"""Change of a counted figure that is told, as a fraction."""


@dataclass(frozen=True)
class Change:
    """Change of one figure.

    Parameters
    ----------
    name : suite, case and figure.
    ratio : new by old, by the peer where there is one; old by new where more is better: above 1 it is worse
        now.
    limit : least change that counts, as a fraction.
    peer : name of the runtime that both are divided by; empty: none.
    values : the figure itself, old and new, with its unit.
    undecided : why it is not judged; empty: it is.
    """

    name: str
    ratio: float
    limit: float
    peer: str
    values: str
    undecided: str = ""

    @property
    def worse(self) -> bool:
        return not self.undecided and self.ratio > 1 + self.limit

    @property
    def better(self) -> bool:
        return not self.undecided and self.ratio < 1 / (1 + self.limit)

    def __str__(self) -> str:
        beside = f", beside {self.peer}" if self.peer else ""
        return f"{self.name}: {self.values}, x {self.ratio:.3f}{beside} (noise: {self.limit:.1%})"


def changes(old: Mapping[str, Any], new: Mapping[str, Any], options: argparse.Namespace) -> Iterator[Change]:
    """Changes of all figures that both documents have."""
    same = _same_machine(old, new)
    before = {_key(row): row for row in old["rows"] if "failed" not in row}
    for row in new["rows"]:
        past = before.get(_key(row))
        if past is None or "failed" in row:
            continue
        yield _change(past, row, same, options)


def _key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["suite"], row["case"], row["figure"]


def _same_machine(*documents: Mapping[str, Any]) -> bool:
    first, second = ((d["machine"]["model_name"], d["threads"]) for d in documents)
    return first == second


def _change(
    past: Mapping[str, Any], row: Mapping[str, Any], same: bool, options: argparse.Namespace
) -> Change:
    values = f"{past['value']:.4g} -> {row['value']:.4g} {row['unit']}".rstrip()
    counted = bool(row.get("counted"))
    name = "" if counted or options.absolute else _quietest_peer(past, row)
    if name:
        (old, old_noise), (new, new_noise) = (_beside(one, name) for one in (past, row))
    else:
        old, new = past["value"], row["value"]
        old_noise, new_noise = past["noise"], row["noise"]
    noises = [_UNKNOWN_NOISE if noise is None else noise for noise in (old_noise, new_noise)]
    limit = _COUNTED if counted else max(options.tolerance / 100, _TIMES_NOISE * math.hypot(*noises))
    ratio = old / new if row.get("more") else new / old if old else (1.0 if new == old else math.inf)
    busy = max(one.get("others", 0.0) for one in (past, row))
    undecided = ""
    if busy > DISTURBED and not options.busy:
        undecided = f"others used {busy:.1f} cores"
    elif not same and not name and not counted:
        undecided = "another machine"
    return Change(" / ".join(_key(row)), ratio, limit, name, values, undecided)


def _quietest_peer(past: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The peer of the same version in both whose rounds differ least from ours; empty: there is none."""
    found = {}
    for name, peer in row.get("peers", {}).items():
        other = past.get("peers", {}).get(name)
        if other is not None and other.get("version") == peer.get("version"):
            noises = (_beside(one, name)[1] for one in (past, row))
            found[name] = math.hypot(*(_UNKNOWN_NOISE if noise is None else noise for noise in noises))
    return min(found, key=found.__getitem__, default="")


def _beside(row: Mapping[str, Any], name: str) -> tuple[float, float | None]:
    """Ours by a peer's, and the noise of that ratio: of rounds that were taken in turn, round by round."""
    ours, theirs = figure_of(row), figure_of(row["peers"][name])
    return ours.value / theirs.value, _paired_noise(ours, theirs)


def _paired_noise(ours: Figure, theirs: Figure) -> float | None:
    if len(ours.rounds) != len(theirs.rounds):
        return None
    return noise_of([a / b for a, b in zip(ours.rounds, theirs.rounds, strict=True)])


def missing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Figures that the old file has and the new one has not, or only with a failure."""
    there = {_key(row) for row in new["rows"] if "failed" not in row}
    gone = [_key(row) for row in old["rows"] if "failed" not in row and _key(row) not in there]
    return [" / ".join(key) for key in gone]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--tolerance", type=float, default=3.0, metavar="PERCENT", help="(default: 3)")
    parser.add_argument("--absolute", action="store_true", help="compare times as they are, without peers")
    parser.add_argument("--busy", action="store_true", help="judge what was measured beside others, too")
    options = parser.parse_args(argv)
    try:
        old, new = read(options.old), read(options.new)
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = list(changes(old, new, options))
    if not found:
        print("error: the files have no figure in common", file=sys.stderr)
        return 2
    gone = missing(old, new)
    groups = {
        "worse": [change for change in found if change.worse],
        "better": [change for change in found if change.better],
        "not judged": [change for change in found if change.undecided],
    }
    for heading, members in groups.items():
        if members:
            print(f"{heading}:")
        for change in sorted(members, key=lambda change: -abs(math.log(max(change.ratio, 1e-9)))):
            print(f"  {change}" + (f": {change.undecided}" if change.undecided else ""))
    if gone:
        print("missing now:\n  " + "\n  ".join(gone))
    counts = ", ".join(f"{len(members)} {heading}" for heading, members in groups.items())
    rest = len(found) - sum(map(len, groups.values()))
    print(f"{len(found)} figures: {counts}, {rest} as before, {len(gone)} missing")
    return WORSE if groups["worse"] or gone else 0


if __name__ == "__main__":
    sys.exit(main())
