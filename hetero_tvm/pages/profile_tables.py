"""Tables of a profile and of two profiles side by side, from their JSON documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero_tvm.host.terminal import Column, Console, milliseconds, percent, record_cell, table
from hetero_tvm.pages.views import longest

_DISTURBED = 1.3
"""Time of a call by that of its kernels from which on others must have used the cores."""
_LEAST_CHANGE = 0.02
"""Part of the whole call below which a difference is not worth a word."""


def show_profile(
    document: Mapping[str, Any], nodes: Sequence[tuple[str, int, float]], console: Console, top: int
) -> None:
    """Tables of a profile (``Profile.to_json``).

    Parameters
    ----------
    nodes : source nodes, how many others each kernel computes along with them, and seconds.
    top : rows of each table.
    """
    kernels = document["kernels"]
    console.print(
        f"{document['model']}: {milliseconds(document['call_ms'])} ms a call, {document['threads']} "
        f"thread{'s' * (document['threads'] > 1)}; {document['runs']} calls observed"
    )
    if document["peaks"]:
        peaks = [f"{peak:.0f} GFLOP/s in {kind}" for kind, peak in sorted(document["peaks"].items())]
        caches = f", {document['cache_gbs']:.0f} from caches" if document.get("cache_gbs") else ""
        memory = f"{document['bandwidth_gbs']:.1f} GB/s from memory{caches}"
        console.print(f"roofs measured just now: {', '.join(peaks)}, {memory}")
    else:
        why = document.get("no_roofs")
        console.print(f"roofs: unknown: {why}" if why else "roofs: unknown")
    spent = sum(row["ms"] for row in kernels)
    if document["call_ms"] > _DISTURBED * spent:
        console.print(
            f"calls were disturbed: {milliseconds(spent)} ms of kernels and what is between them, but "
            f"{milliseconds(document['call_ms'])} ms a call; other processes used the cores"
        )
    columns = [
        Column("kernel", text=True),
        Column("calls", rank=2),
        Column("ms"),
        Column("share"),
        Column("GFLOP/s", rank=1),
        Column("GB/s", rank=4),
        Column("% of roof"),
        Column("balance", rank=3),
        Column("record", text=True, rank=5),
    ]
    rows = [
        (
            row["kernel"],
            row["calls"],
            milliseconds(row["ms"]),
            f"{row['share']:.1%}",
            "" if row["gflops"] is None else f"{row['gflops']:.1f}",
            "" if row["gbs"] is None else f"{row['gbs']:.1f}",
            percent(row["roofline"]),
            percent(row["balance"]),
            record_cell(row["record"]),
        )
        for row in longest(kernels, top)
    ]
    title = f"kernels, the {top} longest of {len(kernels)}" if len(kernels) > top else "kernels"
    console.print(table(title, columns, rows, console.width))
    if any(row[6].startswith(">") for row in rows):
        console.print(
            ">100%: fewer products than are counted (Winograd), operands in caches, or a roof that "
            "others disturbed"
        )
    if not nodes:
        return
    whole = spent / 1e3 or 1.0
    rows = [
        (name, more or "", milliseconds(1e3 * seconds), f"{seconds / whole:.1%}")
        for name, more, seconds in nodes[:top]
    ]
    title = f"nodes of the model, the {min(top, len(nodes))} longest of {len(nodes)}"
    columns = [Column("first node", text=True), Column("and more", rank=1), Column("ms"), Column("share")]
    console.print(table(title, columns, rows, console.width))


def compare_profiles(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Kernels of two profiles (``Profile.to_json``) side by side, largest difference first.

    Each row has ``kernel``, ``before_ms``, ``now_ms`` (None where one lacks it) and ``change_ms``.
    """
    sides = [{row["kernel"]: row["ms"] for row in document["kernels"]} for document in (before, now)]
    rows = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        old, new = sides[0].get(name), sides[1].get(name)
        change = (new or 0.0) - (old or 0.0)
        rows.append({"kernel": name, "before_ms": old, "now_ms": new, "change_ms": change})
    return sorted(rows, key=lambda row: -abs(row["change_ms"]))


def show_comparison(before: Mapping[str, Any], now: Mapping[str, Any], console: Console, top: int) -> None:
    """Table of what changed between two profiles."""
    if before.get("model") != now.get("model"):
        console.print(f"the earlier profile is of another model: {before.get('model')}")
    rows = compare_profiles(before, now)
    least = _LEAST_CHANGE * before["call_ms"]
    worth = [row for row in rows if abs(row["change_ms"]) >= least][:top]
    console.print(f"a call: {milliseconds(before['call_ms'])} -> {milliseconds(now['call_ms'])} ms")
    if not worth:
        console.print(f"no kernel changed by more than {_LEAST_CHANGE:.0%} of the call")
        return
    columns = [Column("kernel", text=True), Column("before ms"), Column("now ms"), Column("change ms")]
    cells = [
        (
            row["kernel"],
            "" if row["before_ms"] is None else milliseconds(row["before_ms"]),
            "" if row["now_ms"] is None else milliseconds(row["now_ms"]),
            f"{row['change_ms']:+.4f}",
        )
        for row in worth
    ]
    console.print(table("kernels that changed", columns, cells, console.width))
