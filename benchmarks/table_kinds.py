"""Kinds of tables, each made from the document of a results file, in Markdown."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.measured import DISTURBED

Document = Mapping[str, Any]


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def facts_of(document: Document) -> str:
    """Where and when a file of ``all.py`` was measured, in a line."""
    machine, versions = document["machine"], document["versions"]
    peers = [f"{name} {versions[name]}" for name in ("onnxruntime", "openvino", "torch") if name in versions]
    bits = machine["simd_bits"]
    text = f"{machine['model_name']} ({machine['microarchitecture']}, {bits}-bit vectors), "
    text += f"{document['threads']} threads, {document['date'][:10]}; {', '.join(peers)}"
    return text + ("; a quick run" if document.get("quick") else "")


def _facts_and(document: Document, table: str) -> str:
    timed = [row for row in document["rows"] if "others" in row]
    busy = [row for row in timed if row["others"] > DISTURBED]
    if busy:
        table += (
            f"\n\n{len(busy)} of {len(timed)} times were taken while others used more than {DISTURBED} "
            "cores (marked *)."
        )
    return f"{facts_of(document)}.\n\n{table}"


def suite_table(document: Document, *suites: str) -> str:
    """Figures of suites of ``all.py``: ± is half the distance between the quartiles of the rounds."""
    rows = [row for row in document["rows"] if row["suite"] in suites]
    peers = list(dict.fromkeys(name for row in rows for name in row.get("peers", ())))
    cells = []
    for row in rows:
        if "failed" in row:
            cells.append([row["case"], row["figure"], f"failed: {row['failed']}"[:90], *[""] * len(peers)])
            continue
        mark = " *" if row.get("others", 0.0) > DISTURBED else ""
        line = [row["case"], row["figure"], f"{_value(row)} {row['unit']}{mark}".rstrip()]
        for name in peers:
            peer = row.get("peers", {}).get(name)
            line.append("" if peer is None else f"{_value(peer)} ({_ratio(row, peer)})")
        cells.append(line)
    return markdown(["case", "figure", "ours", *(f"{name} (ours / it)" for name in peers)], cells)


def _value(figure: Mapping[str, Any]) -> str:
    value, noise = figure["value"], figure["noise"]
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return text if noise is None else f"{text} ± {noise:.0%}"


def _ratio(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    return f"{ours['value'] / theirs['value']:.2f}" if theirs["value"] else "-"


def all_table(document: Document, *suites: str) -> str:
    """The same with a line on where it was measured."""
    return _facts_and(
        {**document, "rows": [row for row in document["rows"] if row["suite"] in suites]},
        suite_table(document, *suites),
    )


_STEADY = 0.1
"""Noise up to which a figure may stand on the first page."""


def headline(*documents: Document) -> str:
    """Latency of models on several machines, milliseconds, of runs in which every figure was steady."""
    peers = ("onnxruntime", "openvino", "torch.compile")
    cells, unsteady = [], 0
    for document in documents:
        machine = f"{document['machine']['microarchitecture']}, {document['threads']} threads"
        for row in document["rows"]:
            if row["suite"] != "models" or "failed" in row:
                continue
            figures = [row, *(row["peers"][name] for name in peers if name in row["peers"])]
            if any((figure["noise"] or 0.0) > _STEADY for figure in figures):
                unsteady += 1
                continue
            beside = [f"{row['peers'][name]['value']:.3g}" if name in row["peers"] else "" for name in peers]
            cells.append([row["case"], machine, f"**{row['value']:.3g}**", *beside])
    cells.sort()
    table = markdown(["ms a call", "CPU", "hetero_tvm", *peers], cells)
    return table + f"\n\nLeft out: {unsteady} whose figures swung by more than {_STEADY:.0%}." * (
        unsteady > 0
    )


def operators_of_all(document: Document) -> str:
    """The suite of single operators: counts, and what is slowest beside ONNX Runtime."""
    found = {}
    for row in document["rows"]:
        if row["suite"] == "operators" and "failed" not in row:
            theirs = row["peers"]["onnxruntime"]["value"]
            found[row["case"]] = (row["value"], theirs)
    return f"{facts_of(document)}.\n\n{_operators(found, 'ONNX Runtime', 1.3)}"


def _operators(times: Mapping[str, tuple[float, float]], peer: str, bar: float, most: int = 8) -> str:
    """Summary of times of ours and of a peer, milliseconds."""
    ratios = {case: ours / theirs for case, (ours, theirs) in times.items()}
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    above = sum(ratio > bar for ratio in ratios.values())
    slowest = sorted(ratios, key=lambda case: -ratios[case])[:most]
    rows = [[case, *(f"{t:.3g}" for t in times[case]), f"{ratios[case]:.2f}"] for case in slowest]
    text = f"{len(ratios)} operators, ours / {peer}: geometric mean {mean:.2f}, {above} above {bar}"
    return f"{text}.  The slowest:\n\n{markdown(['operator', 'ours ms', f'{peer} ms', 'ratio'], rows)}"


def operators(document: Document) -> str:
    """``operators.py --json``."""
    rows = [row for row in document["rows"] if "error" not in row]
    times = {row["case"]: (row["hetero_tvm"]["p10_ms"], row["onnxruntime"]["p10_ms"]) for row in rows}
    text = _operators(times, "ONNX Runtime", 1.3)
    rounds = [row["hetero_tvm"]["rounds_p10_ms"] for row in rows if "rounds_p10_ms" in row["hetero_tvm"]]
    if not rounds:
        return text
    spread = statistics.median(max(taken) / min(taken) - 1 for taken in rounds)
    where = f"{document['machine']} ({document['microarchitecture']}), {document['threads']} threads"
    return f"{where}, {document['date']}; turns of a case differ by {spread:.0%} (median).\n\n{text}"


def relax_operators(document: Document) -> str:
    """``relax_operators.py --json``."""
    rows = {name: row for name, row in document["rows"].items() if "ratio" in row}
    times = {name: (row["ours_ms"], row["best_ms"]) for name, row in rows.items()}
    return _operators(times, "PyTorch or NumPy", 3.0)


def models(*documents: Sequence[Mapping[str, Any]]) -> str:
    """``models.py --json``: 10th percentiles untuned and tuned, each beside ONNX Runtime."""
    rows = []
    for row in (row for document in documents for row in document):
        cells = [row["model"]]
        for kind in ("untuned", "tuned"):
            times = {one["name"]: one for one in row.get(kind, ()) if one["status"] == "ok"}
            if {"hetero_tvm", "onnxruntime"} <= set(times):
                ours, theirs = times["hetero_tvm"], times["onnxruntime"]
                cells += [f"{ours['p10_ms']:.1f}", f"{theirs['p10_ms']:.1f}", f"{theirs['ratio_p10']:.2f}"]
            else:
                cells += [""] * 3
        rows.append([*cells, str(row["trials"])])
    heads = [f"{kind} {what}" for kind in ("untuned", "tuned") for what in ("ms", "ORT ms", "ratio")]
    return markdown(["model", *heads, "trials"], rows)


def products(document: Document) -> str:
    """``matmul.py --json``."""
    rows = [
        [row["shape"], f"{row['gflops']:.0f}", f"{100 * row['share']:.1f}", f"{row['trials_per_s']:.1f}"]
        for row in document["rows"]
    ]
    return markdown(["M x K x N", "GFLOP/s", "% of peak", "trials/s"], rows)


def npu_models(document: Document) -> str:
    """``npu.py --without --json``."""
    rows = []
    for row in document["default"]:
        kind = max(("matrix", "vector", "DRAM"), key=lambda name: row[name])
        cells = [row["model"], row["target"].removeprefix("npu:"), f"{row['cycles']:,}"]
        cells += [f"{row[kind]:,} ({kind})", f"{row['cycles'] / row[kind]:.2f}"]
        for key in ("without_double_buffering", "without_fusion"):
            cells.append(f"{row[key]:.2f} x" if key in row else "")
        rows.append(cells)
    heads = ["model", "target", "cycles", "bound", "ratio", "without double buffering", "without fusion"]
    return markdown(heads, rows)


def npu_tuned(document: Sequence[Mapping[str, Any]]) -> str:
    """``npu_tuned.py``."""
    rows = [
        [
            row["model"],
            row["target"].removeprefix("npu:"),
            str(row["trials"]),
            *(f"{row[key]:,}" for key in ("default", "tuned")),
            f"{row['ratio']:.3f}",
            str(row["seconds"]),
        ]
        for row in document
    ]
    return markdown(["model", "target", "N", "default", "tuned", "ratio", "seconds"], rows)


def npu_parts(document: Document) -> str:
    """Cycles that parts of the region compiler save, in per cent."""
    columns = document["columns"]
    rows = [
        [row["part"], str(row["lines"]), *(f"{value:+.1f}" if value else "0.0" for value in row["percent"])]
        for row in document["rows"]
    ]
    return markdown(["part", "lines", *columns], rows)


def cuda_zoo(document: Sequence[Mapping[str, Any]]) -> str:
    """``cuda_zoo.py``."""
    rows = [
        [
            row["model"],
            row["precision"],
            f"{sum(row['processor_seconds'].values()):.0f}",
            f"{row['megabytes']:.0f}",
            str(max(row["kernels"].values())),
            str(sum(map(len, row["spills"].values()))),
            str(len(row["problems"])),
            ", ".join(f"{count} {name}" for name, count in _sources(row["sources"])),
        ]
        for row in document
    ]
    heads = ["model", "precision", "processor s", "MB", "kernels", "spills", "problems"]
    return markdown([*heads, "distinct kernels by space"], rows)


def _sources(found: Mapping[str, int]) -> list[tuple[str, int]]:
    named = [(name.removeprefix("cuda."), count) for name, count in found.items()]
    return sorted(named, key=lambda item: -item[1])


def cost_models(document: Document) -> str:
    """``search.py judge --json``."""
    rows, logs = [], defaultdict(list)
    for row in document["spaces"]:
        cells = [row["space"], str(row["tables"]), str(row["points"]), f"{row['model spearman']:.2f}"]
        for kind in ("model", "estimate", "random"):
            logs[kind].append(math.log1p(row[f"{kind} regret@16"]))
            cells.append(" / ".join(f"{row[f'{kind} regret@{size}']:.1%}" for size in (8, 16, 32)))
        rows.append(cells)
    means = {kind: math.expm1(sum(one) / len(one)) for kind, one in logs.items()}
    heads = ["space", "tables", "points", "Spearman", "model", "estimate alone", "random"]
    return (
        f"{_tables_of(document)}.  Geometric mean of regret@16: "
        + ", ".join(f"{kind} {mean:.1%}" for kind, mean in means.items())
        + f".\n\n{markdown(heads, rows)}"
    )


def replays(document: Document) -> str:
    """``search.py replay --json``."""
    rows = [
        [row["operator"], f"{row['points']}{'' if row['complete'] else ', random'}"]
        + [
            " / ".join(f"{row[kind][step]:.1%}" for step in ("16", "64"))
            for kind in ("model", "estimate", "random")
        ]
        for row in document["operators"]
    ]
    table = markdown(["operator", "points", "model", "estimate alone", "random"], rows)
    return f"{_tables_of(document)}.\n\n{table}"


def _tables_of(document: Document) -> str:
    days = " to ".join(dict.fromkeys(document["measured"]))
    return f"Tables of {', '.join(document['machines'])}, {days}"


KINDS: dict[str, Callable[..., str]] = {
    "all": all_table,
    "all-operators": operators_of_all,
    "headline": headline,
    "models": models,
    "products": products,
    "operators": operators,
    "relax-operators": relax_operators,
    "npu-models": npu_models,
    "npu-tuned": npu_tuned,
    "npu-parts": npu_parts,
    "cuda-zoo": cuda_zoo,
    "cost-models": cost_models,
    "replays": replays,
}
"""By the name that a mark in the page has."""
