"""Fusion rules, how they are run, and their report.

A rule has an *anchor* (the operator at which it looks), a *match* that either returns what it found
or raises :class:`Miss` with a reason, and a *rewrite*.  A binding that has the anchor but is plainly
something else returns None: that is no near miss and is not reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_tvm.host.terminal import number_of
from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.pages import views
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of


class Miss(Exception):
    """A near miss, with the reason why a binding that looks like the pattern is not fused."""


def check_float32(expr: Expr) -> None:
    """Raise Miss unless ``expr`` is float32."""
    if dtype_of(expr) != "float32":
        raise Miss(f"dtype is {dtype_of(expr)}, expected float32")


@dataclass(frozen=True)
class Fused:
    """One fusion: the rule, the node whose value it computes, and all source nodes inside it."""

    rule: str
    node: str
    nodes: tuple[str, ...]


@dataclass
class Report(views.Shown):
    """Results of the rules: fusions by name, near misses with node and reason."""

    fusions: dict[str, int] = field(default_factory=dict)
    misses: list[dict[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Time by pass."""
    fused: list[Fused] = field(default_factory=list)
    """Single fusions, each with the source nodes that it stands for."""
    anchors: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Kind of anchor -> number inside fused operators, number in all (see ``anchors.py``)."""
    conversions: list[dict[str, str]] = field(default_factory=list)
    """Changes of an image's layout at run time: node, from, to, reason (see ``layout.py``)."""

    def __repr__(self) -> str:
        found = ", ".join(f"{name} {count}" for name, count in sorted(self.fusions.items()))
        return f"<Report: {found or 'no fusions'}; {number_of(len(self.misses), 'near miss')}>"

    def _view(self) -> views.View:
        return views.View("Fusions", (), views.fusion_parts(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """Fusions, misses with reasons, anchors, conversions and times as JSON values."""
        return {
            "fusions": dict(sorted(self.fusions.items())),
            "misses": list(self.misses),
            "anchors": {kind: {"fused": n, "all": of} for kind, (n, of) in sorted(self.anchors.items())},
            "conversions": list(self.conversions),
            "seconds": {name: round(seconds, 4) for name, seconds in self.seconds.items()},
        }


class GraphPass(ABC):
    """One entry of the optimize pipeline."""

    name: str = ""
    """Name under which its rewrites are counted, and by which it is switched off."""

    @abstractmethod
    def run(self, graph: Graph, report: Report) -> None:
        """Rewrite the graph, and report what was done."""


class Rule(GraphPass):
    """One fusion: pattern (anchors), check (match) and rewrite."""

    counted: bool = True
    """Whether its rewrites count as fusions; those of canonical forms and of single operators do not."""

    anchors: tuple[str, ...] = ()
    """Relax operators at which :meth:`match` is tried."""

    @abstractmethod
    def match(self, graph: Graph, var: Var) -> Any | None:
        """Parts of the pattern at ``var``, for the rewrite; None when ``var`` is something else.

        Raises
        ------
        Miss : it looks like the pattern, but cannot be fused.
        """

    @abstractmethod
    def rewrite(self, graph: Graph, var: Var, found: Any) -> None:
        """Replace what :meth:`match` found."""

    def run(self, graph: Graph, report: Report) -> None:
        """Visit all bindings once, in order; counts and misses go to ``report``."""
        for var in graph.bindings():
            if not graph.is_live(var) or graph.op_name(var) not in self.anchors:
                continue
            try:
                found = self.match(graph, var)
            except Miss as miss:
                report.misses.append({"rule": self.name, "node": graph.node(var), "reason": str(miss)})
                continue
            if found is not None:
                written = graph.rewrite(self.rewrite, var, found)
                if self.counted:
                    report.fusions[self.name] = report.fusions.get(self.name, 0) + 1
                    nodes = dict.fromkeys(name for v in written for name in graph.sources(v))
                    report.fused.append(Fused(self.name, graph.node(written[-1]), tuple(nodes)))


def run_rules(
    graph: Graph, rules: Sequence[GraphPass], report: Report, disabled: frozenset[str] = frozenset()
) -> None:
    """Run each entry once, in order, without those that are switched off."""
    for rule in rules:
        if rule.name not in disabled:
            rule.run(graph, report)
