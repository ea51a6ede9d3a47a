"""Suites of parts: single operators and products, the search's proposals, the planner, calls, the NPU."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measured import Figure, Row
from benchmarks.suites.base import Setup, Suite

_OPERATORS = (
    "conv1d k3",
    "conv2d 3x3",
    "conv2d depthwise 3x3",
    "maxpool 3x3 s2",
    "reduce mean of two axes",
    "softmax of a vocabulary",
    "layer norm 197x768",
    "transpose 2048x2048",
    "resize linear 2x",
    "erf gelu",
    "matmul 197x768x3072",
    "gather of embeddings",
)
"""One of each kind, for quick runs."""


def _operator_cases(quick: bool) -> tuple[str, ...]:
    if quick:
        return _OPERATORS
    from benchmarks.operators import CASES  # with those of the files that add to the list

    return tuple(CASES)


def _operator(name: str, setup: Setup) -> Iterator[Row]:
    from benchmarks.operators import Turns, Worker, build, measure, prepare
    from hetero_tvm import host

    folder = setup.folder / "operators" / name.replace(" ", "_")
    prepare(build(name), folder, "cpu", keep=True)

    def start() -> list[Worker]:
        cores = list(host.available_cores())[:2]
        workers = [Worker(runtime, cores) for runtime in ("hetero_tvm", "onnxruntime")]
        for worker in workers:
            setup.stack.callback(worker.stop)
        return workers

    found = measure(name, folder, setup.shared("operators", start), Turns())
    ours, theirs = (
        Figure(found[runtime]["p10_ms"], tuple(found[runtime]["rounds_p10_ms"]))
        for runtime in ("hetero_tvm", "onnxruntime")
    )
    yield Row(name, "latency", "ms", ours, peers={"onnxruntime": theirs})


def _product(name: str, setup: Setup) -> Iterator[Row]:
    """Share of the FMA peak by default and after a search, and how fast the search goes."""
    from benchmarks.matmul import measure, task_of, tuned
    from hetero_tvm.targets.registry import parse_target

    machine, task = parse_target("cpu").machine, task_of(name)
    for trials, figure in ((0, "share of the peak, default"), (32, "share of the peak, 32 trials")):
        point, rate = tuned(task, machine, trials)
        shares = []
        for _ in range(3):
            seconds, peak = measure(task, point, machine, rounds=2 if setup.quick else 4)
            shares.append(task.flops / seconds / 1e9 / peak)
        yield Row(name, figure, "", Figure(max(shares), tuple(shares)), more=True)
        if rate is not None:
            yield Row(name, "trials", "1/s", Figure(rate), more=True)


def _proposals(name: str, setup: Setup) -> Iterator[Row]:
    """Regrets on the shipped tables: computed from them, the same on every machine."""
    from benchmarks.search import judged_spaces

    judged = [row for row, _ in judged_spaces()]
    if not judged:
        raise RuntimeError("there are no shipped tables for the spaces as they are now")
    for row in judged:
        for kind in ("model", "random"):
            yield Row(
                name, f"{row['space']}, {kind}", "%", Figure(100 * row[f"{kind} regret@16"]), counted=True
            )


def _planner_cases(quick: bool) -> tuple[str, ...]:
    from benchmarks.planner import generated

    names = tuple(name for name, _ in generated())
    return tuple(name for name in names if name.endswith(("100", "300", "2000"))) if quick else names


def _planner(name: str, setup: Setup) -> Iterator[Row]:
    from benchmarks.planner import generated, greedy_ratio
    from hetero_tvm.memory import check_plan, plan

    problem = next(problem for known, problem in generated() if known == name)
    taken = []
    for _ in range(1 if setup.quick else 3):
        result = plan(problem, seconds=3.0 if setup.quick else 10.0)
        check_plan(problem, result.offsets, capacity=result.peak)
        taken.append(result.seconds)
    bound = result.lower_bound or 1
    greedy = greedy_ratio(problem, bound)
    peers = {} if greedy is None else {"greedy by size": Figure(greedy)}
    yield Row(name, "peak / lower bound", "x", Figure(result.peak / bound), counted=True, peers=peers)
    yield Row(name, "time", "s", Figure(min(taken), tuple(taken)))


def _calls(name: str, setup: Setup) -> Iterator[Row]:
    """Microseconds of a call of a tiny model: what is not computing."""
    import numpy as np

    from benchmarks.calls import measure

    taken = measure(5000 if setup.quick else 20000)
    for kind in ("hot", "cold"):
        found = {}
        for way, kinds in taken.items():
            rounds = tuple(1e6 * float(np.percentile(times, 10)) for times in kinds[kind])
            found[way] = Figure(float(np.median(rounds)), rounds)
        theirs = found["onnxruntime run"]
        for way in ("hetero_tvm", "hetero_tvm bound"):
            yield Row(name, f"{way}, {kind}", "us", found[way], peers={"onnxruntime": theirs})


def _npu(name: str, setup: Setup) -> Iterator[Row]:
    from benchmarks.npu import row

    for target in ("npu:mobile", "npu:datacenter"):
        found = row(f"zoo:{name}", target, without=False)
        bound = max(found[kind] for kind in ("matrix", "vector", "DRAM"))
        cycles = Figure(found["cycles"])
        yield Row(name, f"{target}, simulated", "cycles", cycles, counted=True)
        yield Row(name, f"{target}, cycles / bound", "x", Figure(found["cycles"] / bound), counted=True)


def _npu_cases(quick: bool) -> tuple[str, ...]:
    return ("minilm-l6",) if quick else ("minilm-l6", "bert-base", "vit-b16", "resnet50", "mobilenetv2")


OPERATORS = Suite(
    "operators", "single operators without records, beside ONNX Runtime", _operator_cases, _operator
)
PRODUCTS = Suite(
    "products",
    "single matrix products: share of the measured FMA peak, and speed of the search",
    lambda quick: ("128x384x1536",) if quick else ("128x384x1536", "1024x1024x1024", "7x768x2048"),
    _product,
)
PROPOSALS = Suite(
    "proposals",
    "regret of the best of 16 points that the cost model names on shapes that it has not seen",
    lambda quick: () if quick else ("shipped tables",),
    _proposals,
    timed=False,
)
PLANNER = Suite("planner", "peaks of the memory planner against the lower bound", _planner_cases, _planner)
CALLS = Suite("calls", "the price of a call of a tiny model", lambda quick: ("minilm-l6-tiny",), _calls)
NPU = Suite("npu", "simulated cycles on the NPU against their bound", _npu_cases, _npu, timed=False)
