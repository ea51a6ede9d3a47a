"""``python -m tests.campaign.damaged_files``: damaged models and records, each in a process of its own.

A case is a good file and one damage to it (``damage.py``).  It must end in an error of ours or in the right
numbers (those of onnxruntime, or of onnx's evaluator, on the damaged file), within 30 s and 2 GB.  Anything
else is a fault: another exception, a signal, a hang, wrong numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.campaign import damage, small_models
from tests.campaign import other_formats as formats
from tests.campaign.damage import Damage

REFUSED, RIGHT, UNJUDGED = "refused", "right", "no judge"
WRONG, BROKEN, HANG, MEMORY = "wrong", "broken", "hang", "memory"
FAULTS = (WRONG, BROKEN, HANG, MEMORY)
SECONDS, BYTES = 30.0, 2 << 30
_FROZEN_SECONDS = 300.0
"""A case that has not used its seconds of a core may belong to a machine that is busy elsewhere."""


@dataclass(frozen=True)
class Case:
    """One damaged file: kind, name of the good one, the damage, and its number, which seeds it."""

    kind: str
    base: str
    damage: Damage
    number: int

    def data(self, bases: dict[str, bytes]) -> bytes:
        rng = random.Random(f"{self.number} {self.base} {self.damage.__name__}")
        return self.damage(bases[self.base], rng)

    def __str__(self) -> str:
        return f"{self.kind} #{self.number} {self.base} {self.damage.__name__}"


# good files ------------------------------------------------------------------------------------
def _model(nodes: Sequence[Any], inputs: Any, outputs: Any, weights: dict[str, np.ndarray]) -> bytes:
    types = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}
    values = [
        [helper.make_tensor_value_info(n, types[np.dtype(t)], s) for n, t, s in group]
        for group in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "graph", *values, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def onnx_bases() -> dict[str, bytes]:
    """Small models that between them have images, shapes, subgraphs, recurrence, indices, attributes."""
    rng, f, i, node = np.random.default_rng(0), np.float32, np.int64, helper.make_node

    def weight(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(f)

    def whole(*values: int) -> np.ndarray:
        return np.array(values, i)

    image = _model(
        [
            node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1], strides=[2, 2], group=1),
            node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], "norm", epsilon=1e-5),
            node("LeakyRelu", ["n"], ["r"], "relu", alpha=0.1),
            node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=0),
            node("Resize", ["p", "", "scales"], ["u"], "resize", mode="linear"),
            node("GlobalAveragePool", ["u"], ["g"], "average"),
            node("Flatten", ["g"], ["f"], "flatten", axis=1),
            node("Gemm", ["f", "k", "h"], ["y"], "gemm", transB=1, alpha=0.5),
        ],
        [("x", f, [1, 3, 16, 16])],
        [("y", f, [1, 5])],
        {
            **{"w": weight(8, 3, 3, 3), "b": weight(8), "s": weight(8), "m": weight(8), "v": weight(8) ** 2},
            **{"scales": np.array([1, 1, 2, 2], f), "k": weight(5, 8), "h": weight(5)},
        },
    )
    shapes = _model(
        [
            node("Shape", ["x"], ["s"], "shape"),
            node("Slice", ["s", "zero", "one"], ["batch"], "first"),
            node("Concat", ["batch", "rest"], ["to"], "to", axis=0),
            node("Reshape", ["x", "to"], ["r"], "reshape"),
            node("Transpose", ["r"], ["t"], "transpose", perm=[0, 2, 1]),
            node("Split", ["t", "sizes"], ["a", "c"], "split", axis=1),
            node("Pad", ["c", "pads"], ["p"], "pad", mode="constant"),
            node("Gather", ["p", "ids"], ["g"], "gather", axis=2),
            node("ReduceMean", ["g"], ["m"], "mean", axes=[1], keepdims=1),
            node("Expand", ["m", "wide"], ["e"], "expand"),
            node("Tile", ["e", "times"], ["y"], "tile"),
            node("Slice", ["a", "begin", "end", "axes", "steps"], ["z"], "slice"),
        ],
        [("x", f, [2, 4, 6])],
        [("y", f, [2, 3, 6]), ("z", f, [2, 3, 2])],
        {
            **{"zero": whole(0), "one": whole(1), "rest": whole(3, 8), "sizes": whole(3, 5)},
            **{"pads": whole(0, 0, 1, 0, 0, 1), "ids": whole(0, 2, 4), "wide": whole(2, 3, 3)},
            **{"times": whole(1, 1, 2), "begin": whole(3), "end": whole(-100), "axes": whole(2)},
            "steps": whole(-2),
        },
    )
    then = helper.make_graph(
        [node("Mul", ["x", "two"], ["t"], "twice")],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, [3, 4])],
        [numpy_helper.from_array(np.array(2, f), "two")],
    )
    other = helper.make_graph(
        [node("Neg", ["x"], ["o"], "neg")],
        "else",
        [],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, [3, 4])],
    )
    branches = _model(
        [
            node("Constant", [], ["c"], "c", value=helper.make_tensor("v", TensorProto.BOOL, [], [True])),
            node("If", ["c"], ["i"], "if", then_branch=then, else_branch=other),
            node("CumSum", ["i", "axis"], ["s"], "cumsum", exclusive=1),
            node("TopK", ["s", "k"], ["v", "at"], "topk", axis=1, largest=1),
            node("Cast", ["at"], ["f"], "cast", to=1),
            node("Where", ["mask", "v", "f"], ["y"], "where"),
        ],
        [("x", f, [3, 4])],
        [("y", f, [3, 2])],
        {"axis": np.array(1, i), "k": whole(2), "mask": np.array([[True, False]])},
    )
    recurrent = _model(
        [
            node("LSTM", ["x", "w", "r", "b"], ["h", "last"], "lstm", hidden_size=6, direction="forward"),
            node("Squeeze", ["h", "axes"], ["s"], "squeeze"),
            node("LayerNormalization", ["s", "g"], ["n"], "norm", axis=-1),
            node("ScatterND", ["n", "at", "u"], ["y"], "scatter"),
        ],
        [("x", f, [3, 2, 5])],
        [("y", f, [3, 2, 6])],
        {
            **{"w": weight(1, 24, 5), "r": weight(1, 24, 6), "b": weight(1, 48), "axes": whole(1)},
            **{"g": weight(6), "at": np.array([[0, 1], [2, 0]], i), "u": weight(2, 6)},
        },
    )
    quantized = _model(
        [
            node("QuantizeLinear", ["x", "xs", "xz"], ["q"], "q"),
            node("DequantizeLinear", ["q", "xs", "xz"], ["d"], "d"),
            node("DequantizeLinear", ["w", "ws", "wz"], ["e"], "e", axis=1),
            node("MatMul", ["d", "e"], ["m"], "product"),
            node("Einsum", ["m", "m"], ["o"], "einsum", equation="ij,kj->ik"),
            node("Softmax", ["o"], ["y"], "softmax", axis=1),
        ],
        [("x", f, [4, 8])],
        [("y", f, [4, 4])],
        {
            **{"xs": np.array(0.05, f), "xz": np.array(3, np.uint8), "ws": np.full(6, 0.02, f)},
            **{"wz": np.zeros(6, np.int8), "w": rng.integers(-100, 100, (8, 6)).astype(np.int8)},
        },
    )
    return {
        "network": small_models.network(rows=4, width=16).SerializeToString(),
        "image": image,
        "shapes": shapes,
        "branches": branches,
        "recurrent": recurrent,
        "quantized": quantized,
    }


def pt2_bases() -> dict[str, bytes]:
    """Programs with fixed and with open sizes."""
    import io

    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(11, 8)
            self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
            self.register_buffer("shift", torch.ones(8))

        def forward(self, ids: Any, mask: Any) -> Any:
            x = self.table(ids)
            return torch.softmax(self.body(x) * mask[..., None] + self.shift, -1)

    torch.manual_seed(0)
    arguments = (torch.arange(10).reshape(2, 5), torch.ones(2, 5))
    found = {}
    for name, sizes in (("fixed", None), ("open", ({0: torch.export.Dim("batch", max=64)},) * 2)):
        file = io.BytesIO()
        torch.export.save(torch.export.export(Net().eval(), arguments, dynamic_shapes=sizes), file)
        found[name] = file.getvalue()
    return found


def record_bases() -> dict[str, bytes]:
    """Records of some points of each kernel of a small network, the last ones verified."""
    from hetero_tvm.records.record import VERIFIED, Site, new_record
    from hetero_tvm.records.store import RecordStore
    from hetero_tvm.search.points import every_kernel

    optimized = _optimized_network()
    with tempfile.TemporaryDirectory() as folder:
        store = RecordStore(Site.of(optimized.machine, "cpu"), folder)
        for task in optimized.tasks:
            if task.space is None:
                continue
            listed = every_kernel(task.space, task.op, optimized.machine)
            for seconds, point in zip((3e-5, 2e-5, 1e-5), listed or (), strict=False):
                for role in ("trial", VERIFIED):
                    record = new_record(task, store.site, {"point": point}, seconds=seconds, role=role)
                    store.append(record)
        return {"records": store.path.read_bytes(), "name": store.path.name.encode()}


_KEPT: dict[str, Any] = {}


def _optimized_network() -> Any:
    from hetero_tvm import api

    if "network" not in _KEPT:
        model = small_models.network(rows=4, width=32)
        _KEPT["network"] = api.optimize_model(api.import_model(model))
    return _KEPT["network"]


# what a case does --------------------------------------------------------------------------------
def try_model(path: Path, build: bool) -> tuple[str, str]:
    """Import a model file; build and run it where that is asked for."""
    from hetero_tvm import api

    model = api.import_model(path)
    if not build:
        return RIGHT, "imported"
    built = api.build_model(api.optimize_model(model), use_shipped=False)
    inputs = api_inputs(model)
    results = built.run(inputs)
    judges = list(_judges(path, inputs, model))
    if not judges:
        return UNJUDGED, ""
    faults = [_faults(results, judge) for judge in judges]
    return (WRONG, faults[0]) if all(faults) else (RIGHT, "built and run")


def api_inputs(model: Any) -> dict[str, np.ndarray]:
    from hetero_tvm.reference import sample_inputs

    return sample_inputs(model, 1)


def _judges(path: Path, inputs: dict[str, np.ndarray], model: Any) -> Iterator[list[np.ndarray]]:
    """Outputs of the damaged file itself, by who else takes it.

    They differ where weights are no numbers: onnxruntime's recurrent layers swallow NaN.
    """
    if path.suffix == ".pt2":
        yield list(model.original.run(inputs))
        return
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    with contextlib.suppress(Exception):
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        yield list(session.run(None, inputs))
    with contextlib.suppress(Exception), np.errstate(all="ignore"):
        from onnx.reference import ReferenceEvaluator

        yield list(ReferenceEvaluator(str(path)).run(None, inputs))


def _faults(results: Sequence[np.ndarray], judge: Sequence[np.ndarray]) -> str:
    """Differences of all outputs; "" when there are none."""
    pairs = zip(results, judge, strict=True)
    found = [(index, _difference(ours, theirs)) for index, (ours, theirs) in enumerate(pairs)]
    return "; ".join(f"output {index}: {fault}" for index, fault in found if fault)


def _difference(ours: np.ndarray, theirs: np.ndarray) -> str | None:
    theirs = np.asarray(theirs)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype}{ours.shape}, not {theirs.dtype}{theirs.shape}"
    if theirs.dtype.kind != "f":
        return None if np.array_equal(ours, theirs) else "other values"
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    scale = np.abs(b[np.isfinite(b)]).max(initial=1e-3)
    if np.allclose(a, b, rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
        return None
    with np.errstate(invalid="ignore"):
        return (
            f"largest difference {np.nanmax(np.abs(a - b), initial=0.0):.3g} where values reach {scale:.3g}"
        )


def try_records(path: Path, build: bool) -> tuple[str, str]:
    """Read records, choose from them, teach a search with them; build with them where asked for."""
    from hetero_tvm import api
    from hetero_tvm.compile.kernels import usable_choices
    from hetero_tvm.records.choose import choose
    from hetero_tvm.records.record import Site
    from hetero_tvm.records.store import RecordStore
    from hetero_tvm.search.cost_model import SpaceModel
    from hetero_tvm.search.proposer import PointProposer
    from hetero_tvm.search.task_state import candidate_of

    optimized = _optimized_network()
    machine = optimized.machine
    store = RecordStore(Site.of(machine, "cpu"), path.parent)
    chosen = usable_choices(optimized.tasks, choose(optimized.tasks, machine, store))
    assert set(chosen) == {task.key for task in optimized.tasks}
    for task in optimized.tasks:
        if task.space is not None:
            proposer = PointProposer(task, machine, machine.codegen_target(), SpaceModel(0), 0, 4)
            for record in store.measured(task).values():
                proposer.learn(candidate_of(record), record.seconds if record.ok else None)
            proposer.propose(4)
    if build:
        built = api.build_model(optimized, logs=path.parent, use_shipped=False)
        built.check()
    return RIGHT, "built and run" if build else "read"


def try_inputs(path: Path, build: bool) -> tuple[str, str]:
    """Read arrays for a check."""
    from hetero_tvm.reference.given import checked_inputs, read_inputs

    checked_inputs(_optimized_network().model.signature, read_inputs(path))
    return RIGHT, "read"


def npz_bases() -> dict[str, bytes]:
    import io

    _optimized_network()  # once, before the forks
    file = io.BytesIO()
    np.savez(file, x=np.ones((4, 32), np.float32))
    return {"inputs": file.getvalue()}


KINDS: dict[str, tuple[Callable[[], dict[str, bytes]], tuple[Damage, ...], str, Any]] = {
    "onnx": (onnx_bases, (*damage.BYTES, *damage.MESSAGES), "model.onnx", try_model),
    "pt2": (pt2_bases, damage.ARCHIVES, "model.pt2", try_model),
    "records": (record_bases, damage.RECORDS, "", try_records),
    "tflite": (formats.tflite_bases, damage.BYTES, "model.tflite", formats.try_import),
    "stablehlo": (formats.stablehlo_bases, damage.BYTES, "model.mlir", formats.try_import),
    "description": (formats.description_bases, damage.DOCUMENTS, "kernel.json", formats.try_import),
    "gguf": (formats.gguf_bases, damage.BYTES, "model.gguf", formats.try_checkpoint),
    "checkpoint": (formats.checkpoint_bases, damage.FOLDERS, "folder.zip", formats.try_checkpoint),
    "npz": (npz_bases, (*damage.BYTES, damage.member_damaged, damage.member_gone), "i.npz", try_inputs),
}


# processes ---------------------------------------------------------------------------------------
def outcome(kind: str, data: bytes, name: str, build: bool) -> tuple[str, str]:
    """How a case ends; in a process of its own."""
    from hetero_tvm.errors import HeteroTVMError, UsageError

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            return KINDS[kind][3](path, build)
        except HeteroTVMError as error:
            text = " ".join(str(error).split())
            if "MemoryError" in text or "bad_alloc" in text:
                return MEMORY, text[:300]
            how = BROKEN if type(error) is UsageError and "defect" in text else REFUSED
            return how, f"{type(error).__name__}: {text[:300]}"
        except MemoryError as error:
            return MEMORY, f"MemoryError: {error}"
        except BaseException as error:
            return BROKEN, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _child(writer: int, case: Case, data: bytes, name: str, build: bool) -> None:
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):
            os.dup2(null, descriptor)
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + BYTES, held + BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        how = outcome(case.kind, data, name, build)
        os.write(writer, json.dumps(how).encode())
    finally:
        os._exit(0)


def run(
    kind: str, numbers: Sequence[int], processes: int = 2, build: float = 0.0
) -> Iterator[tuple[Case, str, str]]:
    """(case, outcome, reason) of cases, as each is known; a fraction ``build`` of them is built and run."""
    make, damages, name, _ = KINDS[kind]
    bases = make()
    if kind == "records":
        name = bases.pop("name").decode()
    names = sorted(bases)
    waiting = [
        Case(kind, names[n % len(names)], damages[(n // len(names)) % len(damages)], n) for n in numbers
    ]
    waiting.reverse()
    running: dict[int, tuple[Case, int, float, bytearray]] = {}
    while waiting or running:
        while waiting and len(running) < processes:
            case = waiting.pop()
            data = case.data(bases)
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _child(writer, case, data, name, random.Random(case.number).random() < build)
            os.close(writer)
            running[reader] = (case, pid, monotonic() + SECONDS, bytearray())
        ready, _, _ = select.select(list(running), [], [], 0.5)
        for reader in list(running):
            case, pid, end, said = running[reader]
            if reader in ready and (part := os.read(reader, 65536)):
                said += part
                continue
            if reader not in ready and (monotonic() < end or _waits(pid, end)):
                continue
            if reader not in ready:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            _, code, used = os.wait4(pid, 0)
            os.close(reader)
            del running[reader]
            yield (case, *_ended(bytes(said), code, reader not in ready, used.ru_maxrss * 1024))


def _waits(pid: int, end: float) -> bool:
    """Whether a process that is late has been kept from the cores, rather than hanging."""
    if monotonic() > end + _FROZEN_SECONDS:
        return False
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return used < SECONDS
    return False


def _ended(said: bytes, code: int, late: bool, most: int) -> tuple[str, str]:
    if late:
        return HANG, f"no end within {SECONDS:g} s"
    if not said:
        return BROKEN, f"the process ended with {os.waitstatus_to_exitcode(code)}"
    how, why = json.loads(said)
    return (MEMORY, f"{most / 1e9:.2f} GB") if most > BYTES else (how, why)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.damaged_files", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="of each kind (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--only", action="append", choices=list(KINDS), help="kinds")
    parser.add_argument(
        "--build", type=float, default=0.0, metavar="FRACTION", help="built, run and compared"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, metavar="FILE", help="every outcome as JSON lines")
    options = parser.parse_args()
    import hetero_tvm.api  # once, before the forks  # noqa: F401

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    failed = 0
    with options.out.open("a") if options.out else open(os.devnull, "w") as file:
        for kind in options.only or KINDS:
            start, counts = monotonic(), Counter()
            numbers = range(options.first, options.first + options.cases)
            for case, how, why in run(kind, numbers, options.processes, options.build):
                counts[how] += 1
                file.write(json.dumps({"case": str(case), "outcome": how, "reason": why}) + "\n")
                if how in FAULTS:
                    print(f"{how}: {case}: {why}", flush=True)
            failed += sum(counts[how] for how in FAULTS)
            rate = options.cases / (monotonic() - start)
            table = ", ".join(f"{counts[how]} {how}" for how in (REFUSED, RIGHT, UNJUDGED, *FAULTS))
            print(f"{kind}: {options.cases} cases, {rate:.1f} per second: {table}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
