"""Generated graphs with an open axis: one library for a range of sizes, compared at several of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx

from tests.campaign.graphs.generate import Case, generate
from tests.campaign.graphs.judge import (
    BROKEN,
    PASSED,
    REFUSED,
    UNJUDGED,
    WRONG,
    Verdict,
    by_onnxruntime,
    by_reference,
    verdict_at_sizes,
)
from tests.campaign.graphs.settings import Setting

_MOST_AXES = 6
"""Axes of a graph that are looked at: few of them may have other sizes."""
_MOST_LIBRARIES = 2
_BEYOND = 3
"""How much larger than the graph's own the largest size is."""

Draw = Mapping[str, np.ndarray]


class Opened(NamedTuple):
    """A model with an axis of an input open, and inputs by the sizes that a reference takes."""

    model: onnx.ModelProto
    name: str
    axis: int
    draws: Mapping[int, Draw]


def judge_opened(setting: Setting, most: int, seed: int, floats: Sequence[str] = ()) -> Verdict:
    """The verdict on the graph of a seed, with an open axis: the worst of a few."""
    found = [_verdict(opened, setting) for opened in opened_axes(generate(seed, most, floats))]
    order = (BROKEN, WRONG, PASSED, REFUSED, UNJUDGED)
    return min(
        found, key=lambda how: order.index(how.kind), default=Verdict(UNJUDGED, "each axis has one size")
    )


def opened_axes(case: Case) -> Iterator[Opened]:
    """A few axes of a graph's inputs that may have several sizes."""
    draw, rng = case.draw(0), np.random.default_rng([case.seed, 5])
    given = [value.name for value in case.model.graph.input if value.name in draw]
    places = [(name, axis) for name in given for axis in range(draw[name].ndim) if draw[name].shape[axis]]
    rng.shuffle(places)
    takes = _reference(case.model, draw)
    found = 0
    for name, number in places[:_MOST_AXES]:
        axis, extent = int(number), draw[str(name)].shape[int(number)]
        model = _with_open_axis(case.model, str(name), axis)
        draws: dict[int, Draw] = {}
        for size in sorted({1, 2, extent, extent + _BEYOND}):
            resized = {**draw, str(name): np.take(draw[str(name)], np.arange(size) % extent, axis)}
            try:
                takes(model, resized)
            except Exception:  # what else the graph has fits one size alone
                continue
            draws[size] = resized
        if len(draws) > 1:
            yield Opened(model, str(name), axis, draws)
            found += 1
        if found == _MOST_LIBRARIES:
            return


def _reference(model: onnx.ModelProto, draw: Draw) -> Callable[[onnx.ModelProto, Draw], object]:
    """ONNX Runtime where it runs the graph as generated, else ONNX's evaluator (most of bfloat16)."""
    try:
        by_onnxruntime(model, draw)
    except Exception:
        return by_reference
    return by_onnxruntime


def _with_open_axis(model: onnx.ModelProto, name: str, axis: int) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.value_info[:]
    for value in changed.graph.input:
        if value.name == name:
            dimension = value.type.tensor_type.shape.dim[axis]
            dimension.Clear()
            dimension.dim_param = "open"
    for value in changed.graph.output:
        value.type.tensor_type.ClearField("shape")
    return changed


def _verdict(opened: Opened, setting: Setting) -> Verdict:
    from hetero_tvm import Span

    model, name, axis, draws = opened
    where = f"axis {axis} of {name}, {min(draws)}..{max(draws)}"
    shapes = {n: [int(extent) for extent in array.shape] for n, array in next(iter(draws.values())).items()}
    spans = {**shapes, name: [*shapes[name]]}
    spans[name][axis] = Span(min(draws), max(draws))
    sizes = [(f"at {size}", draw) for size, draw in draws.items()]
    found = verdict_at_sizes(model, sizes, spans, setting)
    return found if found.kind in (PASSED, REFUSED) else replace(found, reason=f"{where}, {found.reason}")
