"""``python -m hetero_tvm.inspect MODEL``: what the graph passes did, and why they did not do more.

MODEL may also be an exported library, which is then read and not loaded.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli import library_report as inspect_library
from hetero_tvm.errors import UsageError
from hetero_tvm.host.terminal import Column, Console, console, table

if TYPE_CHECKING:
    from hetero_tvm.api import OptimizedModel
    from hetero_tvm.memory.model_plan import MemoryPlan

_ANCHORS = {"softmax": "softmax", "gelu": "GELU", "norm": "mean square", "rotate_half": "rotated half"}


_EXAMPLES = {
    "bert.onnx --batch 1 --sequence 128": "fusions, near misses with reasons, kernels",
    "zoo:bert-base --memory --verify --plot arena.png": "the memory plan, checked and drawn",
    "net.onnx --dump-ir ir/": "the graph after each pass",
    "out/model.so": "kernels and records of a built library, without loading it",
}


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = "Show what was fused in a model and what was not, with reasons, or what a built library holds; "
    text += "nothing is compiled or loaded."
    parser = cli_common.model_parser("inspect", text, _EXAMPLES)
    parser.add_argument("--dump-ir", type=Path, metavar="DIR", help="write the IR after each pass")
    parser.add_argument("--memory", action="store_true", help="plan the memory, and show the plan")
    parser.add_argument("--verify", action="store_true", help="check the memory plan independently")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the arena over time (png, svg, pdf)")
    return parser


def _run(options: argparse.Namespace) -> int:
    if (library := inspect_library.library_of(options.model)) is not None:
        return _library(library, options)
    if options.plot is not None:
        from hetero_tvm.memory.plot import check_picture

        check_picture(options.plot)
    optimized = cli_common.load_optimized(options)
    document = describe(optimized)
    memory = None
    if options.memory or options.verify or options.plot is not None:
        from hetero_tvm.cli import memory_report

        memory, by_sizes = _memory(optimized, options)
        if options.verify:
            memory.verify()
        document["memory"] = memory_report.report(memory)
        if by_sizes:
            document["memory"]["by_sizes"] = [{"sizes": s, "peak": peak} for s, peak in by_sizes]
    if options.json:
        cli_common.print_json({"model": options.model, **document})
    elif not options.quiet:
        printer = console()
        _print(document, printer)
        if memory is not None:
            printer.print(*memory_report.tables(memory, printer.width))
            for sizes, peak in by_sizes:
                printer.print(
                    f"arena that a call of {', '.join(f'{n} = {size}' for n, size in sizes.items())} "
                    f"touches: {peak:,} bytes"
                )
    if memory is not None:
        if options.verify:
            cli_common.say(options, f"memory plan verified: {memory.peak:,} bytes, nothing live overlaps")
        if options.plot is not None:
            for path in memory_report.plot(memory, options.plot, optimized.model.name):
                cli_common.say(options, f"wrote {path}")
    if options.dump_ir is not None:
        cli_common.say(options, f"wrote the IR after each pass to {options.dump_ir}")
    return 0


def _library(path: Path, options: argparse.Namespace) -> int:
    """Prints what an exported library says about itself."""
    asked = ("memory", "verify", "plot", "dump_ir")
    if wrong := [f"--{name.replace('_', '-')}" for name in asked if getattr(options, name)]:
        raise UsageError(f"{', '.join(wrong)}: {path.name} is a built library", hint="name the model instead")
    document = inspect_library.describe(path)
    if options.json:
        cli_common.print_json(document)
    elif not options.quiet:
        inspect_library.show(document, console())
    return 0


def _memory(
    optimized: OptimizedModel, options: argparse.Namespace
) -> tuple[MemoryPlan, list[tuple[dict[str, int], int]]]:
    """The memory plan with the kernels that ``build`` would take, and its peak by open sizes."""
    from hetero_tvm.api import record_store
    from hetero_tvm.compile.build import memory_by_sizes, plan_memory
    from hetero_tvm.records.choose import choose

    first = optimized.variants()[0]
    cli_common.tell_missing_logs(options)
    store = record_store(first, options.logs, not options.no_shipped_records)
    choices = choose(first.tasks, first.machine, store)
    return plan_memory(optimized, choices), memory_by_sizes(optimized, choices)


def describe(optimized: OptimizedModel) -> dict[str, Any]:
    """An optimized model as JSON values: signature, placement, fusions, misses, anchors, times, kernels."""
    signature = optimized.signature

    def tensors(specs: Any) -> list[dict[str, Any]]:
        return [{"name": s.name, "shape": list(s.shape), "dtype": s.dtype} for s in specs]

    return {
        "name": optimized.model.name,
        "target": optimized.target.describe(),
        "inputs": tensors(signature.inputs),
        "outputs": tensors(signature.outputs),
        "placement": optimized.target.placement(optimized.module, optimized.tasks),
        **optimized.report.to_json(),
        "kernels": [
            {
                "kernel": task.name,
                "calls": task.count,
                "flops": task.flops,
                "bytes": task.nbytes,
                "space": task.space.name if task.space is not None else None,
                "refused": [] if task.op is None else optimized.target.space_for(task.op)[1],
                "nodes": list(task.calls[0]),
            }
            for task in optimized.tasks
        ],
    }


def _print(document: dict[str, Any], console: Console) -> None:
    def show(title: str, columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
        console.print(table(title, columns, rows, console.width))

    target = document["target"]
    words = [target["kind"], target.get("device"), target.get("precision"), *target.get("archs", ())]
    host = target["cpu"] and (f"(host {target['cpu']})" if target.get("device") else target["cpu"])
    console.print(" ".join([f"{document['name']} for", *filter(None, [*words, host])]))
    for way in ("inputs", "outputs"):
        for tensor in document[way]:
            shape = "x".join(map(str, tensor["shape"])) or "scalar"
            console.print(f"  {way[:-1]:7}{tensor['name']}: {shape} {tensor['dtype']}")
    if document["placement"] is not None:
        console.print(document["placement"])
    show("fusions", (Column("fusion", text=True), Column("count")), list(document["fusions"].items()))
    for kind, count in document["anchors"].items():
        console.print(f"{_ANCHORS[kind]}: {count['fused']} of {count['all']} inside fused operators")
    if document["misses"]:
        rows = [(miss["rule"], miss["node"], miss["reason"]) for miss in document["misses"]]
        show("not fused", [Column(heading, text=True) for heading in ("rule", "node", "reason")], rows)
    spaces = Counter()
    for kernel in document["kernels"]:
        spaces[kernel["space"] or "generic"] += kernel["calls"]
    show("kernels", (Column("design space", text=True), Column("calls")), spaces.most_common())
    show("time of the passes", (Column("pass", text=True), Column("ms")), _slow_passes(document["seconds"]))


def _slow_passes(seconds: Mapping[str, float]) -> list[tuple[str, str]]:
    """Rows of the passes that take 1% of the time or more, in the order they run; the others in one."""
    total = sum(seconds.values())
    told = {name: spent for name, spent in seconds.items() if spent >= 0.01 * total}
    others = len(seconds) - len(told)
    rest = [(f"{others} others, under 1% each", total - sum(told.values()))] if others else []
    return [(name, f"{1e3 * spent:.1f}") for name, spent in [*told.items(), *rest, ("all", total)]]


if __name__ == "__main__":
    sys.exit(main())
