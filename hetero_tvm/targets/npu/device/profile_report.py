"""Profiles of an NPU's regions as tables, JSON and a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hetero_tvm.host.terminal import Column, Console, console, table
from hetero_tvm.runtime.library import Library
from hetero_tvm.targets.npu.device.profile import profile, totals, write_trace


def profile_library(library: Library, call: Callable[[], Any]) -> ProfileReport:
    """Report on one ``call`` of a loaded library."""
    return ProfileReport(profile(library, call))


class ProfileReport:
    """Cycles, utilisation, stalls and energy of every region of a library (a ``LibraryProfile``)."""

    def __init__(self, regions: Sequence[Any]):
        self._regions = regions

    def __repr__(self) -> str:
        found = totals(self._regions)
        return f"<ProfileReport of {found['regions']} regions: {found['cycles']:,.0f} cycles>"

    def to_json(self) -> dict[str, Any]:
        """Totals, and one entry per region with its operators."""
        return {"totals": totals(self._regions), "regions": [region.to_json() for region in self._regions]}

    def show(self, to: Console | None = None, top: int = 20) -> None:
        """Print tables, by default on stdout; the ``top`` longest operators of each region."""
        to = to or console()
        for region in self._regions:
            _print(to, region, top)
        if len(self._regions) > 1:
            _print_totals(to, totals(self._regions))

    def write_trace(self, path: str | Path) -> None:
        """A Chrome/Perfetto trace of all queues."""
        write_trace(path, self._regions)


def _print_totals(console: Console, total: dict[str, Any]) -> None:
    console.print(
        f"all {total['regions']} regions: {total['cycles']:,.0f} cycles, {total['seconds'] * 1e3:.3f} ms, "
        f"DRAM {total['dram_bytes'] / 1e6:.1f} MB, {total['energy_joule'] * 1e3:.2f} mJ"
    )


def _print(console: Console, region: Any, top: int) -> None:
    facts, spec = region.to_json(), region.spec
    console.print(
        f"{region.name} on {spec.name}: {facts['cycles']:,.0f} cycles, {facts['seconds'] * 1e3:.3f} ms, "
        f"matrix unit {facts['matrix_utilisation']:.1%}, DRAM {facts['dram_read_bytes'] / 1e6:.1f} MB read "
        f"and {facts['dram_write_bytes'] / 1e6:.1f} MB written, {facts['energy_joule'] * 1e3:.2f} mJ"
    )
    whole = facts["cycles"] or 1.0
    reasons = ["flag", "barrier", "latency", "dram", "port"]
    columns = [Column("queue", text=True), Column("busy"), Column("issue", rank=1)]
    columns += [*(Column(f"stall: {reason}", rank=2) for reason in reasons), Column("idle at end", rank=3)]
    rows = []
    for name, q in facts["queues"].items():
        shares = [q["busy"], q["issue"], *(q["stall"].get(reason, 0.0) for reason in reasons), q["idle"]]
        rows.append((name, *(f"{share / whole:.1%}" for share in shares)))
    console.print(table("queues, share of the cycles", columns, rows, console.width))
    count = len(region.operators)
    title = f"operators, the {top} longest of {count}" if count > top else f"all {count} operators"
    columns = [
        Column("operator", text=True),
        Column("cycles"),
        Column("share"),
        Column("active", rank=6),
        Column("matrix", rank=2),
        Column("vector", rank=2),
        Column("DRAM", rank=2),
        Column("DRAM kB", rank=4),
        Column("flop/byte", rank=5),
        Column("of roof"),
        Column("bound by", rank=1),
        Column("longest wait", rank=3),
        Column("uJ", rank=3),
    ]
    rows = []
    for op in sorted(region.operators, key=lambda op: -op.cycles)[:top]:
        queue, reason, waited = op.longest_wait()
        shares = (op.matrix_utilisation, op.vector_utilisation, op.dram_utilisation(spec))
        rows.append(
            (
                op.name,
                f"{op.cycles:,.0f}",
                f"{op.cycles / whole:.1%}",
                f"{op.active:,.0f}",
                *(f"{share:.0%}" for share in shares),
                f"{op.dram_bytes / 1e3:,.0f}",
                "-" if op.intensity is None else f"{op.intensity:.1f}",
                f"{op.roof_share(spec):.0%}",
                op.bound(spec)[0],
                f"{queue}: {reason} {waited:,.0f}",
                f"{op.joule * 1e6:,.1f}",
            )
        )
    console.print(table(title, columns, rows, console.width))
