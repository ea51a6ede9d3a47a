"""Self-contained HTML pages: no file beside them, no network, light or dark as the reader's system is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any

_CARDS = """
.ROWS thead { display: none; } .ROWS tr { display: flex; flex-wrap: wrap; column-gap: 1rem;
  padding: .35rem 0; border-bottom: 1px solid var(--line); }
.ROWS td { border: 0; padding: .05rem 0; } .ROWS td:empty { display: none; }
.ROWS td.t { max-width: 100%; min-width: 0; } .ROWS td.t:first-child { flex-basis: 100%; font-weight: 600; }
.ROWS td:not(:first-child)::before { content: attr(data-of) " "; color: var(--faint); }
.ROWS .bar { display: inline-block; margin: 0 .4rem 0 0; }"""
"""Rows of a table as paragraphs."""
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #6a737d; --line: #d5dae0;
  --card: #f5f7f9; --accent: #0b62c4; --good: #1a7f37; --warn: #b35900; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --paper: #14171b; --faint: #98a2ad;
  --line: #343b43; --card: #1d2228; --accent: #6cb0ff; --good: #56c271; --warn: #f0a050; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.sub, figcaption, .faint { color: var(--faint); }
p { margin: .4rem 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; container-type: inline-size; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; } td.n, th.n { text-align: right; white-space: nowrap; }
td.t { overflow-wrap: break-word; max-width: 26rem; }
td.t:first-child { min-width: 10rem; } td.t:last-child { min-width: 11rem; }
.bar { display: inline-block; height: .55rem; background: var(--accent);
  border-radius: 2px; vertical-align: middle; margin-right: .4rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .6rem 1rem; }
.tile b { display: block; font-size: 1.3rem; } pre { background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: .7rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.word { display: inline-block; max-width: 100%; } .warn { color: var(--warn); }
figure { margin: 0; overflow-x: auto; } svg { max-width: 100%; min-width: 32rem; height: auto; }
svg text { fill: var(--ink); font-size: 12px; }
svg .label { stroke: var(--paper); stroke-width: 3; paint-order: stroke; }
svg .axis { stroke: var(--line); } svg .roof { stroke: var(--faint); stroke-width: 1.5; fill: none; }
svg .dot { fill: var(--accent); fill-opacity: .65; stroke: var(--accent); }
svg .curve { stroke: var(--accent); stroke-width: 2; fill: none; }
svg .box { stroke: var(--paper); stroke-width: .4; }
svg .bound { stroke: var(--warn); stroke-dasharray: 5 4; }
@container (max-width: 70rem) {
.rows th, .rows td { padding: .25rem .4rem; } .rows th.n { white-space: normal; }
.rows td.t { overflow-wrap: anywhere; } .rows .bar { display: block; margin: .3rem 0 .2rem auto; } }
@container (max-width: 57rem) {MANY }
@container (max-width: 38rem) {ROWS
td.t:first-child, td.t:last-child { min-width: 0; } td.t { overflow-wrap: anywhere; } }
@media (max-width: 40rem) { svg { min-width: 0; } svg text { font-size: 16px; } }
@media (max-width: 30rem) { svg text { font-size: 20px; } }
""".replace("MANY", _CARDS.replace("ROWS", "many")).replace("ROWS", _CARDS.replace("ROWS", "rows"))
_MANY_COLUMNS = 8
"""Columns from which on a table needs more than a tablet's width."""


_SCOPE = ".hetero-tvm.hetero-tvm"
"""Selector of a fragment; doubled, it is as strong as Jupyter's rules, which put words on the right."""


class Html(str):
    """Text that is HTML already; everything else is escaped."""


def text(value: Any) -> Html:
    """A value as HTML."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def name(value: Any) -> Html:
    """Words as HTML that may be broken after ``/``, ``_`` and ``.``, where names of kernels and nodes may.

    Dates stay whole.
    """
    if isinstance(value, Html):
        return value
    found = re.sub(r"(?<=[^\s/][/_.])(?=[A-Za-z])|(?<=[^\s/]_)(?=\d)", "<wbr>", escape(str(value)))
    return Html(re.sub(r"\b(\d{4}-\d\d-\d\d)\b", r'<span style="white-space:nowrap">\1</span>', found))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[int] = ()) -> Html:
    """A table; ``numbers`` are the indices of columns that stand on the right.

    Where it has little room, each row of a table of several columns is a paragraph, in which every cell names
    its column: on a telephone from three columns on, on a tablet or in a cell of a notebook from eight.
    """
    kinds = ["n" if index in numbers else "t" for index in range(len(columns))]
    head = "".join(f'<th class="{kind}">{text(word)}</th>' for kind, word in zip(kinds, columns, strict=True))
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}" data-of="{text(column)}">{name(cell) if kind == "t" else text(cell)}</td>'
            for kind, column, cell in zip(kinds, columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    inside = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    kind = "wide" + " rows" * (len(columns) > 2) + " many" * (len(columns) >= _MANY_COLUMNS)
    return Html(f'<div class="{kind}">{inside}</div>')


def retype(words: str) -> Html:
    """A command to type again; it goes on in the next line between its options, not inside of ``--out``."""
    parts = (f'<span class="word">{text(word)}</span>' for word in words.split(" "))
    return Html(f"<pre>{' '.join(parts)}</pre>")


def share_bar(fraction: float | None) -> Html:
    """A bar and a percentage."""
    if fraction is None:
        return Html("")
    width = 6 * max(0.0, min(1.0, fraction))
    return Html(f'<span class="bar" style="width:{width:.2f}rem"></span>{fraction:.1%}')


def tiles(facts: Sequence[tuple[str, Any]]) -> Html:
    """The few numbers that matter most, large."""
    inside = "".join(f'<div class="tile">{text(what)}<b>{text(value)}</b></div>' for what, value in facts)
    return Html(f'<div class="tiles">{inside}</div>')


def section(title: str, *parts: Any) -> Html:
    """A heading and what stands under it; empty where nothing does."""
    inside = "".join(_block(part) for part in parts if part)
    return Html(f"<section><h2>{text(title)}</h2>{inside}</section>" if inside else "")


def _block(part: Any) -> str:
    return part if isinstance(part, Html) else f"<p>{text(part)}</p>"


def page(title: str, subtitle: str, sections: Sequence[Html], data: Any = None) -> str:
    """A whole page; ``data`` is put into it as JSON for programs (``script#data``)."""
    hidden = ""
    if data is not None:
        # In a script, "</" would end it, and "<!--<script>" hide its end; as "\u003c" it is the same JSON.
        encoded = json.dumps(data, default=str).replace("<", "\\u003c")
        hidden = f'<script type="application/json" id="data">{encoded}</script>'
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{text(title)}</h1>"
        f'<p class="sub">{text(subtitle)}</p>{"".join(sections)}{hidden}</body></html>\n'
    )


def fragment(*parts: Html) -> str:
    """Parts of a page for a cell of a notebook, with the style that they need."""
    return f'<div class="hetero-tvm"><style>{_scoped(_STYLE)}</style>{"".join(parts)}</div>'


def _scoped(style: str) -> str:
    """Rules for what stands in a ``div.hetero-tvm`` alone."""
    style = style.replace("max-width: 72rem; margin: 2rem auto;", "")

    def scope(rule: re.Match[str]) -> str:
        selectors = [one.strip() for one in rule[1].split(",")]
        if selectors != [":root"]:
            selectors = [f"{_SCOPE} {one}".replace(" body", "") for one in selectors]
        return f"{', '.join(selectors)} {{{rule[2]}}}\n"

    return re.sub(r"([^{}]+)\{([^{}]*)\}", scope, style)
