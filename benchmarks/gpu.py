"""Kernels and models on an NVIDIA GPU, beside cuBLAS, PyTorch's attention and torch.compile.

    python benchmarks/gpu.py --out results.json            # everything; again, until it says "complete"
    python benchmarks/gpu.py --out results.json --only matmul attention --trials 64
    HETERO_TVM_CUDA_EMULATE=1 python benchmarks/gpu.py --quick     # numbers only, on the CPU emulation

A command starts nothing new after ``--minutes`` (9); the next one goes on with the rows and tuning records
that are missing.  Kernels are tuned as by ``hetero_tvm.tune``, in processes of their own.  The winner is
compared with PyTorch in float64; one that differs is reported as wrong and never timed.  Times are medians
over CUDA events of launches in one CUDA graph, ours and PyTorch's alike, over several sets of random
inputs that do not fit the L2 cache together.  The JSON names the device, its clocks and driver.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

import tvm_ffi  # noqa: E402

from hetero_tvm.ops.attention import Attention  # noqa: E402
from hetero_tvm.ops.matmul import Matmul  # noqa: E402
from hetero_tvm.ops.normalization import Normalize  # noqa: E402
from hetero_tvm.ops.softmax import Softmax  # noqa: E402
from hetero_tvm.runtime import cuda_runtime  # noqa: E402
from hetero_tvm.search.choose import choose_one  # noqa: E402
from hetero_tvm.search.device_workers import DEVICE_LIMITS, DeviceWorkers, open_benches  # noqa: E402
from hetero_tvm.search.loop import TuneOptions  # noqa: E402
from hetero_tvm.search.loop import tune as search  # noqa: E402
from hetero_tvm.search.records import RecordStore, Site  # noqa: E402
from hetero_tvm.targets.base import parse_target  # noqa: E402
from hetero_tvm.targets.cuda import codegen, facts  # noqa: E402
from hetero_tvm.tasks import Task  # noqa: E402

EMULATED = cuda_runtime.emulating()
DEVICE = "cpu" if EMULATED else "cuda"
_ATTENTION_TOLERANCE, _TOLERANCE = 2e-3, 1e-3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(STEPS))
    parser.add_argument("--trials", type=int, default=128, help="candidates per kernel (default: 128)")
    parser.add_argument("--minutes", type=float, default=9.0, help="start nothing after these (default: 9)")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, two candidates each")
    parser.add_argument("--out", type=Path, help="write the JSON here, row by row, instead of on stdout")
    parser.add_argument("--logs", type=Path, help="tuning records (default: beside --out)")
    options = parser.parse_args(arguments)
    if not EMULATED and not torch.cuda.is_available():
        print("error: PyTorch sees no NVIDIA GPU (HETERO_TVM_CUDA_EMULATE=1 checks numbers without one)")
        return 1
    target = parse_target("cuda")
    book = Book(options, {"device": device_facts(), "arch": target.machine.arch, "emulated": EMULATED})
    with tempfile.TemporaryDirectory() as scratch:
        options.logs = options.logs or (options.out.parent / "logs" if options.out else Path(scratch))
        with DeviceWorkers(open_benches(target, None), target.machine, target.offload[0]) as options.workers:
            for name, step in STEPS.items():
                if options.only is None or name in options.only:
                    print(f"{name} ...", file=sys.stderr, flush=True)
                    step(target, options, book.section(name))
    if options.out is None:
        print(json.dumps(book.document, indent=1))
    if book.skipped:
        print(f"not started, time is over: {', '.join(book.skipped)}; run it again", file=sys.stderr)
        return 3
    print("complete", file=sys.stderr)
    rows = [row for name in STEPS for row in book.document.get(name, ())]
    return 1 if any(row.get("status") == "wrong" for row in rows) else 0


class Book:
    """The results: what an earlier run has left, and every new row on disk when it is known."""

    def __init__(self, options: Any, head: dict[str, Any]):
        self.document: dict[str, Any] = dict(head)
        self._path = options.out
        self._end = time.monotonic() + 60 * options.minutes
        self.skipped: list[str] = []
        if self._path is not None and self._path.exists():
            before = json.loads(self._path.read_text())
            if before["device"].get("name") != head["device"].get("name"):
                raise SystemExit(
                    f"error: {self._path} is of {before['device'].get('name')}; give another --out"
                )
            self.document = {**before, **head}

    def section(self, name: str) -> Callable[[str, Callable[[], dict[str, Any]]], None]:
        """A function that measures the row ``task`` of this section, unless it is there."""
        rows = self.document.setdefault(name, [])

        def row(task: str, measure: Callable[[], dict[str, Any]]) -> None:
            if any(old["task"] == task and old["status"] in ("ok", "refused") for old in rows):
                return
            if time.monotonic() > self._end:
                self.skipped.append(task)
                return
            try:
                found = measure()
            except Exception as error:  # the other rows are worth having
                found = {"status": "failed", "why": str(error).strip().splitlines()[-1:]}
            rows[:] = [old for old in rows if old["task"] != task] + [{"task": task, **found}]
            print(f"  {task}: {found['status']}", file=sys.stderr, flush=True)
            self.write()

        return row

    def write(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self.document, indent=1) + "\n")


def device_facts() -> dict[str, Any]:
    if EMULATED:
        return {"name": cuda_runtime.device().name}
    fields = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0"]
    try:
        values = (
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split(", ")
        )
    except (OSError, subprocess.CalledProcessError):
        values = [torch.cuda.get_device_name()]
    return {**dict(zip(fields.split(","), values, strict=False)), "torch": torch.__version__}


# --- running and timing --------------------------------------------------------------------------
def on_device(tensor: torch.Tensor) -> Any:
    if EMULATED:
        return tvm.runtime.tensor(tensor.numpy(), tvm.cuda(0))
    return tvm_ffi.from_dlpack(tensor.contiguous())


def to_torch(tensor: Any) -> torch.Tensor:
    return torch.from_numpy(tensor.numpy()) if EMULATED else torch.from_dlpack(tensor)


def blank(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=getattr(torch, dtype), device=DEVICE)


def median_seconds(calls: list[Callable[[], Any]], budget: float = 0.3, graph: bool = True) -> float | None:
    """Median time of one call, going round ``calls``; None under emulation, where time means nothing.

    ``graph``: several launches become one CUDA graph, so that what a launch costs Python is not measured.
    """
    if EMULATED:
        return None
    turn = itertools.cycle(calls)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), tvm_ffi.use_raw_stream(tvm.cuda(0), stream.cuda_stream):
        for call in calls:
            call()
        stream.synchronize()
        begin = time.perf_counter()
        for _ in range(5):
            next(turn)()
        stream.synchronize()
        once = max((time.perf_counter() - begin) / 5, 2e-6)
        inner = max(1, min(200, int(2e-3 / once)))

        def work() -> None:
            for _ in range(inner):
                next(turn)()

        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured, stream=stream):
                work()
            work = captured.replay
        samples = []
        for _ in range(max(7, min(200, int(budget / (once * inner))))):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(stream)
            work()
            end.record(stream)
            end.synchronize()
            samples.append(start.elapsed_time(end) / 1e3 / inner)
    return statistics.median(samples)


def kernel_of(function: Any, target: Any) -> tuple[Any, dict[str, Any]]:
    """A compiled kernel and its static facts."""
    with codegen.collect() as made:
        module = tvm.IRModule({"main": target.stamp(function).with_attr("global_symbol", "main")})
        library = codegen.compile_kernels(module, target.tvm_target)
    found = facts.of_module(made[0]).values()
    return library["main"], {"spills": any(f["stack"] for f in found), "kernels": list(found)}


def input_sets(op: Any, seed: int = 0) -> list[list[torch.Tensor]]:
    """Sets of random inputs that overflow L2 together (at most 8)."""
    nbytes = sum(x.nbytes for x in op.inputs)
    count = 1 if EMULATED else max(2, min(8, (120 << 20) // nbytes + 1))
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return [
        [
            torch.randn(x.shape, generator=generator, device=DEVICE, dtype=torch.float32).to(
                getattr(torch, x.dtype)
            )
            for x in op.inputs
        ]
        for _ in range(count)
    ]


def largest_error(result: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative to the largest value; infinite when anything was not written."""
    difference = (result.double() - truth).abs().max().item()
    return difference / truth.abs().max().item() if np.isfinite(difference) else float("inf")


def tune(
    op: Any, space: Any, target: Any, options: Any, truth: Callable[..., torch.Tensor], tolerance: float
) -> dict[str, Any]:
    """Search the space, then check and time the winner beside the default in this process."""
    machine = target.machine
    key = hashlib.sha256(op.to_json().encode()).hexdigest()[:16]
    task = Task(key, op.label, op, op.workload(), space, (("benchmark",),), op.flops, op.nbytes)
    site = Site.of(machine, target.record_kind, cuda_runtime.device().name)
    store = RecordStore(site, options.logs)
    settings = TuneOptions(trials=2 if options.quick else options.trials, limits=DEVICE_LIMITS)
    report = search([task], machine, settings, store, workers=options.workers)
    default = dict(space.default(op, machine))
    best = choose_one(task, machine, store).point
    expected = truth(*(x.double() for x in input_sets(op)[0]))
    found = timed(op, space, best, target, expected, tolerance)
    searched = {
        "trials": len(store.trials(task)),
        "failures": dict(report.failures),
        "default_seconds": found.get("seconds"),
    }
    if best != default:
        searched["default_seconds"] = timed(op, space, default, target, expected, tolerance).get("seconds")
    return {"point": best, **found, **searched}


def timed(op: Any, space: Any, point: Any, target: Any, expected: Any, tolerance: float) -> dict[str, Any]:
    """One point: its largest error against PyTorch, its time, facts of its code."""
    kernel, known = kernel_of(space.emit(op, point, target.machine), target)
    packers = space.pack(op, point, target.machine)
    output = on_device(blank(op.output.shape, op.output.dtype))
    handles = [
        [
            on_device(torch.from_numpy(packers[i](x.cpu().numpy())).to(DEVICE) if i in packers else x)
            for i, x in enumerate(arguments)
        ]
        for arguments in input_sets(op)
    ]
    kernel(*handles[0], output)
    error = largest_error(to_torch(output), expected)
    if not error <= tolerance:
        return {"status": "wrong", "error": error, "facts": known["kernels"]}
    seconds = median_seconds([functools.partial(kernel, *h, output) for h in handles])
    return {"status": "ok", "error": error, "seconds": seconds, "facts": known["kernels"]}


def compared(row: dict[str, Any], peer: str, peer_seconds: float | None) -> dict[str, Any]:
    seconds = row.get("seconds")
    ratio = peer_seconds / seconds if seconds and peer_seconds else None
    return {**row, f"{peer}_seconds": peer_seconds, f"speed_of_{peer}": ratio}


# --- what is measured ----------------------------------------------------------------------------
def matmuls(target: Any, options: Any, row: Callable[..., None]) -> None:
    """float16 products beside cuBLAS (torch.matmul)."""
    shapes = [(32, 64, 64)] if options.quick else [
        (4096, 4096, 4096), (8192, 8192, 8192), (4096, 768, 768), (4096, 3072, 768), (4096, 768, 3072),
        (128, 768, 768), (16, 4096, 4096), (1, 4096, 4096),
    ]  # fmt: skip

    def measure(op: Any) -> dict[str, Any]:
        space, reasons = target.space_for(op)
        if space is None:
            return {"status": "refused", "reasons": reasons}
        found = tune(op, space, target, options, lambda x, w: x @ w, _TOLERANCE)
        sets = input_sets(op)
        peer = median_seconds([lambda a=a: torch.matmul(a[0], a[1]) for a in sets])
        found = compared(found, "cublas", peer)
        return with_rate(op, found)

    for m, n, k in shapes:
        op = Matmul((m,), n, k, (), "float16")
        row(op.label, functools.partial(measure, op))


def with_rate(op: Any, found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "tflops": op.flops / found["seconds"] / 1e12} if found.get("seconds") else found


def attentions(target: Any, options: Any, row: Callable[..., None]) -> None:
    """float16 attention beside torch's flash backend."""
    cases = [(1, 2, 40, 32, True)] if options.quick else [
        (b, h, s, d, causal)
        for s, b in ((2048, 4), (512, 16), (8192, 1))
        for h, d in ((16, 64), (16, 128))
        for causal in (True, False)
    ]  # fmt: skip

    def measure(op: Any) -> dict[str, Any]:
        space, reasons = target.space_for(op)
        if space is None:
            return {"status": "refused", "reasons": reasons}

        def split(x: torch.Tensor) -> torch.Tensor:
            return x.reshape(op.batch, -1, op.heads, op.head_dim).transpose(1, 2)

        def sdpa(q: Any, k: Any, v: Any) -> torch.Tensor:
            attention = torch.nn.functional.scaled_dot_product_attention
            return attention(split(q), split(k), split(v), is_causal=op.causal)

        def truth(q: Any, k: Any, v: Any) -> torch.Tensor:
            return sdpa(q, k, v).transpose(1, 2).reshape(op.output.shape)

        found = tune(op, space, target, options, truth, _ATTENTION_TOLERANCE)
        peer = None
        if not EMULATED:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                peer = median_seconds([lambda a=a: sdpa(*a) for a in input_sets(op)])
        return with_rate(op, compared(found, "flash", peer))

    for batch, heads, length, dim, causal in cases:
        op = Attention(batch, heads, length, length, dim, dim**-0.5, heads, causal=causal, dtype="float16")
        row(op.label, functools.partial(measure, op))


def rows(target: Any, options: Any, row: Callable[..., None]) -> None:
    """Softmax and norms beside the bandwidth of a plain copy."""
    lead, n = ((4,), 64) if options.quick else ((8192,), 4096)
    layer_norm = torch.nn.functional.layer_norm
    cases = [
        (Softmax(lead, n), lambda x: torch.softmax(x, -1)),
        (Normalize(lead, n, 1e-5), lambda x, w, b: layer_norm(x, (n,), w, b, 1e-5)),
        (Normalize(lead, n, 1e-5, dtype="float16"), lambda x, w, b: layer_norm(x, (n,), w, b, 1e-5)),
    ]

    def measure(op: Any, truth: Any) -> dict[str, Any]:
        space, reasons = target.space_for(op)
        if space is None:
            return {"status": "refused", "reasons": reasons}
        found = tune(op, space, target, options, truth, _TOLERANCE)
        if found.get("seconds"):
            source = [torch.empty(lead[0] * n, device=DEVICE) for _ in range(4)]
            goal = torch.empty_like(source[0])
            copy = 2 * goal.nbytes / median_seconds([lambda s=s: goal.copy_(s) for s in source])
            found["bandwidth"] = op.nbytes / found["seconds"]
            found |= {"copy": copy, "share_of_copy": found["bandwidth"] / copy}
        return found

    for op, truth in cases:
        row(op.label, functools.partial(measure, op, truth))


def models(target: Any, options: Any, row: Callable[..., None]) -> None:
    """Whole models in float16 beside torch.compile (max-autotune) of the same graph."""
    names = ["minilm-l6-tiny"] if options.quick else ["bert-base", "gpt2-small"]
    sizes = {} if options.quick else {"batch": 8, "sequence": 512}

    def measure(name: str) -> dict[str, Any]:
        from hetero_tvm import zoo
        from hetero_tvm.api import build_model, import_model, optimize_model, tune_model
        from hetero_tvm.benchmarking.onnx_torch import to_torch as to_torch_module
        from hetero_tvm.reference import sample_inputs
        from hetero_tvm.runtime import load

        model = import_model(f"zoo:{name}", **sizes)
        plan = optimize_model(model, target, precision="f16")
        if not options.quick:
            plan = tune_model(plan, trials=options.trials, minutes=2.5, logs=options.logs)
        built = build_model(plan, logs=options.logs)
        found: dict[str, Any] = {"sizes": sizes}
        if options.quick:
            found["accuracy"] = str(built.check())
        with tempfile.TemporaryDirectory() as folder:
            net = load(built.export(folder))
            inputs = sample_inputs(model, 0)
            ours = net(**inputs)
            ours = ours if isinstance(ours, tuple) else (ours,)
            if EMULATED:
                return {**found, "status": "ok"}
            places = [torch.from_numpy(inputs[s.name]).cuda() for s in model.signature.inputs]
            # Called as a user calls it; the library has CUDA graphs of its own.
            seconds = median_seconds([functools.partial(net.on_device, *places)], 2.0, graph=False)
            found["cuda_graph"] = net.cuda_graph
        module = to_torch_module(zoo.build(name, **sizes)).cuda().half().eval()
        compiled = torch.compile(module, mode="max-autotune")
        with torch.inference_mode():
            theirs = compiled(*places)
            theirs = theirs if isinstance(theirs, tuple) else (theirs,)
            pairs = zip(ours, theirs, strict=True)
            error = max(largest_error(torch.from_numpy(a), b.double().cpu()) for a, b in pairs)
            peer = median_seconds([functools.partial(compiled, *places)], 2.0, graph=False)
        found |= {"status": "ok" if error <= 4e-2 else "wrong", "difference": error, "seconds": seconds}
        return compared(found, "torch_compile", peer)

    for name in names:
        row(f"{name} f16", functools.partial(measure, name))


STEPS = {"matmul": matmuls, "attention": attentions, "rows": rows, "models": models}

if __name__ == "__main__":
    sys.exit(main())
