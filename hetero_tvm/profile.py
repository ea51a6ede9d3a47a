"""``python -m hetero_tvm.profile LIB``: what an exported library does on the NPU, operator by operator."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.cli import common as cli_common
from hetero_tvm.errors import UsageError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m hetero_tvm.profile", allow_abbrev=False,
        description="Run a library once and show cycles, utilisation, stalls and energy of its NPU regions.",
    )  # fmt: skip
    parser.add_argument("library", type=Path, help="an exported .so, or its folder")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome/Perfetto trace (JSON)")
    parser.add_argument("--top", type=cli_common.positive, default=20, help="operators to list (default: 20)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.add_argument("-q", "--quiet", action="store_true", help="no tables")
    parser.set_defaults(precision=None, shape=[])  # what cli_common.run looks at
    return cli_common.run(_run, parser, argv)


def _run(options: argparse.Namespace) -> int:
    import hetero_tvm
    from hetero_tvm.runtime.opening import resolve
    from hetero_tvm.targets.npu.device.profile import profile, totals, write_trace

    path = resolve(options.library.expanduser())
    if options.trace is not None and not options.trace.absolute().parent.is_dir():
        raise UsageError(f"--trace {options.trace}: there is no folder {options.trace.parent}")
    net = hetero_tvm.load(path)
    inputs = _inputs(net.signature)
    regions = profile(net, lambda: net(**inputs))
    if options.trace is not None:
        write_trace(options.trace, regions)
        cli_common.say(options, f"wrote {options.trace}")
    if options.json:
        cli_common.print_json(
            {
                "library": str(path),
                "totals": totals(regions),
                "regions": [region.to_json() for region in regions],
            }
        )
    elif not options.quiet:
        for region in regions:
            _print(region, options.top)
        if len(regions) > 1:
            _print_totals(totals(regions))
    return 0


def _inputs(signature: Any) -> dict[str, np.ndarray]:
    """Any valid values will do: the NPU's time does not depend on them."""
    rng = np.random.default_rng(0)
    result = {}
    for spec in signature.inputs:
        dtype = np.dtype(spec.dtype)
        shape = tuple(spec.shape)
        floats = dtype.kind == "f"
        result[spec.name] = rng.standard_normal(shape).astype(dtype) if floats else np.ones(shape, dtype)
    return result


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)


def _print_totals(total: dict[str, Any]) -> None:
    _console().print(
        f"all {total['regions']} regions: {total['cycles']:,.0f} cycles, {total['seconds'] * 1e3:.3f} ms, "
        f"DRAM {total['dram_bytes'] / 1e6:.1f} MB, {total['energy_joule'] * 1e3:.2f} mJ"
    )


def _print(region: Any, top: int) -> None:
    from rich.table import Table

    facts, spec = region.to_json(), region.spec
    console = _console()
    console.print(
        f"{region.name} on {spec.name}: {facts['cycles']:,.0f} cycles, {facts['seconds'] * 1e3:.3f} ms, "
        f"matrix unit {facts['matrix_utilisation']:.1%}, DRAM {facts['dram_read_bytes'] / 1e6:.1f} MB read "
        f"and {facts['dram_write_bytes'] / 1e6:.1f} MB written, {facts['energy_joule'] * 1e3:.2f} mJ"
    )
    whole = facts["cycles"] or 1.0
    queues = Table(title="queues, share of the cycles", title_justify="left")
    reasons = ["flag", "barrier", "latency", "dram", "port"]
    for column in ("queue", "busy", "issue", *(f"stall: {reason}" for reason in reasons), "idle at the end"):
        queues.add_column(column, justify="left" if column == "queue" else "right")
    for name, q in facts["queues"].items():
        shares = [q["busy"], q["issue"], *(q["stall"].get(reason, 0.0) for reason in reasons), q["idle"]]
        queues.add_row(name, *(f"{share / whole:.1%}" for share in shares))
    console.print(queues)
    count = len(region.operators)
    title = f"operators, the {top} longest of {count}" if count > top else f"all {count} operators"
    table = Table(title=title, title_justify="left")
    table.add_column("operator", overflow="fold")
    columns = ("cycles", "share", "matrix", "vector", "DRAM", "DRAM kB", "flop/byte", "of roof", "bound by")
    for column in (*columns, "longest wait", "uJ"):
        table.add_column(column, justify="right")
    for op in sorted(region.operators, key=lambda op: -op.cycles)[:top]:
        queue, reason, waited = op.longest_wait()
        shares = (op.matrix_utilisation, op.vector_utilisation, op.dram_utilisation(spec))
        table.add_row(
            op.name, f"{op.cycles:,.0f}", f"{op.cycles / whole:.1%}", *(f"{share:.0%}" for share in shares),
            f"{op.dram_bytes / 1e3:,.0f}", "-" if op.intensity is None else f"{op.intensity:.1f}",
            f"{op.roof_share(spec):.0%}", op.bound(spec)[0], f"{queue}: {reason} {waited:,.0f}",
            f"{op.joule * 1e6:,.1f}",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
