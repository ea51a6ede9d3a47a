"""One library for every length, beside our own library of each length and ONNX Runtime's dynamic session.

    python -m benchmarks.lengths MODEL.onnx --shape input_ids=1x8..256 [--calls 200] [--at 8,17,64,128,256]

Prints one line per length (milliseconds of a call: static, dynamic, ONNX Runtime; ratios), and geometric
means.  ``--calls N`` draws N lengths from the range, and compares the dynamic library with ONNX Runtime at
all of them; static libraries are built for the lengths of ``--at``.  The dimension with the widest range
varies, others stay at their least size.  All take turns in one process, with as many threads as there are
cores; a rest before each turn lets the threads of the runtime before stop spinning.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import hetero_tvm
from hetero_tvm import api
from hetero_tvm.frontend import Span, parse_shape_option
from hetero_tvm.reference import sample_inputs
from hetero_tvm.runtime.signature import Signature

_REPEATS = 7
_REST = 0.05
"""Seconds between the turns of two runtimes."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--shape", action="append", required=True, type=parse_shape_option)
    parser.add_argument("--at", default="", help="sizes for static libraries")
    parser.add_argument("--calls", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.02, help="of each repeat of one runtime")
    parser.add_argument("--quick", action="store_true", help="both ends of the range, one between, 20 calls")
    parser.add_argument("--build-only", action="store_true", help="with --libraries: measure nothing")
    parser.add_argument("--libraries", type=Path, help="folder that keeps what was built")
    options = parser.parse_args()
    shapes = dict(options.shape)
    span = max((d for dims in shapes.values() for d in dims if isinstance(d, Span)), key=_width)
    sizes = [int(text) for text in options.at.split(",") if text]
    if options.quick:
        high = span.high or 512
        sizes = sizes or sorted({span.low, round(math.sqrt(max(span.low, 1) * high)), high})
        options.calls = options.calls or 20
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.libraries or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        seconds, paths = {}, {}
        for size in [None, *sizes]:
            path = folder / f"{Path(options.model).stem}-{'dynamic' if size is None else size}.so"
            if not path.exists():
                started = time.perf_counter()
                fixed = {n: _fixed(dims, size, span) for n, dims in shapes.items()}
                optimized = api.optimize_model(api.import_model(options.model, shapes=fixed))
                api.build_model(optimized).export(path)
                seconds[size] = time.perf_counter() - started
            paths[size] = path
        if seconds:
            print(json.dumps({"built_s": {str(size): round(s, 2) for size, s in seconds.items()}}))
        if options.build_only:
            return 0
        _report(options, span, {size: hetero_tvm.load(path) for size, path in paths.items()}, paths)
    return 0


def _width(span: Span) -> int:
    return (span.high or 512) - span.low


def _fixed(dims: tuple[int | Span, ...], size: int | None, varied: Span) -> tuple[int | Span, ...]:
    """The shape with ranges like ``varied`` at this size, and others at their least; None: as it is."""
    if size is None:
        return dims
    return tuple((size if _width(d) == _width(varied) else d.low) if isinstance(d, Span) else d for d in dims)


def _report(options: argparse.Namespace, span: Span, nets: Mapping, paths: Mapping) -> None:
    session = session_of(options.model, nets[None].threads)
    rows = []
    for size in (size for size in nets if size is not None):
        feeds = _inputs(options.model, nets[None].signature, size)
        times = at_size(nets[size], nets[None], session, feeds, options.seconds)
        rows.append((times["dynamic"] / times["static"], times["dynamic"] / times["ort"]))
        print(
            f"size {size:4d}: static {times['static'] * 1e3:8.3f} ms, dynamic {times['dynamic'] * 1e3:8.3f}, "
            f"ort {times['ort'] * 1e3:8.3f}; dynamic/static {rows[-1][0]:.3f}, dynamic/ort {rows[-1][1]:.3f}",
            flush=True,
        )
    if rows:
        print(
            f"geometric mean of {len(rows)} sizes: dynamic/static {_mean(r for r, _ in rows):.3f} "
            f"(largest {max(r for r, _ in rows):.3f}), dynamic/ort {_mean(r for _, r in rows):.3f}"
        )
    if options.calls:
        rng = np.random.default_rng(0)
        drawn = [int(n) for n in rng.integers(span.low, (span.high or 512) + 1, options.calls)]
        feeds = {size: _inputs(options.model, nets[None].signature, size) for size in set(drawn)}
        best: dict[str, dict[int, float]] = {"dynamic": {}, "ort": {}}
        for _ in range(3):
            for name, call in (
                ("dynamic", lambda f: nets[None](**f)),
                ("ort", lambda f: session.run(None, f)),
            ):
                time.sleep(_REST)
                call(feeds[drawn[0]])
                for size in drawn:
                    started = time.perf_counter()
                    call(feeds[size])
                    took = time.perf_counter() - started
                    best[name][size] = min(took, best[name].get(size, math.inf))
        ratios = [best["dynamic"][size] / best["ort"][size] for size in drawn]
        print(
            f"{len(drawn)} calls of random size: dynamic/ort {_mean(ratios):.3f}, largest {max(ratios):.3f}"
        )
    weights = Path(options.model).stat().st_size
    print(f"library {paths[None].stat().st_size / weights:.3f} x the model file ({weights / 1e6:.1f} MB)")


def session_of(model: str, threads: int) -> Any:
    """ONNX Runtime's session with as many threads as ours."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def at_size(static: Any, dynamic: Any, session: Any, feeds: dict, seconds: float) -> dict[str, float]:
    """Least seconds of a call of each library and of ONNX Runtime's ``session``, at one size."""
    calls = {
        "static": lambda: static(**feeds),
        "dynamic": lambda: dynamic(**feeds),
        "ort": lambda: session.run(None, feeds),
    }
    return interleaved(calls, seconds)


def interleaved(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Least seconds of a call, by name; the calls take turns."""
    counts, best = {}, dict.fromkeys(calls, math.inf)
    for name, call in calls.items():
        call()
        started = time.perf_counter()
        call()
        counts[name] = max(1, int(seconds / (time.perf_counter() - started)))
    for _ in range(_REPEATS):
        for name, call in calls.items():
            time.sleep(_REST)
            call()
            started = time.perf_counter()
            for _ in range(counts[name]):
                call()
            best[name] = min(best[name], (time.perf_counter() - started) / counts[name])
    return best


_declared: dict[str, object] = {}


def _inputs(model: str, signature: Signature, size: int) -> dict[str, np.ndarray]:
    """Inputs for one size of the dynamic library's symbols, each within its range."""
    import onnx

    if model not in _declared:
        _declared[model] = onnx.load(model, load_external_data=False)
    proto = _declared[model]
    widest = max(symbol.high - symbol.low for symbol in signature.symbols)
    sizes = {s.name: size if s.high - s.low == widest else s.low for s in signature.symbols}
    shapes = {spec.name: spec.shape for spec in signature.inputs}
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    for value in fixed.graph.input:
        for dim, known in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = sizes[known] if isinstance(known, str) else known
    return sample_inputs(fixed, size)


def _mean(values) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


if __name__ == "__main__":
    sys.exit(main())
