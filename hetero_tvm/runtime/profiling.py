"""Profile of a library: time, speed and balance of each kernel and call, and of the model's own nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from hetero_tvm.errors import UsageError
from hetero_tvm.host.files import write_whole
from hetero_tvm.host.peaks import FLOAT32, CacheRoof, least_seconds
from hetero_tvm.host.terminal import Console, console, figure, number_of
from hetero_tvm.pages.profile_tables import show_profile
from hetero_tvm.pages.views import Shown, View, profile_view
from hetero_tvm.runtime.manifest import Manifest
from hetero_tvm.runtime.observing import Event, Observed, Observer

_LEAST_CALLS, _MOST_CALLS = 5, 200
OTHER = "(virtual machine, checks, copies)"


@dataclass
class CallProfile:
    """One call of a kernel within a call of the model.

    Parameters
    ----------
    kernel : its name in the manifest, or in the library where the manifest does not know it.
    nodes : names of the source nodes that it stands for.
    seconds : median over the observed calls of the model.
    balance : mean over its threads of the time in which they worked, by the time of the thread that worked
        longest; None where it ran in one thread.
    """

    kernel: str
    nodes: tuple[str, ...]
    seconds: float
    balance: float | None = None


@dataclass
class KernelProfile:
    """One kernel, all its calls together.

    Parameters
    ----------
    seconds : of all calls in one call of the model.
    flops, nbytes : of one call; 0 where unknown.
    roof_seconds : least time of one call that peak and bandwidth of this machine allow; None: unknown.
    arithmetic : kind of arithmetic whose peak that is.
    """

    name: str
    calls: int
    seconds: float
    flops: int = 0
    nbytes: int = 0
    space: str = ""
    record: str = ""
    balance: float | None = None
    roof_seconds: float | None = None
    arithmetic: str = FLOAT32

    @property
    def gflops(self) -> float | None:
        """Floating-point operations per ns."""
        return self.flops * self.calls / self.seconds / 1e9 if self.flops and self.seconds else None

    @property
    def gbs(self) -> float | None:
        """Least traffic per ns, in bytes."""
        return self.nbytes * self.calls / self.seconds / 1e9 if self.nbytes and self.seconds else None

    @property
    def roofline(self) -> float | None:
        """Fraction of the roofline; above 1 where weights come from caches."""
        if self.roof_seconds is None or not self.seconds:
            return None
        return self.roof_seconds * self.calls / self.seconds


@dataclass
class Profile(Shown):
    """Profile of one call of a library, from many that were observed.

    Parameters
    ----------
    name, threads : the library, and the threads of a call.
    seconds : median of a call without observation.
    observed_seconds : median of a call with it.
    runs : calls that were observed.
    calls : calls of kernels, in order.
    kernels : the same by kernel, longest first; what the virtual machine itself does comes last.
    peaks : roofs of this machine, GFLOP/s, by kind of arithmetic; float32's is always among them, if any.
    bandwidth_gbs : roof of this machine's memory; None: not measured.
    last : the last observed call, for the trace.
    cache_gbs : roof of operands that lie in caches; None: not measured.
    no_roofs : why there are no roofs, where there are none.
    """

    name: str
    threads: int
    seconds: float
    observed_seconds: float
    runs: int
    calls: list[CallProfile]
    kernels: list[KernelProfile]
    peaks: Mapping[str, float] = field(default_factory=dict)
    bandwidth_gbs: float | None = None
    last: Observed | None = field(default=None, repr=False)
    cache_gbs: float | None = None
    no_roofs: str = "of a GPU they are not measured"

    def __repr__(self) -> str:
        kernels, threads = number_of(len(self.kernels), "kernel"), number_of(self.threads, "thread")
        return f"<Profile of {self.name!r}: {figure(1e3 * self.seconds, 4)} ms, {kernels}, {threads}>"

    def _view(self) -> View:
        return profile_view(self.to_json())

    @property
    def kernel_seconds(self) -> float:
        """Sum over everything that was observed."""
        return sum(kernel.seconds for kernel in self.kernels)

    def nodes(self) -> list[tuple[str, int, float]]:
        """Source nodes with the number of nodes computed along with each, and seconds; longest first.

        A kernel computes several nodes at once; its time stands under the first of them.
        """
        found: dict[str, list[float]] = {}
        sizes: dict[str, int] = {}
        for call in self.calls:
            name = call.nodes[0] if call.nodes else f"({call.kernel})"
            found.setdefault(name, []).append(call.seconds)
            sizes[name] = max(sizes.get(name, 0), len(call.nodes) - 1)
        rows = [(name, max(0, sizes[name]), sum(seconds)) for name, seconds in found.items()]
        return sorted(rows, key=lambda row: -row[2])

    def scopes(self, depth: int) -> list[tuple[str, float]]:
        """Seconds by the first ``depth`` parts of the nodes' names (``/encoder/layer.0``); longest first."""
        found: dict[str, float] = {}
        for call in self.calls:
            name = call.nodes[0] if call.nodes else call.kernel
            scope = "/".join(name.split("/")[: depth + name.startswith("/")]) or name
            found[scope] = found.get(scope, 0.0) + call.seconds
        return sorted(found.items(), key=lambda item: -item[1])

    def to_json(self) -> dict[str, Any]:
        """The whole profile as JSON values; times in ms."""
        total = self.kernel_seconds or 1.0
        return {
            "model": self.name,
            "threads": self.threads,
            "runs": self.runs,
            "call_ms": 1e3 * self.seconds,
            "observed_ms": 1e3 * self.observed_seconds,
            "peak_gflops": self.peaks.get(FLOAT32),
            "peaks": dict(self.peaks),
            "bandwidth_gbs": self.bandwidth_gbs,
            "cache_gbs": self.cache_gbs,
            "no_roofs": None if self.peaks else self.no_roofs,
            "kernels": [
                {
                    "kernel": one.name,
                    "calls": one.calls,
                    "ms": 1e3 * one.seconds,
                    "share": one.seconds / total,
                    "gflops": one.gflops,
                    "gbs": one.gbs,
                    "roofline": one.roofline,
                    "arithmetic": one.arithmetic,
                    "balance": one.balance,
                    "space": one.space,
                    "record": one.record,
                }
                for one in self.kernels
            ],
            "calls": [
                {
                    "kernel": one.kernel,
                    "nodes": list(one.nodes),
                    "ms": 1e3 * one.seconds,
                    "share": one.seconds / total,
                    "balance": one.balance,
                }
                for one in self.calls
            ],
        }

    def show(self, to: Console | None = None, top: int = 20) -> None:
        """Print tables of ``top`` rows each, by default on stdout."""
        nodes = self.nodes() if any(call.nodes for call in self.calls) else []  # language models have none
        show_profile(self.to_json(), nodes, to or console(), top)

    def write_trace(self, path: str | Path) -> None:
        """Write the last observed call in Chrome's trace format, which Perfetto reads too.

        Raises
        ------
        UsageError : the file cannot be written.
        """
        write_events(path, self.trace_events())

    def trace_events(self) -> list[dict[str, Any]]:
        """Events of Chrome's trace format: a row of kernels, and a row for each thread."""
        if self.last is None:
            return []
        events: list[dict[str, Any]] = [_named("process_name", self.name)]
        events.append(_named("thread_name", "kernels"))
        kernels = [event for event in self.last.events if not event.builtin]
        calls = iter(self.calls)
        for event in kernels:
            call = next(calls, None)
            details = {} if call is None else {"nodes": list(call.nodes), "balance": call.balance}
            events.append(
                self._event(call.kernel if call else event.symbol, event.start, event.end, 0, details)
            )
        rows: dict[int, int] = {}
        for span in self.last.spans:
            thread = rows.setdefault(int(span["thread"]), len(rows) + 1)
            within = _around(kernels, int(span["start"]))
            name = within.symbol if within is not None else "task"
            details = {"task": int(span["task"]), "tasks": int(span["tasks"])}
            events.append(self._event(name, int(span["start"]), int(span["end"]), thread, details))
        events += [_named("thread_name", f"thread {row}", row) for row in rows.values()]
        return events

    def _event(self, name: str, start: int, end: int, row: int, details: dict[str, Any]) -> dict[str, Any]:
        assert self.last is not None
        begin, length = (start - self.last.start) / 1e3, (end - start) / 1e3
        return {"name": name, "ph": "X", "pid": 0, "tid": row, "ts": begin, "dur": length, "args": details}


def write_events(path: str | Path, events: Sequence[Mapping[str, Any]]) -> None:
    """Write events in Chrome's trace format.

    Raises
    ------
    UsageError : the file cannot be written.
    """
    try:
        write_whole(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))
    except (OSError, TypeError) as error:
        raise UsageError(f"no trace can be written to {path}: {error}", hint="name a file") from error


def _named(what: str, name: str, row: int = 0) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 0, "tid": row, "args": {"name": name}}


def profile_calls(
    observer: Observer,
    manifest: Manifest,
    call: Callable[[], Any],
    threads: int,
    seconds: float = 1.0,
    peaks: Mapping[str, float] | None = None,
    bandwidth_gbs: float | None = None,
    cached: CacheRoof | None = None,
) -> Profile:
    """Profile of ``call``, which calls the observed library once, from calls for about ``seconds``.

    Half of the calls are not observed, in turn with the others, so that the profile says what a call takes
    when nobody looks.

    Raises
    ------
    UsageError : ``seconds`` is no positive number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise UsageError(f"seconds must be a positive number, got {seconds!r}")
    call()
    plain: list[float] = []
    seen: list[Observed] = []
    stop = perf_counter() + seconds
    while len(seen) < _LEAST_CALLS or (perf_counter() < stop and len(seen) < _MOST_CALLS):
        start = perf_counter()
        call()
        plain.append(perf_counter() - start)
        with observer.watching():
            seen.append(observer.run(call))
    order = [event.symbol for event in seen[-1].events if not event.builtin]
    same = [one for one in seen if [event.symbol for event in one.events if not event.builtin] == order]
    calls, between = _calls(same, manifest, threads), median(map(_between, same))
    if not observer.native:  # what ours costs outside of kernels is many times what it costs inside
        between = min(between, max(0.0, median(plain) - sum(call.seconds for call in calls)))
    calls, rest = _within(calls, between, median(plain))
    kernels = _kernels(calls, manifest, peaks or {}, bandwidth_gbs, cached)
    kernels.append(KernelProfile(OTHER, 1, rest))
    observed = median((one.end - one.start) / 1e9 for one in seen)
    return Profile(
        manifest.name,
        threads,
        median(plain),
        observed,
        len(seen),
        calls,
        kernels,
        peaks or {},
        bandwidth_gbs,
        same[-1],
        None if cached is None else cached.gbs,
    )


def _between(seen: Observed) -> float:
    """Seconds of an observed call that no kernel took, nor the observation itself.

    What each event adds outside of it is about what it adds inside (``hook_ns``).
    """
    kernels = [event.end - event.start for event in seen.events if not event.builtin]
    hooks = 2 * len(seen.events) - len(kernels)
    return max(0, seen.end - seen.start - sum(kernels) - hooks * seen.hook_ns) / 1e9


def _calls(seen: Sequence[Observed], manifest: Manifest, threads: int) -> list[CallProfile]:
    """Calls of kernels in order, each with its median time."""
    rows = [[event for event in one.events if not event.builtin] for one in seen]
    known = _by_symbol(manifest)
    counts: dict[str, int] = {}
    calls = []
    for at, event in enumerate(rows[-1]):
        times = [
            max(0, row[at].end - row[at].start - one.hook_ns) / 1e9
            for one, row in zip(seen, rows, strict=True)
        ]
        balances = [_balance(one.spans, row[at], threads) for one, row in zip(seen, rows, strict=True)]
        found = [balance for balance in balances if balance is not None]
        entry = known.get(event.symbol)
        name = event.symbol if entry is None else entry["kernel"]
        number = counts.get(name, 0)
        counts[name] = number + 1
        nodes = _nodes(entry, number)
        calls.append(CallProfile(name, nodes, median(times), median(found) if found else None))
    return calls


def _within(calls: list[CallProfile], between: float, most: float) -> tuple[list[CallProfile], float]:
    """The calls and what lies ``between`` them, which take no longer than ``most`` together.

    Calls that are observed take a little longer, and on a busy machine some are stopped: what is too much is
    taken from all in proportion, so that nothing is left without a time.
    """
    spent = sum(call.seconds for call in calls) + between
    scale = min(1.0, most / spent) if spent else 1.0
    return [replace(call, seconds=scale * call.seconds) for call in calls], scale * between


def _by_symbol(manifest: Manifest) -> dict[str, Mapping[str, Any]]:
    return {symbol: row for row in manifest.kernels for symbol in row.get("symbols") or ()}


def _nodes(entry: Mapping[str, Any] | None, number: int) -> tuple[str, ...]:
    """Source nodes of the ``number``-th call of a kernel."""
    if entry is None:
        return ()
    every = entry.get("call_nodes") or []
    return tuple(every[number] if number < len(every) else entry.get("nodes", ()))


def _kernels(
    calls: Sequence[CallProfile],
    manifest: Manifest,
    peaks: Mapping[str, float],
    bandwidth: float | None,
    cached: CacheRoof | None = None,
) -> list[KernelProfile]:
    """The calls by kernel, longest first."""
    rows = {row["kernel"]: row for row in manifest.kernels}
    weights = [(_weight_bytes(row), int(row.get("calls", 1))) for row in manifest.kernels]
    stay = cached is not None and cached.keeps(weights)
    groups: dict[str, list[CallProfile]] = {}
    for call in calls:
        groups.setdefault(call.kernel, []).append(call)
    found = []
    for name, group in groups.items():
        row = rows.get(name, {})
        flops, nbytes = int(row.get("flops", 0)), int(row.get("bytes", 0))
        balances = [call.balance for call in group if call.balance is not None]
        roof, kind = None, str(row.get("arithmetic", FLOAT32))
        peak = peaks.get(kind, peaks.get(FLOAT32))
        if peak and bandwidth and row and (flops or nbytes):
            roof = least_seconds(flops, nbytes, 0 if stay else _weight_bytes(row), peak, bandwidth, cached)
        found.append(
            KernelProfile(
                name,
                len(group),
                sum(call.seconds for call in group),
                flops,
                nbytes,
                str(row.get("space", "")),
                str(row.get("record", "")),
                median(balances) if balances else None,
                roof,
                kind,
            )
        )
    return sorted(found, key=lambda kernel: -kernel.seconds)


def _weight_bytes(row: Mapping[str, Any]) -> int:
    """Bytes of a kernel's weights: all that it moves, where a library does not tell."""
    return int(row.get("weight_bytes", row.get("bytes", 0)))


def _balance(spans: np.ndarray, event: Event, threads: int) -> float | None:
    """Balance of the threads of a call; None where no tasks were launched."""
    inside = spans[(spans["start"] >= event.start) & (spans["start"] < event.end)]
    if not len(inside) or threads < 2:
        return None
    _, index = np.unique(inside["thread"], return_inverse=True)
    busy = np.bincount(index, weights=inside["end"] - inside["start"])
    return float(busy.sum() / (threads * busy.max())) if busy.max() else None


def _around(kernels: Sequence[Event], time: int) -> Event | None:
    """The kernel that was running at a time."""
    return next((event for event in kernels if event.start <= time < event.end), None)
