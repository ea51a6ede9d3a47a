"""Comparison with an earlier measurement: what got slower beyond the noise, for a check in CI."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero_tvm.errors import UsageError
from hetero_tvm.host.terminal import figure

_BEST = "undisturbed_per_second"
"""Rate of streams in the windows that others disturbed least; documents of earlier versions have none."""


@dataclass(frozen=True)
class Change:
    """Change of one figure from the baseline to now.

    Parameters
    ----------
    name : what was measured.
    before, now : times in ms, or calls per second.
    ratio : now / before as times: above 1 it is slower now.
    slower, faster : whether that is beyond the tolerance; a latency must be so by its median and by its 10th
        percentile, a throughput by all calls and by its best windows, which a busy machine disturbs least.
    """

    name: str
    before: float
    now: float
    ratio: float
    slower: bool
    faster: bool

    def __str__(self) -> str:
        verdict = "slower" if self.slower else "faster" if self.faster else "as before"
        before, now = figure(self.before, 4), figure(self.now, 4)
        return f"{self.name}: {before} -> {now} ({self.ratio:.3f} of the time): {verdict}"


def read_document(path: Path, option: str, hint: str) -> Any:
    """The JSON document in a file that an option of a command names.

    Raises
    ------
    UsageError : the file cannot be read, or is something else; ``hint`` says how to write one.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{option} {path}: there is no such file", hint=hint) from error
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{option} {path} is no JSON document", hint=hint) from error


def read_baseline(path: Path) -> dict[str, Any]:
    """A document that ``bench --json`` wrote.

    Raises
    ------
    UsageError : the file cannot be read, or is something else.
    """
    hint = "write one with: python -m hetero_tvm.bench model.so --json > baseline.json"
    document = read_document(path, "--baseline", hint)
    if not isinstance(document, dict) or _ours(document) is None:
        raise UsageError(f"--baseline {path} is no document of bench", hint=hint)
    return document


def compare_documents(
    before: Mapping[str, Any], now: Mapping[str, Any], tolerance: float
) -> tuple[list[Change], list[str]]:
    """Changes of our own figures between two documents of ``bench``, and warnings on what differs besides.

    ``tolerance`` is the fraction by which a time may rise.
    """
    old, new = _ours(before), _ours(now)
    assert old is not None and new is not None
    median = new["median_ms"] / old["median_ms"]
    fast = new["p10_ms"] / old["p10_ms"]
    changes = [
        Change(
            "latency, median ms",
            old["median_ms"],
            new["median_ms"],
            median,
            min(median, fast) > 1 + tolerance,
            max(median, fast) < 1 - tolerance,
        )
    ]
    earlier = {one["streams"]: one for one in before.get("streams", ())}
    for one in now.get("streams", ()):
        if (was := earlier.get(one["streams"])) and one["per_second"]:
            ratio = was["per_second"] / one["per_second"]
            best = was.get(_BEST, was["per_second"]) / one.get(_BEST, one["per_second"])
            name = f"calls per second, {one['streams']} streams"
            slower, faster = min(ratio, best) > 1 + tolerance, max(ratio, best) < 1 - tolerance
            changes.append(Change(name, was["per_second"], one["per_second"], ratio, slower, faster))
    return changes, _differences(before, now)


def _ours(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Our row of a document; None where there is none with times."""
    rows = document.get("runtimes") or [{}]
    first = rows[0] if isinstance(rows, list) and isinstance(rows[0], dict) else {}
    return first if all(first.get(key) for key in ("median_ms", "p10_ms")) else None


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    texts = []
    for name, what in (("model", "another model"), ("threads", "another number of threads")):
        if before.get(name) != now.get(name):
            texts.append(f"the baseline is of {what}: {before.get(name)}, now {now.get(name)}")
    machines = [document.get("machine", {}).get("model_name") for document in (before, now)]
    if machines[0] != machines[1]:
        texts.append(f"the baseline was taken on {machines[0]}, this is {machines[1]}: times do not compare")
    return texts
