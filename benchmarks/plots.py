"""Bars of other runtimes' times by ours, as SVG that light and dark pages can hold."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

_WIDTH, _LEFT, _RIGHT = 720, 190, 60
_BAR, _GAP, _TOP = 15, 12, 34
_COLOURS = ("#4269d0", "#e08a1e", "#3ca951", "#a463f2", "#ff725c", "#97bbf5")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.line{stroke:#1f2328;stroke-dasharray:3 3}"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.line{stroke:#e6edf3}}"
)


def bars(document: Mapping[str, Any], suite: str) -> str:
    """One group of bars per row of a suite that has peers; beyond the dashed line ours is faster.

    Bars are cut at ten times ours, and the number beside them says how long they are.
    """
    rows = [row for row in document["rows"] if row["suite"] == suite and row.get("peers")]
    names = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    ratios = [peer["value"] / row["value"] for row in rows for peer in row["peers"].values()]
    longest = min(10.0, max([1.2, *ratios]))
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    marks, y = [], _TOP
    for number, name in enumerate(names):
        x = _LEFT + number * 125
        marks.append(
            f'<rect x="{x}" y="8" width="11" height="11" fill="{_COLOURS[number % len(_COLOURS)]}"/>'
        )
        marks.append(f'<text x="{x + 16}" y="18">{escape(name)}</text>')
    for row in rows:
        middle = y + _BAR * len(row["peers"]) / 2 + 4
        marks.append(
            f'<text x="{_LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(row["case"])}, '
            f"{row['value']:.3g} {row['unit']}</text>"
        )
        for name, peer in row["peers"].items():
            ratio = peer["value"] / row["value"]
            colour = _COLOURS[names.index(name) % len(_COLOURS)]
            width = min(ratio, longest) * scale
            marks.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" fill="{colour}"/>'
            )
            marks.append(f'<text x="{_LEFT + width + 5:.1f}" y="{y + _BAR - 4}">{ratio:.2f}</text>')
            y += _BAR
        y += _GAP
    one = _LEFT + scale
    marks.append(f'<line class="line" x1="{one:.1f}" x2="{one:.1f}" y1="{_TOP - 6}" y2="{y}"/>')
    label = f"{suite}: time of other runtimes by ours; beyond the dashed line ours is faster"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 4}" width="{_WIDTH}" role="img" '
        f'aria-label="{escape(label)}"><title>{escape(label)}</title><style>{_STYLE}</style>\n'
        + "\n".join(marks)
        + "\n</svg>\n"
    )
