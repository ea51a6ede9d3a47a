"""Reduction of a graph that is wrong or broken to a minimal case."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, printer

from tests.campaign.graphs.generate import generate
from tests.campaign.graphs.judge import BROKEN, REFUSED, Verdict, everything
from tests.campaign.graphs.settings import Setting
from tests.campaign.graphs.values import onnx_type
from tests.campaign.graphs.workers import Worker

MOST_TRIALS = 250
"""Trials of one reduction: each compiles a graph."""

Arrays = dict[str, np.ndarray]
Fails = Callable[[onnx.ModelProto, Arrays], bool]


def keep(
    seed: int, how: Verdict, setting: Setting, most: int, folder: Path, floats: Sequence[str] = ()
) -> Path:
    """Shrink the graph of a seed and write it as ``SEED.onnx`` and ``SEED.txt``."""
    from tests.campaign.graphs.command import judge_model

    case = generate(seed, most, floats)
    draw = case.draw(1 if how.reason.startswith("draw 1") else 0)
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in model.graph.input:
        if value.name in case.shapes:
            element = value.type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, element, case.shapes[value.name]))
    worker = Worker(partial(judge_model, setting))
    trials = iter(range(MOST_TRIALS))

    def fails(smaller: onnx.ModelProto, inputs: Arrays) -> bool:
        if next(trials, None) is None:
            return False
        worker.start((smaller, inputs, {}))
        found = worker.verdict()
        return found.kind == how.kind and _alike(how, found)

    try:
        if fails(model, draw):
            model, draw = shrunk(model, draw, fails)
    finally:
        worker.stop()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{seed}.onnx"
    onnx.save(model, path)
    np.savez(folder / f"{seed}.npz", **draw)
    worker = Worker(partial(judge_model, setting))
    worker.start((model, draw, {}))
    text = worker.verdict().reason
    worker.stop()
    weights = "\n".join(
        f"{t.name} = {np.array2string(numpy_helper.to_array(t), threshold=40)}"
        for t in model.graph.initializer
    )
    path.with_suffix(".txt").write_text(f"{how.kind}: {text}\n\n{printer.to_text(model)}\n\n{weights}\n")
    return path


def _alike(how: Verdict, found: Verdict) -> bool:
    """Whether two faults are probably the same one."""
    if how.kind not in (BROKEN, REFUSED):
        return True
    first, second = (re.sub(r"[^A-Za-z ]|\b\w*_\w*\b", "", v.reason)[-120:] for v in (how, found))
    return first[:40] == second[:40] or first[-30:] == second[-30:]


def shrunk(model: onnx.ModelProto, draw: Arrays, fails: Fails) -> tuple[onnx.ModelProto, Arrays]:
    """The smallest model that still fails, as far as single steps lead."""
    for _ in range(4):
        size = len(model.graph.node)
        for step in (_single_outputs, _cut, _bypassed, _smaller):
            model, draw = _apply(step, model, draw, fails)
        if len(model.graph.node) == size:
            break
    return model, draw


Step = Callable[[onnx.ModelProto, Arrays], Iterator[tuple[onnx.ModelProto, Arrays]]]


def _apply(step: Step, model: onnx.ModelProto, draw: Arrays, fails: Fails) -> tuple[onnx.ModelProto, Arrays]:
    """Take what a step proposes as long as it still fails."""
    progress = True
    while progress:
        progress = False
        for smaller, inputs in step(model, draw):
            if fails(smaller, inputs):
                model, draw, progress = smaller, inputs, True
                break
    return model, draw


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    return copy


def _pruned(model: onnx.ModelProto, draw: Arrays) -> tuple[onnx.ModelProto, Arrays]:
    """The model without what no output needs."""
    graph = model.graph
    needed = {value.name for value in graph.output}
    nodes = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed.update(node.input)
            for attribute in node.attribute:
                for inner in attribute.g.node:
                    needed.update(inner.input)
    nodes.reverse()
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    weights = [t for t in graph.initializer if t.name in needed]
    inputs = [v for v in graph.input if v.name in needed and v.name not in {t.name for t in weights}]
    kept = [onnx.TensorProto.FromString(t.SerializeToString()) for t in weights]
    values = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in inputs]
    del graph.initializer[:], graph.input[:]
    graph.initializer.extend(kept)
    graph.input.extend(values)
    return model, {name: draw[name] for name in draw if name in needed}


def _single_outputs(model: onnx.ModelProto, draw: Arrays) -> Iterator[tuple[onnx.ModelProto, Arrays]]:
    """One output alone; else one output less."""
    count = len(model.graph.output)
    if count == 1:
        return
    for only in [True, False] if count < 12 else [True]:
        for index in range(count):
            copy = _copy(model)
            kept = [v for n, v in enumerate(model.graph.output) if (n == index) == only]
            del copy.graph.output[:]
            copy.graph.output.extend(kept)
            yield _pruned(copy, draw)


def _cut(model: onnx.ModelProto, draw: Arrays) -> Iterator[tuple[onnx.ModelProto, Arrays]]:
    """A value in the middle becomes an input, or the output."""
    try:
        values = everything(model, draw)
    except Exception:
        return
    returned = {value.name for value in model.graph.output}
    names = [
        n for node in model.graph.node for n in node.output if n and isinstance(values.get(n), np.ndarray)
    ]
    if len(returned) == 1:
        for name in names:  # the earliest that is wrong already
            if name not in returned:
                copy = _copy(model)
                del copy.graph.output[:]
                copy.graph.output.append(_info(name, values[name]))
                yield _pruned(copy, draw)
    for name in reversed(names):
        if name in returned or 0 in values[name].shape:
            continue
        copy = _copy(model)
        for node in copy.graph.node:
            for index, made in enumerate(node.output):
                if made == name:
                    node.output[index] = f"{name}_unused"
        copy.graph.input.append(_info(name, values[name]))
        yield _pruned(copy, {**draw, name: values[name]})


def _info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx_type(value.dtype.name), value.shape)


def _bypassed(model: onnx.ModelProto, draw: Arrays) -> Iterator[tuple[onnx.ModelProto, Arrays]]:
    """A node's readers read its operand instead, where that has the same type."""
    try:
        values = everything(model, draw)
    except Exception:
        return
    returned = {value.name for value in model.graph.output}
    for node in model.graph.node:
        if len(node.output) != 1 or node.output[0] in returned:
            continue
        result = values[node.output[0]]
        if not isinstance(result, np.ndarray):
            continue
        for name in node.input:
            value = values.get(name)
            if isinstance(value, np.ndarray) and value.shape == result.shape and value.dtype == result.dtype:
                copy = _copy(model)
                for other in copy.graph.node:
                    for index, read in enumerate(other.input):
                        if read == node.output[0]:
                            other.input[index] = name
                yield _pruned(copy, draw)


def _smaller(model: onnx.ModelProto, draw: Arrays) -> Iterator[tuple[onnx.ModelProto, Arrays]]:
    """Every axis of one extent is cut to a smaller one, in inputs, weights and constant shapes."""
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    extents = {d for array in (*draw.values(), *weights.values()) for d in array.shape if d > 1}
    for old in sorted(extents, reverse=True):
        for new in (1, 2, old // 2, old - 1):
            if not 0 < new < old:
                continue
            copy = _copy(model)
            changed = {name: _sliced(array, old, new) for name, array in weights.items()}
            del copy.graph.initializer[:]
            copy.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in changed.items())
            inputs = {name: _sliced(array, old, new) for name, array in draw.items()}
            for value in copy.graph.input:
                if value.name in inputs:
                    value.CopyFrom(_info(value.name, inputs[value.name]))
            try:
                values = everything(copy, inputs)
            except Exception:
                continue
            for value in copy.graph.output:
                value.CopyFrom(_info(value.name, np.asarray(values[value.name])))
            yield copy, inputs


def _sliced(array: np.ndarray, old: int, new: int) -> np.ndarray:
    if array.dtype == np.int64 and array.ndim == 1 and array.size <= 8:
        array = np.where(array == old, new, array)
    index = tuple(slice(new) if d == old else slice(None) for d in array.shape)
    return np.ascontiguousarray(array[index])
