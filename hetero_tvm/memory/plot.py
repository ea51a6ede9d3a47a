"""Picture of the arena over time: one rectangle per buffer."""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Mapping
from pathlib import Path

from hetero_tvm.errors import UsageError
from hetero_tvm.host.files import replaced
from hetero_tvm.host.install import extra_command
from hetero_tvm.memory.problem import Problem

_FORMATS = (".png", ".svg", ".pdf")
_OUTLINED = 3000  # more buffers than this, and outlines would cover the colours
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


def check_picture(path: str | Path) -> None:
    """Refuse a picture that cannot be drawn; for commands that work for long before they draw.

    Raises
    ------
    UsageError : the name has another ending, its folder is not there, or matplotlib is not installed.
    """
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(f"cannot plot to {path.name!r}", hint=f"end its name in {', '.join(_FORMATS)}")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}", hint="make it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("drawing needs matplotlib", hint=extra_command("plot"))


def plot(
    problem: Problem,
    offsets: Mapping[str, int],
    path: str | Path,
    *,
    title: str = "",
    capacity: int | None = None,
) -> Path:
    """Draw the plan to ``path`` (PNG, SVG or PDF by its ending); ``offsets`` and ``capacity`` in bytes.

    Raises :class:`UsageError` for another ending or a path that cannot be written.
    """
    path = Path(path)
    check_picture(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

    shown = [b for b in problem.buffers if b.size > 0 and b.upper > b.lower]
    peak = max((offsets[b.id] + b.size for b in shown), default=0)
    unit, unit_name = next(pair for pair in _UNITS if max(peak, capacity or 0) >= pair[0] or pair[0] == 1)
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    FigureCanvasAgg(figure)  # no global state and no display
    axes = figure.subplots()
    corners, values = [], []
    for b in shown:
        low, high = offsets[b.id] / unit, (offsets[b.id] + b.size) / unit
        corners.append([(b.lower, low), (b.upper, low), (b.upper, high), (b.lower, high)])
        values.append(_colour(b.id))
    outline = 0.3 if len(shown) <= _OUTLINED else 0
    boxes = PolyCollection(corners, cmap="tab20", edgecolors="black", linewidths=outline)
    boxes.set_array(values)
    axes.add_collection(boxes)
    axes.axhline(peak / unit, color="black", linewidth=1, label=f"peak {peak:,} bytes")
    if capacity is not None:
        label = f"capacity {capacity:,} bytes"
        axes.axhline(capacity / unit, color="red", linewidth=1, linestyle="--", label=label)
    axes.autoscale()
    axes.set(xlabel="time", ylabel=f"offset ({unit_name})", title=title)
    axes.set_ylim(0, max(peak, capacity or 0, 1) / unit * 1.05)
    axes.legend(loc="upper right")
    try:
        with replaced(path) as fresh:
            figure.savefig(fresh, dpi=120)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return path


def _colour(name: str) -> float:
    """Colour of a buffer as a number in [0, 1), the same in every picture."""
    return zlib.crc32(name.encode()) % 997 / 997
