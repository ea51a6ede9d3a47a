"""``python -m tests.campaign.architectures``: each architecture by each way in, beside eager PyTorch.

The ways are an exported program, the ONNX files of both of PyTorch's exporters, and ``torch.compile``.  Each
ends *ok*, *divided* (PyTorch runs parts of it), *refused* (one of our errors), *wrong* (numbers further from
PyTorch's than 1e-4 of the largest), *not exported* (PyTorch itself fails), or *broken* (anything else), in a
process of its own.  ``--depth optimize`` ends files and programs before their kernels are compiled, after
seconds instead of half a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import HeteroTVMError
from tests.campaign.architectures import images, models, others, texts

ARCHITECTURES = {**models.ARCHITECTURES, **texts.TEXTS, **images.IMAGES, **others.OTHERS}

OK, DIVIDED, REFUSED, WRONG, NOT_EXPORTED, BROKEN = (
    "ok",
    "divided",
    "refused",
    "wrong",
    "not exported",
    "broken",
)
WAYS = ("program", "dynamo", "torchscript", "compile")
_TOLERANCE = 1e-4
_SECONDS = 300


class _NotExported(Exception):
    """PyTorch cannot export the model."""


class Flat(torch.nn.Module):
    """A model as a function of its tensors, in order, to a tuple of tensors."""

    def __init__(self, model: torch.nn.Module, given: dict[str, Any]):
        super().__init__()
        self.model = model
        self.names = [name for name, value in given.items() if isinstance(value, torch.Tensor)]
        self.fixed = {name: value for name, value in given.items() if name not in self.names}

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _tensors(self.model(**dict(zip(self.names, tensors, strict=True)), **self.fixed))


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    leaves = torch.utils._pytree.tree_leaves(dict(result) if hasattr(result, "to_tuple") else result)
    return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def _fresh(value: torch.Tensor) -> torch.Tensor:
    """Other values of the same kind."""
    if value.is_floating_point():
        return torch.randn_like(value)
    most = int(value.max())
    return torch.randint_like(value, 5, most + 1) if most > 5 else value


def _error(ours: list[Any], truth: tuple[torch.Tensor, ...]) -> float:
    """Largest difference, as a share of the largest value of its output or of 1."""
    if len(ours) != len(truth):
        raise AssertionError(f"{len(ours)} results, not {len(truth)}")
    worst = 0.0
    for one, other in zip(ours, truth, strict=True):
        a, b = np.asarray(one, np.float64), other.detach().double().numpy()
        if a.shape != b.shape:
            raise AssertionError(f"shape {a.shape}, not {b.shape}")
        both = np.isfinite(b)
        if not np.array_equal(a[~both], b[~both], equal_nan=True):
            raise AssertionError("NaN or infinity elsewhere")
        if b[both].size:
            worst = max(worst, np.abs(a[both] - b[both]).max() / max(1.0, np.abs(b[both]).max()))
    return worst


def outcome(name: str, way: str, depth: str, dynamic: bool) -> tuple[str, str]:
    """How architecture ``name`` ends by ``way``, and why."""
    try:
        with torch.no_grad(), warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            made, given = ARCHITECTURES[name]()
            model = Flat(made, given).eval()
            tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
            ran = _compiled if way == "compile" else _imported
            return ran(model, tensors, Path(folder), way, depth, dynamic)
    except _NotExported as error:
        return NOT_EXPORTED, str(error)
    except HeteroTVMError as error:
        return REFUSED, " ".join(str(error).split())[:600]
    except AssertionError as error:
        return WRONG, str(error)[:300]
    except Exception as error:
        return BROKEN, f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def _compiled(
    model: Flat, tensors: list[torch.Tensor], folder: Path, way: str, depth: str, dynamic: bool
) -> tuple[str, str]:
    import hetero_tvm.torch  # noqa: F401

    events: list[dict[str, Any]] = []
    torch._dynamo.config.allow_rnn = True
    options = {"cache": str(folder), "on_event": events.append, "check": False}
    net = torch.compile(model, backend="hetero_tvm", options=options, dynamic=dynamic)
    net(*tensors)
    tensors = [_fresh(value) for value in tensors]
    worst = _error(list(net(*tensors)), model(*tensors))
    if dynamic:
        tensors = [value.repeat(2, *[1] * (value.dim() - 1)) for value in tensors]
        worst = max(worst, _error(list(net(*tensors)), model(*tensors)))
    graphs = sum(event["event"] in ("compiled", "cached") for event in events)
    reasons = dict.fromkeys(" ".join(e["reason"].split())[:400] for e in events if e["event"] == "refused")
    if worst > _TOLERANCE:
        return WRONG, f"{worst:.1e} in {graphs} graphs"
    if reasons or not graphs:
        return DIVIDED if graphs else REFUSED, f"{worst:.1e} in {graphs} graphs. {' '.join(reasons)}"
    return OK, f"{worst:.1e} in {graphs} graphs"


def _imported(
    model: Flat, tensors: list[torch.Tensor], folder: Path, way: str, depth: str, dynamic: bool
) -> tuple[str, str]:
    model(*tensors)
    try:
        source = _exported(model, tuple(tensors), way, folder)
    except Exception as error:
        raise _NotExported(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    optimized = optimize_model(import_model(source))
    if depth == "optimize":
        return OK, f"{len(optimized.tasks)} tasks"
    built = build_model(optimized, use_shipped=False)
    names = [spec.name for spec in built.optimized.model.signature.inputs]
    tensors = [_fresh(value) for value in tensors]
    truth = model(*tensors)
    given = dict(zip(_given(source, model), tensors, strict=True))
    worst = _error(list(built.run({name: given[name].numpy() for name in names})), truth)
    return (OK if worst <= _TOLERANCE else WRONG), f"{worst:.1e}"


def _given(source: Any, model: Flat) -> list[str]:
    return model.names if isinstance(source, Path) else list(source.graph_signature.user_inputs)


def _exported(model: Flat, tensors: tuple[torch.Tensor, ...], way: str, folder: Path) -> Any:
    if way == "program":
        return torch.export.export(model, tensors, strict=False)
    path = folder / "model.onnx"
    options: dict[str, Any] = {"input_names": model.names, "dynamo": way == "dynamo"}
    if way == "dynamo":
        options |= {"verbose": False, "external_data": False}
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(model, tensors, path, **options)
    return path


def _in_a_process(*given: Any) -> tuple[str, str]:
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=lambda: writer.send(outcome(*given)))
    child.start()
    writer.close()
    try:
        return reader.recv() if reader.poll(_SECONDS) else (BROKEN, f"not done in {_SECONDS} s")
    except EOFError:
        child.join()
        return BROKEN, f"the process ended with {child.exitcode}"
    finally:
        child.kill()
        child.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.architectures", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(ARCHITECTURES)}; all by default")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--depth", choices=("optimize", "run"), default="run")
    parser.add_argument("--dynamic", action="store_true", help="torch.compile with open sizes")
    parser.add_argument("--out", type=Path, help="write every outcome as JSON lines")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    with options.out.open("a") if options.out else open("/dev/null", "w") as file:
        for name in options.names or ARCHITECTURES:
            for way in options.ways:
                started = time.perf_counter()
                how, why = _in_a_process(name, way, options.depth, options.dynamic)
                seconds = round(time.perf_counter() - started, 1)
                counts[how] += 1
                found = {"name": name, "way": way, "outcome": how, "reason": why, "seconds": seconds}
                file.write(json.dumps(found) + "\n")
                file.flush()
                print(f"{name:16s} {way:12s} {how:12s} {seconds:5.1f} s  {why}", flush=True)
    print(", ".join(f"{counts[how]} {how}" for how in (OK, DIVIDED, REFUSED, WRONG, NOT_EXPORTED, BROKEN)))
    return 1 if counts[WRONG] + counts[BROKEN] else 0


if __name__ == "__main__":
    sys.exit(main())
