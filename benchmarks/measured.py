"""Measured figures with what tells how far they are to be believed, and the file that they are kept in."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import psutil

FORMAT = 1
DISTURBED = 0.15
"""Cores that processes of others used on average; above this a time says little."""
_PACKAGES = ("apache-tvm", "numpy", "onnx", "onnxruntime", "openvino", "torch", "xgboost-cpu", "xgboost")
_LOOKED_AT = ("model_name", "microarchitecture", "cores")


def noise_of(rounds: Sequence[float]) -> float | None:
    """Half the distance between the quartiles of ``rounds`` as a fraction of their median: about half of all
    rounds lie within it.  None: nobody knows, of fewer than three."""
    if len(rounds) < 3:
        return None
    low, middle, high = np.percentile(rounds, [25, 50, 75])
    return float((high - low) / 2 / middle) if middle else None


@dataclass(frozen=True)
class Figure:
    """One figure.

    Parameters
    ----------
    value : what is compared.
    rounds : the same from each round, in the order of time; empty where it was taken once, or counted.
    version : of the runtime that it is of.
    """

    value: float
    rounds: tuple[float, ...] = ()
    version: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a results file.

    Parameters
    ----------
    case, figure : what was measured, and which figure of it.
    unit : ``ms``, ``s``, ``bytes``, ``cycles`` ...
    ours : our figure.
    more : more is better.
    counted : the figure is the same on every machine of this kind: any change is one of the program.
    peers : the same of other runtimes, measured in turn with ours.
    failed : why there is no figure.
    """

    case: str
    figure: str
    unit: str = ""
    ours: Figure = field(default_factory=lambda: Figure(0.0))
    more: bool = False
    counted: bool = False
    peers: Mapping[str, Figure] = field(default_factory=dict)
    failed: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON values, with the noise of every figure."""
        if self.failed:
            return {"case": self.case, "figure": self.figure, "failed": self.failed}
        found = {"case": self.case, "figure": self.figure, "unit": self.unit, **_figure_json(self.ours)}
        found |= {name: True for name in ("more", "counted") if getattr(self, name)}
        if self.peers:
            found["peers"] = {name: _figure_json(peer) for name, peer in self.peers.items()}
        return found


def _figure_json(figure: Figure) -> dict[str, Any]:
    rounds = [float(f"{value:.6g}") for value in figure.rounds]
    found: dict[str, Any] = {"value": float(f"{figure.value:.6g}"), "noise": noise_of(figure.rounds)}
    if found["noise"] is not None:
        found["noise"] = float(f"{found['noise']:.3g}")
    return {**found, "rounds": rounds, **({"version": figure.version} if figure.version else {})}


class Others:
    """Cores that processes outside of this one and its children use, on average, since it was made."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._start = self._now()

    def cores(self) -> float:
        """Cores; what a hypervisor gave to other guests counts too."""
        wall, everybody, own = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return max(0.0, (everybody - own) / wall) if wall > 0 else 0.0

    def _now(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        own = 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                used = process.cpu_times()
            except psutil.Error:  # ended in between: its parent's children_* have it
                continue
            own += used.user + used.system + used.children_user + used.children_system
        return datetime.datetime.now().timestamp(), sum(times[:8]) - idle, own


def facts() -> dict[str, Any]:
    """Machine, versions and date of a run."""
    import hetero_tvm
    from hetero_tvm import host

    versions = {"hetero_tvm": hetero_tvm.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "format": FORMAT,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": host.detect().to_json(),
        "kernel": platform.release(),
        "versions": versions,
        "threads": len(host.available_cores()),
        "load": os.getloadavg()[0],
    }


class ResultsFile:
    """Rows on disk, each the moment it is known.

    Parameters
    ----------
    path : a JSON file; with ``keep`` its rows are kept, and those that succeeded are not measured again.
    head : facts of the run.

    Raises
    ------
    ValueError : the file that is to be kept is of another machine, or of another kind of run.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], keep: bool):
        self._path = path
        self.document: dict[str, Any] = {**head, "rows": []}
        if keep and path.exists():
            before = read(path)
            for what, old, new in (
                ("machine", *(_machine(document) for document in (before, self.document))),
                ("versions", before["versions"], self.document["versions"]),
                ("quick", before.get("quick"), head.get("quick")),
            ):
                if old != new:
                    raise ValueError(f"{path} has another {what}: {old}, now {new}")
            self.document = {**before, "continued": head["date"]}
        self._write()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.document["rows"]

    def has(self, suite: str, case: str) -> bool:
        """Whether a case is complete; that another runtime failed does not matter."""
        found = [row for row in self.rows if (row["suite"], row["case"]) == (suite, case)]
        return any(row.get("last") for row in found) and not any(failed(row) for row in found)

    def forget(self, suite: str, case: str) -> None:
        """Rows of a case that failed, or whose measurement was cut off."""
        self.document["rows"] = [row for row in self.rows if (row["suite"], row["case"]) != (suite, case)]

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows, and have them on disk."""
        self.rows.extend(dict(row) for row in rows)
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        head = {key: value for key, value in self.document.items() if key != "rows"}
        lines = ",\n  ".join(json.dumps(row) for row in self.rows)
        text = json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n'
        part.write_text(text)
        os.replace(part, self._path)


def failed(row: Mapping[str, Any]) -> bool:
    """Whether the whole case of a row failed; rows of other runtimes that failed name their figure."""
    return "failed" in row and not row["figure"]


def _machine(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: document["machine"].get(key) for key in _LOOKED_AT}


def read(path: Path) -> dict[str, Any]:
    """A results file.

    Raises
    ------
    ValueError : it is something else, or of a later format.
    """
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or document.get("format") != FORMAT or "rows" not in document:
        raise ValueError(f"{path} was not written by benchmarks/all.py (format {FORMAT})")
    return document


def figure_of(data: Mapping[str, Any]) -> Figure:
    """The figure that a row, or a peer in it, holds."""
    return Figure(data["value"], tuple(data["rounds"]), data.get("version", ""))
