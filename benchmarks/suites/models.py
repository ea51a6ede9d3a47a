"""Suites of whole models: compiling, latency beside other runtimes, running alone, search, low precision."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measured import Figure, Row
from benchmarks.suites.base import Setup, Suite, command
from hetero_tvm.benchmarking.compare import Result

_ALL = ("minilm-l6", "bert-base", "gpt2-small", "vit-b16", "llama-160m", "resnet50", "mobilenetv2")
_QUICK = ("minilm-l6", "mobilenetv2")
_TUNED = ("minilm-l6", "bert-base", "resnet50", "mobilenetv2")
_OURS = "hetero_tvm"
_MEBI = 2**20


def _names(quick: bool) -> tuple[str, ...]:
    return _QUICK if quick else _ALL


def _only_whole(*names: str) -> Any:
    return lambda quick: () if quick else names


def _untuned(setup: Setup, name: str) -> Path:
    return setup.folder / name / "untuned"


def _build(setup: Setup, name: str) -> tuple[str, ...]:
    out = str(_untuned(setup, name))
    fresh = ("--no-shipped-records", "--logs", str(setup.folder / name / "no-records"))
    return ("hetero_tvm.build", f"zoo:{name}", *fresh, "--out", out)


def _compile(name: str, setup: Setup) -> Iterator[Row]:
    """Twice when quick, else four times; the first of them may fill caches of the compiler."""
    from hetero_tvm.runtime import read_manifest

    runs = [command(*_build(setup, name)) for _ in range(2 if setup.quick else 4)]
    for figure, values in (
        ("processor time", [run.processor_seconds for run in runs]),
        ("time", [run.seconds for run in runs]),
    ):
        yield Row(name, figure, "s", Figure(min(values), tuple(values)))
    peaks = [run.peak_bytes / _MEBI for run in runs]
    yield Row(name, "peak of the largest process", "MiB", Figure(min(peaks), tuple(peaks)))
    library = Path(runs[-1].document["library"])
    yield Row(name, "library", "MiB", Figure(library.stat().st_size / _MEBI), counted=True)
    memory = read_manifest(library).memory
    yield Row(name, "arena", "MiB", Figure(memory["peak"] / _MEBI), counted=True)
    bound = Figure(memory["peak"] / max(1, memory["lower_bound"]))
    yield Row(name, "arena / most bytes live at once", "x", bound, counted=True)


def latency_row(case: str, figure: str, runtimes: list[dict[str, Any]]) -> Row:
    """Row of what ``bench --json`` says of runtimes side by side, ours first (10th percentiles)."""
    found = {
        one["name"]: Figure(one["p10_ms"], tuple(one["rounds_p10_ms"]), one.get("version", ""))
        for one in runtimes
        if one["status"] == "ok"
    }
    ours = found.pop(_OURS)
    return Row(case, figure, "ms", ours, peers=found)


def _failures(case: str, runtimes: list[dict[str, Any]]) -> Iterator[Row]:
    for one in runtimes:
        if one["status"] != "ok":
            yield Row(case, f"latency of {one['name']}", failed=f"{one['status']}: {one['reason']}")


def peers_of(name: str, setup: Setup) -> tuple[str, ...]:
    """Runtimes beside a model: a quick run has PyTorch, which compiles for half a minute, beside one only."""
    dear = {"torch"} if setup.quick and name != _QUICK[0] else set()
    return tuple(peer for peer in setup.peers if peer not in dear) or setup.peers


def _bench(library: Path, name: str, setup: Setup) -> list[dict[str, Any]]:
    model = ("--model", f"zoo:{name}", "--vs", ",".join(peers_of(name, setup)))
    rounds = ("--rounds", "5", "--seconds", "0.2") if setup.quick else ("--rounds", "10")
    return command("hetero_tvm.bench", str(library), *model, *rounds).document["runtimes"]


def _models(name: str, setup: Setup) -> Iterator[Row]:
    library = _untuned(setup, name)
    if not (library / "model.so").exists():
        command(*_build(setup, name))
    runtimes = _bench(library, name, setup)
    yield latency_row(name, "latency", runtimes)
    yield from _failures(name, runtimes)


def _running(name: str, setup: Setup) -> Iterator[Row]:
    library = _untuned(setup, name)
    if not (library / "model.so").exists():
        command(*_build(setup, name))
    rounds = [
        command("hetero_tvm.bench", str(library), "--rounds", "2").document
        for _ in range(3 if setup.quick else 5)
    ]
    for figure, key in (("load", "load_ms"), ("first call", "first_call_ms")):
        values = tuple(one[key] for one in rounds)
        yield Row(name, figure, "ms", Figure(min(values), values))
    resident = tuple(one["memory"]["peak"] / _MEBI for one in rounds)
    yield Row(name, "memory of the process", "MiB", Figure(min(resident), resident))
    for number, stream in enumerate(rounds[0]["streams"]):
        rates = tuple(one["streams"][number]["per_second"] for one in rounds)
        figure = f"calls of {stream['streams']} callers"
        yield Row(name, figure, "1/s", Figure(max(rates), rates), more=True)


def _tuned(name: str, setup: Setup) -> Iterator[Row]:
    """A search from nothing: what it found, and how fast it went."""
    from benchmarks.models import compare

    with tempfile.TemporaryDirectory() as folder:
        row = compare(name, Path(folder), trials=64, peers=",".join(setup.peers), rounds=10)
    yield latency_row(name, "latency, 64 trials", row["tuned"])
    yield Row(name, "trials", "1/s", Figure(row["trials_per_s"]), more=True)


def _low_precision(name: str, setup: Setup) -> Iterator[Row]:
    """Each runtime with what its own tools make of the model, the float32 library beside."""
    import os

    from benchmarks.low_precision import measure

    with tempfile.TemporaryDirectory() as folder:
        ours, *others = measure(name, len(os.sched_getaffinity(0)), 10, Path(folder))
    figures = {result.name: _latency(result) for result in others if result.status == "ok"}
    yield Row(name, "latency, 8 bits", "ms", _latency(ours), peers=figures)


def _latency(result: Result) -> Figure:
    return Figure(float(np.median(result.compared)), tuple(float(np.median(turn)) for turn in result.turns))


def _write_open_bert(path: Path) -> None:
    """MiniLM as PyTorch exports it with an open length (transformers' implementation, drawn weights)."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    torch.manual_seed(0)
    model = BertModel(config, add_pooling_layer=False).eval()
    model.config.return_dict = False
    ids = torch.ones((1, 32), dtype=torch.int64)
    axes = {1: torch.export.Dim("length", min=2, max=512)}
    with torch.inference_mode():
        program = torch.onnx.export(
            model, (ids,), input_names=["input_ids"], dynamo=True, dynamic_shapes=(axes,), verbose=False
        )
    program.save(str(path))


def _lengths(name: str, setup: Setup) -> Iterator[Row]:
    """One library for 8 to 256 tokens, beside ONNX Runtime's session and beside one for that length."""
    import numpy as np

    import hetero_tvm
    from benchmarks.lengths import at_size, session_of

    model = setup.folder / f"{name}.onnx"
    if not model.exists():
        _write_open_bert(model)
    nets = {}
    for size in (None, 16, 64, 200):
        shapes = {"input_ids": (1, hetero_tvm.Span(8, 256) if size is None else size)}
        imported = hetero_tvm.import_model(str(model), shapes=shapes)
        path = setup.folder / f"{name}-{size}.so"
        hetero_tvm.build_model(hetero_tvm.optimize_model(imported), use_shipped=False).export(path)
        nets[size] = hetero_tvm.load(path)
    session = session_of(str(model), nets[None].threads)
    for size in (16, 64, 200):
        feeds = {"input_ids": np.ones((1, size), np.int64)}
        rounds = [at_size(nets[size], nets[None], session, feeds, 0.02) for _ in range(4)]
        best = {
            key: Figure(1e3 * min(one[key] for one in rounds), tuple(1e3 * one[key] for one in rounds))
            for key in rounds[0]
        }
        peers = {"onnxruntime": best["ort"], "one length": best["static"]}
        yield Row(name, f"latency at {size}", "ms", best["dynamic"], peers=peers)


def _decode(precision: str, setup: Setup) -> Iterator[Row]:
    from benchmarks.decode import library
    from hetero_tvm.benchmarking.decode import measure_decoding
    from hetero_tvm.generation.model import load_language_model

    folder = library(precision, setup.folder / "decode" / precision, None, setup.folder)
    measured = measure_decoding(load_language_model(folder), rounds=8)
    share = Figure(measured.to_dict()["share_of_bandwidth"], measured.shares)
    yield Row(precision, "share of the time to read the weights", "", share, more=True)
    yield Row(precision, "time of a token", "ms", Figure(1e3 * measured.seconds))


COMPILE = Suite("compile", "build of a model without records: time, memory, size", _names, _compile)
MODELS = Suite("models", "latency without records, beside other runtimes", _names, _models)
RUNNING = Suite(
    "running",
    "a library in a process of its own: loading, memory, throughput",
    lambda quick: _QUICK[:1] if quick else _ALL,
    _running,
)
TUNED = Suite("tuned", "latency after 64 trials from nothing", _only_whole(*_TUNED), _tuned)
LOW_PRECISION = Suite(
    "low_precision",
    "8-bit models, beside what other runtimes make of them",
    _only_whole("minilm-l6", "bert-base", "vit-b16", "resnet50", "mobilenetv2"),
    _low_precision,
)
LENGTHS = Suite("lengths", "one library for every length", _only_whole("open-minilm"), _lengths)
DECODE = Suite(
    "decode", "a language model of 300 M parameters, token by token", _only_whole("f16", "int4"), _decode
)
