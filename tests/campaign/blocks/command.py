"""``python -m tests.campaign.blocks``: blocks of networks in ranges of sizes, judged at their corners."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from hetero_tvm.errors import HeteroTVMError
from tests.campaign.blocks.block import KINDS, Block
from tests.campaign.graphs.judge import (
    BROKEN,
    PASSED,
    REFUSED,
    UNJUDGED,
    WRONG,
    Verdict,
    compared,
    failed_inside,
)
from tests.campaign.graphs.settings import CPU, Setting, add_options

for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
    if module.name not in ("__main__", "command"):
        importlib.import_module(f"tests.campaign.blocks.{module.name}")


def made(kind: str, seed: int) -> Block:
    block = Block(np.random.default_rng([seed, sum(map(ord, kind))]))
    KINDS[kind](block)
    return block


def verdict(
    block: Block, seed: int, setting: Setting = CPU
) -> tuple[Verdict, onnx.ModelProto, Mapping[str, np.ndarray]]:
    """The verdict, the model, and the inputs at which it is wrong."""
    from hetero_tvm.api import import_model

    model = block.built()
    draws = [block.drawn(sizes, seed + n) for n, sizes in enumerate(block.corners())]
    try:
        imported = import_model(model, shapes=block.asked())
        built = setting.built(imported)
        names = [spec.name for spec in imported.signature.inputs]
    except HeteroTVMError as error:
        return Verdict(BROKEN if failed_inside(error) else REFUSED, _short(error)), model, {}
    except Exception as error:
        return Verdict(BROKEN, f"{type(error).__name__}: {_short(error)}"), model, {}
    judged, note = 0, ""
    given: list[tuple[Sequence[np.ndarray], list[np.ndarray]]] = []
    for draw in draws:
        shapes = {name: array.shape for name, array in draw.items()}
        try:
            ours = built.run({name: draw[name] for name in names})
        except Exception as error:
            told = REFUSED if isinstance(error, HeteroTVMError) else BROKEN
            return Verdict(told, f"at {shapes}: {type(error).__name__}: {_short(error)}"), model, draw
        given.append((ours, [array.copy() for array in ours]))
        fault, note = compared(model, draw, ours, setting)
        judged += fault != UNJUDGED
        if fault and fault != UNJUDGED:
            return Verdict(WRONG, f"at {shapes}: {fault}", note), model, draw
    again = built.run({name: draws[0][name] for name in names})
    if not all(map(_equal, again, given[0][1])):
        return (
            Verdict(WRONG, "a call with the inputs of the first one has other results", note),
            model,
            draws[0],
        )
    if not all(all(map(_equal, results, copies)) for results, copies in given):
        return Verdict(WRONG, "a later call has changed results of an earlier one", note), model, draws[0]
    return Verdict(PASSED if judged else UNJUDGED, note=note), model, draws[0]


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:600]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.blocks", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=5, help="blocks of each kind")
    parser.add_argument("--kinds", nargs="*", default=None)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--keep", type=Path, default=None, help="folder of models that are not passed")
    add_options(parser)
    options = parser.parse_args()
    tally: Counter[str] = Counter()
    end = time.monotonic() + 60 * options.minutes
    for seed in range(options.seed, options.seed + options.count):
        for name in options.kinds or KINDS:
            if time.monotonic() > end:
                break
            told, model, draw = verdict(made(name, seed), 1000 * seed, Setting.of(options))
            tally[told.kind] += 1
            if told.kind != PASSED:
                print(f"{name} {seed}: {told.kind}: {told.reason} [{told.note}]", flush=True)
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    stem = options.keep / f"{name}_{seed}"
                    onnx.save(model, f"{stem}.onnx")
                    np.savez(f"{stem}.npz", **draw)
    print(json.dumps(dict(tally)))
    return int(bool(tally[WRONG] + tally[BROKEN]))
