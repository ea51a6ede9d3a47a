"""The results file: entries of earlier commands are kept, and every new one is on disk when it is known."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetero_tvm.errors import UsageError

Entry = dict[str, Any]
"""Line of the results: ``task``, ``status``, ``tries``, ``took`` (seconds), and what was measured."""

FINAL = ("ok", "refused")
"""Entries with such a status are not measured again; others once more."""
_TRIES = 2


class ResultsFile:
    """Sections of entries.

    Parameters
    ----------
    path : the JSON file; None keeps the document in memory.
    head : facts of this machine and run; ``device`` of a file that is continued must have the same name.
    minutes : nothing is started after these.
    on_write : called when the file has been written.
    """

    def __init__(
        self,
        path: Path | None,
        head: dict[str, Any],
        minutes: float,
        on_write: Callable[[], None] = lambda: None,
    ):
        self.document: dict[str, Any] = dict(head)
        self._path, self._on_write = path, on_write
        self._end = time.monotonic() + 60 * minutes
        self.skipped: list[str] = []
        """Entries that were not begun because time was over."""
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
        """Seconds until nothing may be started any more; negative afterwards."""
        return self._end - time.monotonic()

    def entries(self, section: str) -> list[Entry]:
        """Entries of a section, in the order in which they were measured."""
        return self.document.setdefault("sections", {}).setdefault(section, [])

    def all_entries(self) -> list[Entry]:
        """Entries of all sections."""
        return [entry for entries in self.document.get("sections", {}).values() for entry in entries]

    def forget_bad(self) -> None:
        """Drop entries that are not right: whatever was wrong with them has been mended."""
        for entries in self.document.get("sections", {}).values():
            entries[:] = [entry for entry in entries if entry["status"] in FINAL]

    def entry(
        self, section: str, task: str, measure: Callable[[], dict[str, Any]], reserve: float = 0.0
    ) -> Entry | None:
        """Measure an entry unless it is there, or less than ``reserve`` seconds are left (None).

        What ``measure`` raises becomes an entry with status ``failed``.
        """
        entries = self.entries(section)
        known = next((entry for entry in entries if entry["task"] == task), None)
        tries = known.get("tries", 1) if known is not None else 0
        if known is not None and (known["status"] in FINAL or tries >= _TRIES):
            return known
        if self.seconds_left <= reserve:
            self.skipped.append(f"{section}: {task}")
            return None
        began = time.monotonic()
        try:
            found = measure()
        except Exception as error:  # the other entries are worth having
            text = str(error).strip().splitlines() or [""]
            found = {"status": "failed", "why": f"{type(error).__name__}: {text[0]} ... {text[-1]}"[:800]}
        fresh = {"task": task, **found, "tries": tries + 1, "took": round(time.monotonic() - began, 1)}
        entries[:] = [old for old in entries if old["task"] != task] + [fresh]
        self.write()
        print(f"  {task}: {summary(fresh)}", file=sys.stderr, flush=True)
        return fresh

    def write(self) -> None:
        """Write the document: on disk, whole, when this returns; a crash leaves the old or the new one."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".new")
        with open(fresh, "w") as file:
            file.write(json.dumps(self.document, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
        self._on_write()


def summary(entry: Entry) -> str:
    """Line on an entry, for people."""
    parts = [entry["status"]]
    if entry["status"] != "ok" and entry.get("why"):
        parts.append(str(entry["why"])[:160])
    if entry.get("seconds"):
        parts.append(f"{entry['seconds'] * 1e6:.1f} us")
    if entry.get("tflops"):
        parts.append(f"{entry['tflops']:.1f} TFLOP/s")
    if entry.get("bytes_per_second"):
        parts.append(f"{entry['bytes_per_second'] / 1e9:.0f} GB/s")
    parts += [f"{ratio:.2f} x {peer}" for peer, ratio in entry.get("speed_of", {}).items() if ratio]
    families = entry.get("families", {})
    parts += [f"{name} {one['speed']:.2f} x best" for name, one in families.items() if one["speed"]]
    parts += [f"GOAL MISSED: {peer}" for peer, met in entry.get("goals", {}).items() if met is False]
    return ", ".join([*parts, f"{entry.get('took', 0):.0f} s"])
