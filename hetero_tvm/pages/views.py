"""Views of the API's objects for cells of notebooks, made from plain data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hetero_tvm.host.terminal import figure
from hetero_tvm.pages.page import Html, fragment, page, section, share_bar, table, tiles

_MOST_KERNELS = 20


class End(Protocol):
    """An input or output of a model."""

    name: str
    shape: Sequence[int | str]
    dtype: str


@dataclass(frozen=True)
class View:
    """A heading, the numbers that matter most, and what stands under them."""

    title: str
    facts: Sequence[tuple[str, Any]]
    parts: Sequence[Any]

    @property
    def section(self) -> Html:
        """The view as a part of a page."""
        return section(self.title, tiles(self.facts) if self.facts else "", *self.parts)


class Shown(ABC):
    """An object that notebooks show, and that is written as a page of its own."""

    @abstractmethod
    def _view(self) -> View:
        """The part of a page that shows this object."""

    def _repr_html_(self) -> str:
        return fragment(self._view().section)

    def to_html(self) -> str:
        """A self-contained HTML page with what a notebook shows of this object."""
        shown = self._view()
        return page(shown.title, repr(self), [shown.section])


def ends(inputs: Sequence[End], outputs: Sequence[End]) -> Html:
    """Table of the inputs and outputs of a model."""
    rows = [
        (kind, end.name, end.dtype, " x ".join(map(str, end.shape)) or "one number")
        for kind, those in (("input", inputs), ("output", outputs))
        for end in those
    ]
    return table(("", "name", "dtype", "shape"), rows)


def fusion_parts(report: Mapping[str, Any]) -> list[Any]:
    """Fusions that fired, and those that nearly did, with the reason (``Report.to_json``)."""
    parts: list[Any] = []
    if report["fusions"]:
        parts.append(table(("fusion", "count"), sorted(report["fusions"].items()), numbers=(1,)))
    for kind, found in sorted(report["anchors"].items()):
        parts.append(f"{kind}: {found['fused']} of {found['all']} inside fused operators")
    if report["misses"]:
        rows = [(miss["rule"], miss["node"], miss["reason"]) for miss in report["misses"]]
        parts += ["Not fused, and why:", table(("fusion", "node", "reason"), rows)]
    return parts


def task_table(rows: Sequence[tuple[str, int, int, str]]) -> Html:
    """Kernels with their calls, flops of a call, and design space; those with most work first."""
    ordered = sorted(rows, key=lambda row: -row[1] * row[2])
    cells = [(name, calls, figure(flops / 1e6), space) for name, calls, flops, space in ordered]
    return table(("kernel", "calls", "MFLOP of a call", "space"), cells, numbers=(1, 2))


def longest(kernels: Sequence[Mapping[str, Any]], most: int) -> Sequence[Mapping[str, Any]]:
    """The first ``most`` rows of a profile, and its last one: what is no kernel, often more than each."""
    return kernels if len(kernels) <= most else [*kernels[:most], kernels[-1]]


def profile_view(document: Mapping[str, Any]) -> View:
    """Kernels of a profile (``Profile.to_json``), the longest first."""
    kernels = document["kernels"]
    rows = [
        (
            row["kernel"],
            row["calls"],
            figure(row["ms"]),
            share_bar(row["share"]),
            "" if row["gflops"] is None else f"{row['gflops']:.1f}",
            "" if row["roofline"] is None else f"{min(1.0, row['roofline']):.0%}",
        )
        for row in longest(kernels, _MOST_KERNELS)
    ]
    facts = [("a call", f"{figure(document['call_ms'], 4)} ms"), ("threads", document["threads"])]
    rest = len(kernels) - len(rows)
    kernel_table = table(
        ("kernel", "calls", "ms", "share", "GFLOP/s", "% of roof"), rows, numbers=(1, 2, 4, 5)
    )
    return View(document["model"], facts, (kernel_table, f"and {rest} shorter ones" if rest else ""))
