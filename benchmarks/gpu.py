"""Kernels and models on an NVIDIA GPU, beside cuBLAS, PyTorch's attention and torch.compile.

    python benchmarks/gpu.py --out results.json            # everything, about 10 minutes
    python benchmarks/gpu.py --only matmul attention --trials 64
    HETERO_TVM_CUDA_EMULATE=1 python benchmarks/gpu.py --quick     # numbers only, on the CPU emulation

Every kernel is compared with PyTorch in float64 before it is timed; one that differs is reported as
wrong and never timed.  Times are medians over CUDA events, over several sets of random inputs that
do not fit the L2 cache together.  The JSON names the device, its clocks and driver.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from hetero_tvm.ops.attention import Attention  # noqa: E402
from hetero_tvm.ops.matmul import Matmul  # noqa: E402
from hetero_tvm.ops.normalization import Normalize  # noqa: E402
from hetero_tvm.ops.softmax import Softmax  # noqa: E402
from hetero_tvm.runtime import cuda_runtime  # noqa: E402
from hetero_tvm.targets.base import parse_target  # noqa: E402
from hetero_tvm.targets.cuda import codegen, facts  # noqa: E402

EMULATED = cuda_runtime.emulating()
DEVICE = "cpu" if EMULATED else "cuda"
_ATTENTION_TOLERANCE, _TOLERANCE = 2e-3, 1e-3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=["matmul", "attention", "rows", "models"])
    parser.add_argument("--trials", type=int, default=128, help="candidates per kernel (default: 128)")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, two candidates each")
    parser.add_argument("--out", type=Path, help="write the JSON here instead of on stdout")
    options = parser.parse_args()
    if not EMULATED and not torch.cuda.is_available():
        print("error: PyTorch sees no NVIDIA GPU (HETERO_TVM_CUDA_EMULATE=1 checks numbers without one)")
        return 1
    target = parse_target("cuda")
    document: dict[str, Any] = {"device": device_facts(), "arch": target.machine.arch, "emulated": EMULATED}
    steps = {"matmul": matmuls, "attention": attentions, "rows": rows, "models": models}
    for name, step in steps.items():
        if options.only is None or name in options.only:
            print(f"{name} ...", file=sys.stderr, flush=True)
            document[name] = step(target, options)
            write(document, options.out)
    if options.out is None:
        print(json.dumps(document, indent=1))
    return 1 if any(row.get("status") == "wrong" for name in steps for row in document.get(name, ())) else 0


def write(document: dict[str, Any], path: Path | None) -> None:
    """After each step: a run that is cut off leaves what it had."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")


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
    import tvm_ffi

    return tvm_ffi.from_dlpack(tensor.contiguous())


def to_torch(tensor: Any) -> torch.Tensor:
    return torch.from_numpy(tensor.numpy()) if EMULATED else torch.from_dlpack(tensor)


def blank(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=getattr(torch, dtype), device=DEVICE)


def median_seconds(calls: list[Callable[[], Any]], budget: float = 0.3) -> float | None:
    """Median time of one call, going round ``calls``; None under emulation, where time means nothing."""
    if EMULATED:
        return None
    stream = torch.cuda.current_stream()
    for call in calls:
        call()
    stream.synchronize()
    turn = itertools.cycle(calls)
    begin = time.perf_counter()
    for _ in range(5):
        next(turn)()
    stream.synchronize()
    once = max((time.perf_counter() - begin) / 5, 2e-6)
    inner = max(1, int(1e-3 / once))  # launches of small kernels are timed in groups
    samples = []
    for _ in range(max(7, min(200, int(budget / (once * inner))))):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(stream)
        for _ in range(inner):
            next(turn)()
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
    """Measure the points of a space; the best one whose numbers are right."""
    machine = target.machine
    points = [
        dict(zip([knob.name for knob in space.knobs(op, machine)], choice, strict=True))
        for choice in itertools.product(*(knob.choices for knob in space.knobs(op, machine)))
    ]
    default = dict(space.default(op, machine))
    points = [default, *(p for p in points if p != default)][: 2 if options.quick else options.trials]
    sets = input_sets(op)
    expected = truth(*(x.double() for x in sets[0]))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(lambda point: _built(op, space, point, target), points))
    best, failures, default_seconds = None, [], None
    for point, kernel, known in built:
        if kernel is None or known["spills"]:
            failures.append({"point": point, "why": known if kernel is None else "registers spill"})
            continue
        packers = space.pack(op, point, machine)
        packed = [
            [
                torch.from_numpy(packers[i](x.cpu().numpy())).to(DEVICE) if i in packers else x
                for i, x in enumerate(arguments)
            ]
            for arguments in sets
        ]
        output = on_device(blank(op.output.shape, op.output.dtype))
        handles = [[on_device(x) for x in arguments] for arguments in packed]
        kernel(*handles[0], output)
        error = largest_error(to_torch(output), expected)
        if not error <= tolerance:
            failures.append({"point": point, "why": f"wrong by {error:.3g}"})
            continue
        calls = [functools.partial(kernel, *h, output) for h in handles]
        seconds = median_seconds(calls, 0.05)
        if point == default:
            default_seconds = seconds
        if best is None or (seconds is not None and seconds < best["seconds"]):
            best = {
                "point": point,
                "seconds": seconds,
                "error": error,
                "facts": known["kernels"],
                "calls": calls,
            }
    wrong = any("wrong" in str(failure["why"]) for failure in failures)
    if best is None:
        return {"status": "wrong" if wrong else "failed", "failures": failures}
    best["seconds"] = median_seconds(best.pop("calls"))
    return {
        "status": "wrong" if wrong else "ok", **best, "default_seconds": default_seconds,
        "candidates": len(points), "failures": failures,
    }  # fmt: skip


def _built(op: Any, space: Any, point: dict[str, Any], target: Any) -> tuple[Any, Any, Any]:
    try:
        return point, *kernel_of(space.emit(op, point, target.machine), target)
    except Exception as error:  # one bad candidate is one line in the report
        return point, None, str(error).strip().splitlines()[-1]


def compared(row: dict[str, Any], peer: str, peer_seconds: float | None) -> dict[str, Any]:
    seconds = row.get("seconds")
    ratio = peer_seconds / seconds if seconds and peer_seconds else None
    return {**row, f"{peer}_seconds": peer_seconds, f"speed_of_{peer}": ratio}


# --- what is measured ----------------------------------------------------------------------------
def matmuls(target: Any, options: Any) -> list[dict[str, Any]]:
    """float16 products beside cuBLAS (torch.matmul)."""
    shapes = [(32, 64, 64)] if options.quick else [
        (4096, 4096, 4096), (8192, 8192, 8192), (4096, 768, 768), (4096, 3072, 768), (4096, 768, 3072),
        (128, 768, 768), (16, 4096, 4096), (1, 4096, 4096),
    ]  # fmt: skip
    found = []
    for m, n, k in shapes:
        op = Matmul((m,), n, k, (), "float16")
        space, reasons = target.space_for(op)
        if space is None:
            found.append({"task": op.label, "status": "refused", "reasons": reasons})
            continue
        row = tune(op, space, target, options, lambda x, w: x @ w, _TOLERANCE)
        sets = input_sets(op)
        peer = median_seconds([lambda a=a: torch.matmul(a[0], a[1]) for a in sets])
        row = compared({"task": op.label, **row}, "cublas", peer)
        if row.get("seconds"):
            row["tflops"] = op.flops / row["seconds"] / 1e12
        found.append(row)
    return found


def attentions(target: Any, options: Any) -> list[dict[str, Any]]:
    """float16 attention beside torch's flash backend."""
    cases = [(1, 2, 40, 32, True)] if options.quick else [
        (b, h, s, d, causal)
        for s, b in ((512, 16), (2048, 4), (8192, 1))
        for h, d in ((16, 64), (16, 128))
        for causal in (False, True)
    ]  # fmt: skip
    found = []
    for batch, heads, length, dim, causal in cases:
        op = Attention(batch, heads, length, length, dim, dim**-0.5, heads, causal=causal, dtype="float16")
        space, reasons = target.space_for(op)
        if space is None:
            found.append({"task": op.label, "status": "refused", "reasons": reasons})
            continue

        def split(x: torch.Tensor, op: Attention = op) -> torch.Tensor:
            return x.reshape(op.batch, -1, op.heads, op.head_dim).transpose(1, 2)

        def sdpa(q: Any, k: Any, v: Any, op: Attention = op, split: Any = split) -> torch.Tensor:
            attention = torch.nn.functional.scaled_dot_product_attention
            return attention(split(q), split(k), split(v), is_causal=op.causal)

        def truth(q: Any, k: Any, v: Any, op: Attention = op, sdpa: Any = sdpa) -> torch.Tensor:
            return sdpa(q, k, v).transpose(1, 2).reshape(op.output.shape)

        row = tune(op, space, target, options, truth, _ATTENTION_TOLERANCE)
        peer = None
        if not EMULATED:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                peer = median_seconds([lambda a=a: sdpa(*a) for a in input_sets(op)])
        row = compared({"task": op.label, **row}, "flash", peer)
        if row.get("seconds"):
            row["tflops"] = op.flops / row["seconds"] / 1e12
        found.append(row)
    return found


def rows(target: Any, options: Any) -> list[dict[str, Any]]:
    """Softmax and norms beside the bandwidth of a plain copy."""
    lead, n = ((4,), 64) if options.quick else ((8192,), 4096)
    copy = None
    if not EMULATED:
        source = [torch.empty(lead[0] * n, device=DEVICE) for _ in range(4)]
        goal = torch.empty_like(source[0])
        copy = 2 * goal.nbytes / median_seconds([lambda s=s: goal.copy_(s) for s in source])
    layer_norm = torch.nn.functional.layer_norm
    cases = [
        (Softmax(lead, n), lambda x: torch.softmax(x, -1)),
        (Normalize(lead, n, 1e-5), lambda x, w, b: layer_norm(x, (n,), w, b, 1e-5)),
        (Normalize(lead, n, 1e-5, dtype="float16"), lambda x, w, b: layer_norm(x, (n,), w, b, 1e-5)),
    ]
    found = []
    for op, truth in cases:
        space, _ = target.space_for(op)
        if space is not None:
            row = tune(op, space, target, options, truth, _TOLERANCE)
        else:
            kernel, known = kernel_of(target.schedule_generic(op.workload()), target)
            sets = input_sets(op)
            output = on_device(blank(op.output.shape, op.output.dtype))
            handles = [[on_device(x) for x in arguments] for arguments in sets]
            kernel(*handles[0], output)
            error = largest_error(to_torch(output), truth(*(x.double() for x in sets[0])))
            seconds = median_seconds([lambda h=h, k=kernel, o=output: k(*h, o) for h in handles])
            status = "ok" if error <= _TOLERANCE else "wrong"
            row = {"status": status, "error": error, "seconds": seconds, "facts": known["kernels"]}
        if row.get("seconds"):
            row["bandwidth"] = op.nbytes / row["seconds"]
            row["share_of_copy"] = row["bandwidth"] / copy
        found.append({"task": op.label, "space": space.name if space else "generic", "copy": copy, **row})
    return found


def models(target: Any, options: Any) -> list[dict[str, Any]]:
    """Whole models in float16 beside torch.compile (max-autotune) of the same graph."""
    import tempfile

    from hetero_tvm import zoo
    from hetero_tvm.api import build_model, import_model, optimize_model
    from hetero_tvm.benchmarking.onnx_torch import to_torch as to_torch_module
    from hetero_tvm.reference import sample_inputs
    from hetero_tvm.runtime import load

    names = ["minilm-l6-tiny"] if options.quick else ["bert-base", "gpt2-small"]
    sizes = {} if options.quick else {"batch": 8, "sequence": 512}
    found = []
    for name in names:
        model = import_model(f"zoo:{name}", **sizes)
        built = build_model(optimize_model(model, target, precision="f16"))
        row: dict[str, Any] = {"task": f"{name} f16 {sizes}"}
        if options.quick:
            row["accuracy"] = str(built.check())
        with tempfile.TemporaryDirectory() as folder:
            net = load(built.export(folder))
            inputs = sample_inputs(model, 0)
            ours = net(**inputs)
            ours = ours if isinstance(ours, tuple) else (ours,)
            if EMULATED:
                found.append({**row, "status": "ok"})
                continue
            places = [torch.from_numpy(inputs[s.name]).cuda() for s in model.signature.inputs]
            handles = [on_device(place) for place in places]
            stream = torch.cuda.current_stream().cuda_stream
            seconds = median_seconds([functools.partial(net.on_device, *handles, stream=stream)], 2.0)
        module = to_torch_module(zoo.build(name, **sizes)).cuda().half().eval()
        compiled = torch.compile(module, mode="max-autotune")
        with torch.inference_mode():
            theirs = compiled(*places)
            theirs = theirs if isinstance(theirs, tuple) else (theirs,)
            pairs = zip(ours, theirs, strict=True)
            error = max(largest_error(torch.from_numpy(a), b.double().cpu()) for a, b in pairs)
            peer = median_seconds([functools.partial(compiled, *places)], 2.0)
        row |= {"status": "ok" if error <= 4e-2 else "wrong", "difference": error, "seconds": seconds}
        found.append(compared(row, "torch_compile", peer))
    return found


if __name__ == "__main__":
    sys.exit(main())
