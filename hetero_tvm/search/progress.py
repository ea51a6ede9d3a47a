"""Live progress on stderr: a line that redraws itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import html
import sys
import threading
from time import monotonic
from typing import Any, TextIO

from hetero_tvm.host.terminal import console, figure, percent

_PLAIN_INTERVAL = 2.0
"""Seconds between plain lines."""
_NOTEBOOK_INTERVAL = 0.25
"""Seconds between two pictures of a notebook's bar."""


_CLEARED = "\r\x1b[K"
"""Control characters that empty the line of a terminal."""


class Progress:
    """An ``on_event`` callback for :func:`hetero_tvm.search.loop.tune`; also a context manager.

    It draws when an event arrives, and where none has for two seconds: a thread that refreshed more often
    would disturb the timing of kernels.
    """

    def __init__(self, quiet: bool = False, stream: TextIO | None = None):
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._live = False
        self._failed = 0
        self._last: dict[str, Any] | None = None
        self._started = self._drawn = self._heard = monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._break_silence, daemon=True)

    def __enter__(self) -> Progress:
        if not self._quiet and self._stream.isatty():
            self._live = True
        if not self._quiet:
            self._clock.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._ended.set()
        if not self._quiet:
            self._clock.join()
        if self._live:
            print(_CLEARED, end="", file=self._stream, flush=True)

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "trial":
            self._failed += event["status"] != "ok"
        if self._quiet:
            return
        with self._lock:
            self._last, self._heard = event, monotonic()
            if self._live or event["event"] in ("start", "done") or self._is_due():
                self._draw(describe(event, self._failed))

    def _is_due(self) -> bool:
        return monotonic() >= self._drawn + _PLAIN_INTERVAL

    def _draw(self, text: str) -> None:
        self._drawn = monotonic()
        if self._live:
            line = _fitted(text, console(self._stream).width - 1)
            print(_CLEARED + line, end="", file=self._stream, flush=True)
        else:
            print(text, file=self._stream, flush=True)

    def _break_silence(self) -> None:
        """Say that the search still runs where there was nothing to tell: it compiles or times kernels."""
        while not self._ended.wait(_PLAIN_INTERVAL / 4):
            with self._lock:
                if not self._is_due():
                    continue
                if self._last is None:
                    self._draw(f"preparing the search  ({monotonic() - self._started:.0f} s)")
                else:
                    silence = monotonic() - self._heard
                    now = {**self._last, "silence": silence}
                    text = describe(now, self._failed)
                    busy = silence >= 1 and now["event"] != "waiting"
                    self._draw(f"{text}  ({silence:.0f} s compiling or timing)" if busy else text)


def describe(event: dict[str, Any], failed: int = 0) -> str:
    """One line about where a run stands."""
    done, planned = event["trials"], event.get("of")
    parts = [f"trials {done}" + (f"/{planned}" if planned is not None else "")]
    if event["event"] == "waiting":
        used = f"{percent(min(1.0, event['busy']))} of the cores used by {event.get('busiest') or 'others'}"
        return "  ".join([*parts, used, f"waiting, {event['left']:.0f} s at most"])
    if event.get("task"):
        parts.append(str(event["task"]) if isinstance(event["task"], str) else "")
    if event.get("best_seconds") and not event.get("flops"):  # what only moves data
        parts.append(f"best {figure(event['best_seconds'] * 1e3)} ms")
    elif event.get("best_seconds"):
        gflops = event["flops"] / event["best_seconds"] / 1e9
        share = f" ({percent(gflops / event['peak_gflops'])} of peak)" if event.get("peak_gflops") else ""
        parts.append(f"best {gflops:.1f} GFLOP/s{share}")
    if event.get("total_seconds"):
        parts.append(f"model {event['total_seconds'] * 1e3:.2f} ms")
    if failed:
        parts.append(f"{failed} failed")
    left = time_left(event)
    if left and event["event"] != "done":
        parts.append(f"{left:.0f} s left")
    return "  ".join(filter(None, parts))


def _fitted(text: str, width: int) -> str:
    """A line of :func:`describe` for a terminal: what is too long loses parts, the kernel first."""
    parts = text.split("  ")
    while len("  ".join(parts)) > width and len(parts) > 1:
        del parts[1]
    return "  ".join(parts)[:width]


def time_left(event: dict[str, Any]) -> float | None:
    """Seconds until the trials or the minutes are used up, by the rate so far; None when unknown.

    ``waited`` seconds for idle cores say nothing about the rate, and ``silence`` since the event only passes.
    """
    estimates = []
    if event.get("of") is not None and event["trials"] > 0:
        worked = event["elapsed"] - event.get("waited", 0.0)
        estimates.append(worked / event["trials"] * (event["of"] - event["trials"]))
    if event.get("minutes") is not None:
        estimates.append(60 * event["minutes"] - event["elapsed"])
    return max(0.0, min(estimates) - event.get("silence", 0.0)) if estimates else None


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class NotebookProgress:
    """An ``on_event`` callback that draws a bar under the cell of a notebook."""

    def __init__(self) -> None:
        from IPython.display import display

        self._failed = 0
        self._next = 0.0
        self._text = "starting ..."
        self._handle = display(_Bar(0.0, self._text), display_id=True)

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "trial":
            self._failed += event["status"] != "ok"
        if event["event"] in ("start", "done") or monotonic() >= self._next:
            self._next = monotonic() + _NOTEBOOK_INTERVAL
            self._text = describe(event, self._failed)
            self._handle.update(_Bar(share_done(event), self._text))

    def finish(self) -> None:
        """Fill the bar, whatever the last event was."""
        self._handle.update(_Bar(1.0, self._text))


def share_done(event: dict[str, Any]) -> float:
    """Fraction of the trials or the minutes that are used up, whichever is more."""
    shares = [1.0 if event["event"] == "done" else 0.0]
    if event.get("of"):
        shares.append(event["trials"] / event["of"])
    if event.get("minutes"):
        shares.append(event["elapsed"] / (60 * event["minutes"]))
    return min(1.0, max(shares))


class _Bar:
    """A bar and a line of text, for notebooks and for those who look at one without a browser."""

    def __init__(self, share: float, text: str):
        self._share, self._text = share, text

    def __repr__(self) -> str:
        return f"{self._share:4.0%} {self._text}"

    def _repr_html_(self) -> str:
        return (
            '<div style="font-family: monospace; font-size: 90%">'
            f'<progress value="{self._share:.4f}" max="1" style="width: 20em; vertical-align: middle">'
            f"</progress> {html.escape(self._text)}</div>"
        )
