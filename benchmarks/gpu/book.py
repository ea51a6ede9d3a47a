"""The results: what an earlier command has left, and every new row on disk when it is known."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetero_tvm.errors import UsageError

FINAL = ("ok", "refused")
"""Rows with such a status are not measured again; others once more."""
_TRIES = 2


class Book:
    """Sections of rows.

    Parameters
    ----------
    path : the JSON file; None keeps the document in memory.
    head : facts of this machine and run; ``device`` of a file that is continued must have the same name.
    minutes : nothing is started after these.
    """

    def __init__(self, path: Path | None, head: dict[str, Any], minutes: float):
        self.document: dict[str, Any] = dict(head)
        self._path = path
        self._end = time.monotonic() + 60 * minutes
        self.skipped: list[str] = []
        if path is not None and path.exists():
            before = json.loads(path.read_text())
            if before["device"].get("name") != head["device"].get("name"):
                raise UsageError(
                    f"{path} is of {before['device'].get('name')}, this is {head['device'].get('name')}",
                    hint="give another --out",
                )
            self.document = {**before, **head}

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def rows(self, section: str) -> list[dict[str, Any]]:
        return self.document.setdefault("sections", {}).setdefault(section, [])

    def forget_bad(self) -> None:
        """Drop rows that are not right: whatever was wrong with them has been mended."""
        for rows in self.document.get("sections", {}).values():
            rows[:] = [row for row in rows if row["status"] in FINAL]

    def row(
        self, section: str, task: str, measure: Callable[[], dict[str, Any]], reserve: float = 0.0
    ) -> dict[str, Any] | None:
        """Measure a row unless it is there, or less than ``reserve`` seconds are left.

        What ``measure`` raises becomes a row with status ``failed``.
        """
        rows = self.rows(section)
        known = next((row for row in rows if row["task"] == task), None)
        tries = known.get("tries", 1) if known is not None else 0
        if known is not None and (known["status"] in FINAL or tries >= _TRIES):
            return known
        if self.seconds_left <= reserve:
            self.skipped.append(f"{section}: {task}")
            return None
        began = time.monotonic()
        try:
            found = measure()
        except Exception as error:  # the other rows are worth having
            text = str(error).strip().splitlines() or [""]
            found = {"status": "failed", "why": f"{type(error).__name__}: {text[0]} ... {text[-1]}"[:800]}
        row = {"task": task, **found, "tries": tries + 1, "took": round(time.monotonic() - began, 1)}
        rows[:] = [old for old in rows if old["task"] != task] + [row]
        self.write()
        print(f"  {task}: {summary(row)}", file=sys.stderr, flush=True)
        return row

    def write(self) -> None:
        """On disk, whole, when this returns; a crash leaves the old document or the new one."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".new")
        with open(fresh, "w") as file:
            file.write(json.dumps(self.document, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)


def summary(row: dict[str, Any]) -> str:
    """One line of a row for people."""
    parts = [row["status"]]
    if row["status"] not in FINAL and row.get("why"):
        parts.append(str(row["why"])[:160])
    if row.get("seconds"):
        parts.append(f"{row['seconds'] * 1e6:.1f} us")
    if row.get("tflops"):
        parts.append(f"{row['tflops']:.1f} TFLOP/s")
    if row.get("bytes_per_second"):
        parts.append(f"{row['bytes_per_second'] / 1e9:.0f} GB/s")
    parts += [f"{ratio:.2f} x {peer}" for peer, ratio in row.get("speed_of", {}).items() if ratio]
    families = row.get("families", {})
    parts += [f"{name} {one['speed']:.2f} x best" for name, one in families.items() if one["speed"]]
    parts += [f"GOAL MISSED: {peer}" for peer, met in row.get("goals", {}).items() if met is False]
    return ", ".join([*parts, f"{row.get('took', 0):.0f} s"])
