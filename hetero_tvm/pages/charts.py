"""Drawings as SVG: a roofline with kernels under it, a curve over time, buffers in an arena."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from hetero_tvm.pages.page import Html, text

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 14, 44
_LABEL = 180
"""Width of a slope's words on a telephone, where letters are larger."""
_MOST_BOXES = 1500
_COLOURS = 24


@dataclass(frozen=True)
class Dot:
    """A kernel under the roofline: operations per byte, GFLOP/s, and its share of the time."""

    name: str
    intensity: float
    gflops: float
    share: float


@dataclass(frozen=True)
class Box:
    """A buffer: when it lives, and where it lies."""

    name: str
    lower: float
    upper: float
    offset: float
    size: float


@dataclass(frozen=True)
class _Axis:
    """An axis from ``low`` to ``high`` between two pixels, logarithmic or not."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Pixel of a value."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, 1e-30))
        return self.begin + (self.end - self.begin) * (value - low) / ((high - low) or 1.0)

    def ticks(self) -> list[float]:
        """Round values between the ends."""
        if self.logarithmic:
            powers = range(
                math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1
            )
            return [10.0**power for power in powers]
        span = (self.high - self.low) or 1.0
        power = 10.0 ** math.floor(math.log10(span) - 1)
        step = next(
            power * round_one for round_one in (1, 2, 5, 10, 20, 50) if span / (power * round_one) <= 6
        )
        first = math.ceil(self.low / step - 1e-9)
        return [step * number for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def roofline(
    dots: Sequence[Dot],
    peak_gflops: float,
    bandwidth_gbs: float,
    others: Mapping[str, float] = MappingProxyType({}),
    cache_gbs: float | None = None,
) -> Html:
    """Kernels under the roofs of a machine; both axes logarithmic, areas by share of the time.

    Parameters
    ----------
    others : peaks of arithmetic other than float32, by its name: a roof each.
    cache_gbs : what the caches deliver: a second slope, above that of the memory.
    """
    highest = max(peak_gflops, *others.values()) if others else peak_gflops
    ridge = highest / bandwidth_gbs
    intensities = [dot.intensity for dot in dots if dot.intensity > 0]
    speeds = [dot.gflops for dot in dots if dot.gflops > 0]
    x = _Axis(
        _power_below(min([ridge / 8, *intensities])),
        _power_above(max([ridge * 8, *intensities])),
        _LEFT,
        _WIDTH - _RIGHT,
        True,
    )
    y = _Axis(
        _power_below(min([peak_gflops / 50, *speeds])),
        _power_above(max([highest, *speeds])),
        _HEIGHT - _BOTTOM,
        _TOP,
        True,
    )
    start = max(x.low, y.low / bandwidth_gbs)
    marks, labels = [], []
    largest = max((_radius(dot) for dot in dots), default=0.0)
    roofs = {" in float32" if others else "": peak_gflops, **{f" in {kind}": p for kind, p in others.items()}}
    for kind, peak in roofs.items():
        left = peak / bandwidth_gbs
        path = f"M{x.at(left):.1f},{y.at(peak):.1f} L{x.at(x.high):.1f},{y.at(peak):.1f}"
        if peak == highest:
            path = f"M{x.at(start):.1f},{y.at(start * bandwidth_gbs):.1f} L{path[1:]}"
        marks.append(f'<path class="roof" d="{path}"/>')
        # Above the dots of kernels that reach the roof.
        labels.append(_label(x.at(x.high) - 4, y.at(peak) - 3 - largest, f"{peak:.0f} GFLOP/s{kind}", "end"))
    if cache_gbs is not None and cache_gbs > 1.05 * bandwidth_gbs:
        begin, top = max(x.low, y.low / cache_gbs), highest / cache_gbs
        if begin < top:
            line = f"M{x.at(begin):.1f},{y.at(begin * cache_gbs):.1f} L{x.at(top):.1f},{y.at(highest):.1f}"
            marks.append(f'<path class="roof" stroke-dasharray="5 4" d="{line}"/>')
            # At its upper end: halfway up, the words would run over the numbers of the axis.
            place, words = x.at(top) - 4, f"{cache_gbs:.0f} GB/s, caches"
            side = "end" if place > _LEFT + _LABEL else "start"  # the roof's own words come from the right
            labels.append(_label(place, y.at(highest) - 6, words, side))
    middle = math.sqrt(start * max(ridge, start))  # under the slope, where it hides neither roof nor ticks
    labels.append(_label(x.at(middle) + 6, y.at(middle * bandwidth_gbs) + 16, f"{bandwidth_gbs:.0f} GB/s"))
    for dot in sorted(dots, key=lambda dot: -dot.share):
        if dot.intensity <= 0 or dot.gflops <= 0:
            continue
        speed = f"{dot.gflops:.1f} GFLOP/s, {dot.intensity:.1f} flop/byte"
        at = f'cx="{x.at(dot.intensity):.1f}" cy="{y.at(dot.gflops):.1f}" r="{_radius(dot):.1f}"'
        title = text(f"{dot.name}: {speed}, {dot.share:.1%} of the time")
        marks.append(f'<circle class="dot" {at}><title>{title}</title></circle>')
    label = "roofline of the machine with the kernels under it"
    return _framed([*marks, *labels], x, y, "operations per byte", "GFLOP/s", label)


def _radius(dot: Dot) -> float:
    return 3 + 14 * math.sqrt(max(0.0, dot.share))


def _label(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Words over a drawing, readable where they cross a line; inside of the picture's upper edge."""
    return f'<text class="label" x="{x:.0f}" y="{max(y, 12.0):.0f}" text-anchor="{anchor}">{words}</text>'


def curve(points: Sequence[tuple[float, float]], x_name: str, y_name: str) -> Html:
    """A falling curve as steps: each value holds until the next; a dot marks the last."""
    if not points:
        return Html("")
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    x = _Axis(0.0, max(xs) or 1.0, _LEFT, _WIDTH - _RIGHT)
    low, high = min(ys), max(ys)
    room = 0.08 * (high - low or high or 1.0)
    y = _Axis(max(0.0, low - room), high + room, _HEIGHT - _BOTTOM, _TOP)
    steps = [f"M{x.at(xs[0]):.1f},{y.at(ys[0]):.1f}"]
    for (_, before), (now, value) in zip(points, points[1:], strict=False):
        steps.append(f"L{x.at(now):.1f},{y.at(before):.1f} L{x.at(now):.1f},{y.at(value):.1f}")
    marks = [f'<path class="curve" d="{" ".join(steps)}"/>']
    marks.append(f'<circle class="dot" cx="{x.at(xs[-1]):.1f}" cy="{y.at(ys[-1]):.1f}" r="4"/>')
    return _framed(marks, x, y, x_name, y_name, f"{y_name} over {x_name}")


def arena(boxes: Sequence[Box], peak: float, bound: float) -> Html:
    """Buffers over the steps of a model; a line at the lower bound, which no plan can be under."""
    if not boxes:
        return Html("")
    unit, name = next(
        pair
        for pair in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
        if peak >= pair[0] or pair[0] == 1
    )
    x = _Axis(0.0, max(box.upper for box in boxes), _LEFT, _WIDTH - _RIGHT)
    y = _Axis(0.0, 1.05 * max(peak, 1.0) / unit, _HEIGHT - _BOTTOM, _TOP)
    marks = []
    shown = sorted(boxes, key=lambda box: -box.size * (box.upper - box.lower))[:_MOST_BOXES]
    for index, box in enumerate(shown):
        top, bottom = y.at((box.offset + box.size) / unit), y.at(box.offset / unit)
        hue = 360 * (index * 7 % _COLOURS) / _COLOURS
        marks.append(
            f'<rect class="box" x="{x.at(box.lower):.1f}" y="{top:.1f}" '
            f'width="{max(0.5, x.at(box.upper) - x.at(box.lower)):.1f}" '
            f'height="{max(0.3, bottom - top):.1f}" '
            f'fill="hsl({hue:.0f} 55% 58%)"><title>{text(box.name)}: {box.size:,.0f} bytes</title></rect>'
        )
    line = y.at(bound / unit)
    marks.append(f'<line class="bound" x1="{x.begin}" x2="{x.end}" y1="{line:.1f}" y2="{line:.1f}"/>')
    return _framed(marks, x, y, "step", name, "buffers of the memory plan over the steps of the model")


def _framed(marks: Sequence[str], x: _Axis, y: _Axis, x_name: str, y_name: str, label: str) -> Html:
    """Axes with ticks and names around ``marks``."""
    parts = []
    for value in x.ticks():
        at = x.at(value)
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{_short(value)}</text>'
        )
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">{text(x_name)}</text>')
    turned = f'transform="translate(16 {_HEIGHT / 2:.0f}) rotate(-90)"'
    parts.append(f'<text {turned} text-anchor="middle">{text(y_name)}</text>')
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" aria-label="{text(label)}"'
    return Html(f"<figure><svg {size}>{''.join([*parts, *marks])}</svg></figure>")


def _short(value: float) -> str:
    return f"{value:g}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.0e}"


def _power_below(value: float) -> float:
    return 10.0 ** math.floor(math.log10(value))


def _power_above(value: float) -> float:
    return 10.0 ** math.ceil(math.log10(value * 1.001))
