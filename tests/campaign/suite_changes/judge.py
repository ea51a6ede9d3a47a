"""The verdict on a changed subject, at the sizes that a reference takes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from tests.campaign.graphs.judge import (
    UNJUDGED,
    Verdict,
    by_onnxruntime,
    by_reference,
    verdict_at_sizes,
)
from tests.campaign.graphs.settings import CPU, Setting
from tests.campaign.suite_changes.subject import Subject

_BEYOND = 3
"""How much larger than in the test an open size is at most."""


def draws(subject: Subject) -> Iterator[dict[str, np.ndarray]]:
    """Values at the sizes of the test and, of open ones, at 1 and at larger ones."""
    yield subject.draw()
    if not subject.opened:
        return
    own = {symbol: subject.values[n].shape[axis] for (n, axis), symbol in subject.opened.items()}
    for change in (lambda size: 1, lambda size: size + _BEYOND, lambda size: 2):
        values = subject.draw()
        for (name, axis), symbol in subject.opened.items():
            if name in values:
                size = values[name].shape[axis]
                values[name] = np.take(values[name], np.arange(change(own[symbol])) % size, axis)
        yield values


def runs(model: onnx.ModelProto, draw: dict[str, np.ndarray]) -> bool:
    """Whether a reference runs a model."""
    for run in (by_onnxruntime, by_reference):
        try:
            run(model, draw)
            return True
        except Exception:
            continue
    return False


def judge(subject: Subject, setting: Setting = CPU) -> Verdict:
    """Compile a changed subject, run it on every draw that a reference runs, and compare."""
    from hetero_tvm import Span

    try:
        model = subject.model()
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        if all(output.type.tensor_type.HasField("shape") for output in inferred.graph.output):
            onnx.checker.check_model(inferred)
    except Exception as error:
        return Verdict(UNJUDGED, f"no valid model: {' '.join(str(error).split())[:200]}")
    usable = [draw for draw in draws(subject) if runs(model, draw)]
    if not usable:
        return Verdict(UNJUDGED, "no reference runs it")
    shapes: dict[str, list] = {}
    if subject.opened:
        shapes = {name: list(array.shape) for name, array in usable[0].items()}
    for name, axis in subject.opened:
        if name in shapes:
            extents = [draw[name].shape[axis] for draw in usable]
            if min(extents) < max(extents):
                shapes[name][axis] = Span(min(extents), max(extents))
    sizes = [{name: array.shape for name, array in draw.items()} if subject.opened else "" for draw in usable]
    return verdict_at_sizes(model, list(zip(map(str, sizes), usable, strict=True)), shapes, setting)
