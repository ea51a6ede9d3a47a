"""TensorFlow Lite operators at the end of detectors: suppression of boxes, and the decoding around it.

Their results have room for as many boxes as may be kept; behind those that are stand zeros.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hetero_tvm.frontend.nodes import Untranslatable
from hetero_tvm.frontend.tflite.op import Op

_LEAST = float(np.finfo(np.float32).min)


def suppression(op: Op) -> None:
    """``NON_MAX_SUPPRESSION_V4`` and ``_V5``: boxes, scores, most boxes, overlap, least score[, sigma]."""
    if op.has(5) and float(op.constant(5).reshape(())) != 0:
        raise Untranslatable("with scores that fade by overlap (soft_nms_sigma above 0)")
    most, scored = int(op.constant(2).reshape(())), op.kind.endswith("V5")
    overlap, least = (float(op.constant(n).reshape(())) for n in (3, 4))
    boxes = op.emit("Unsqueeze", op.value(0), op.const([0]))
    scores = op.emit("Unsqueeze", op.value(1), op.const([0, 1]))
    chosen = _chosen(op, boxes, scores, most, _below(overlap), least)
    places, count = _first(op, op.emit("Gather", chosen, op.const(2), axis=1), most)
    op.give_raw(op.cast(places, op.result(0).dtype))
    number = op.result(op.results - 1)
    op.give_raw(op.reshaped(op.cast(count, number.dtype), number.shape), op.results - 1)
    if scored:
        op.give(_kept(op, op.emit("Gather", op.value(1), places), count, most), 1)


def detections(op: Op) -> None:
    """``TFLite_Detection_PostProcess``: encoded boxes, scores, anchors -> boxes, classes, scores, number.

    One suppression for the best scores of all classes, with as many classes for each box as are asked for, or
    one for each class (``use_regular_nms``).
    """
    most, classes = int(op.option("max_detections")), int(op.option("num_classes"))
    overlap, least = (float(op.option(f"nms_{name}_threshold")) for name in ("iou", "score"))
    count, labels = op.shape(1)[-2:]
    boxes = _decoded(op, count)
    scores = op.reshaped(op.value(1), [count, labels])
    scores = op.emit("Slice", scores, op.const([labels - classes]), op.const([labels]), op.const([1]))
    if op.option("use_regular_nms", False):
        each = int(op.option("detections_per_class", 100))
        _by_class(op, boxes, scores, (count, classes, most), (each, overlap, least))
    else:
        each = min(int(op.option("max_classes_per_detection")), classes)
        _at_once(op, boxes, scores, (count, most, each), (overlap, least))


def _decoded(op: Op, count: int) -> str:
    """Corners (y, x, y, x) of boxes that are kept as centres and sizes relative to anchors."""
    columns = [
        [op.emit("Gather", op.reshaped(op.value(n), [count, -1]), op.const([c]), axis=1) for c in range(4)]
        for n in (0, 2)
    ]
    low, high = [], []
    for axis, letters in enumerate(("yh", "xw")):
        place, size = (
            op.emit("Div", columns[0][axis + 2 * n], op.const(float(op.option(f"{c}_scale")), "float32"))
            for n, c in enumerate(letters)
        )
        anchor, extent = columns[1][axis], columns[1][axis + 2]
        center = op.emit("Add", op.emit("Mul", place, extent), anchor)
        half = op.emit("Mul", op.emit("Mul", op.emit("Exp", size), extent), op.const(0.5, "float32"))
        low.append(op.emit("Sub", center, half))
        high.append(op.emit("Add", center, half))
    return op.emit("Concat", *low, *high, axis=1)


def _at_once(
    op: Op, boxes: str, scores: str, sizes: tuple[int, int, int], bounds: tuple[float, float]
) -> None:
    count, most, each = sizes
    overlap, least = bounds
    best, kinds = op.several("TopK", scores, op.const([each]), count=2, axis=1)
    first = op.reshaped(op.emit("Gather", best, op.const([0]), axis=1), [1, 1, count])
    whole = op.emit("Unsqueeze", boxes, op.const([0]))
    chosen = _chosen(op, whole, first, most, overlap, _below(least))
    places, number = _first(op, op.emit("Gather", chosen, op.const(2), axis=1), most)
    room = most * each
    repeated = np.repeat(np.arange(most), each)
    wide = op.emit("Gather", places, op.const(repeated))
    filled = op.emit("Mul", number, op.const([each]))
    kept = [_kept(op, op.emit("Gather", boxes, wide), filled, room, 4)]
    for found in (op.cast(kinds, "float32"), best):
        flat = op.reshaped(op.emit("Gather", found, places), [room])
        kept.append(_kept(op, flat, filled, room))
    _give(op, kept, number)


def _by_class(
    op: Op, boxes: str, scores: str, sizes: tuple[int, int, int], bounds: tuple[int, float, float]
) -> None:
    count, classes, most = sizes
    each, overlap, least = bounds
    turned = op.emit("Unsqueeze", op.emit("Transpose", scores, perm=[1, 0]), op.const([0]))
    chosen = _chosen(
        op, op.emit("Unsqueeze", boxes, op.const([0])), turned, min(each, count), overlap, _below(least)
    )
    pairs = op.emit("Gather", chosen, op.const([2, 1]), axis=1)
    found = op.emit("GatherND", scores, pairs)
    filled = op.emit("Concat", found, op.const(np.full(most, _LEAST), "float32"), axis=0)
    best, ranks = op.several("TopK", filled, op.const([most]), count=2, axis=0)
    room = op.emit("Concat", pairs, op.const(np.zeros((most, 2))), axis=0)
    pairs = op.emit("Gather", room, ranks)
    number = op.emit(
        "Min",
        op.emit("Slice", op.emit("Shape", found), op.const([0]), op.const([1])),
        op.const([most]),
    )
    places, kinds = (op.reshaped(op.emit("Gather", pairs, op.const([n]), axis=1), [most]) for n in range(2))
    kept = [_kept(op, op.emit("Gather", boxes, places), number, most, 4)]
    kept += [_kept(op, x, number, most) for x in (op.cast(kinds, "float32"), best)]
    _give(op, kept, number)


def _give(op: Op, kept: list[str], number: str) -> None:
    for index, found in enumerate((*kept, op.cast(number, "float32"))):
        op.give(op.reshaped(found, op.result(index).shape), index)


def _chosen(op: Op, boxes: str, scores: str, most: int, overlap: float, least: float) -> str:
    """Triples (0, class, box) of kept boxes, best first; their number is known when it has run."""
    bounds = op.const([most]), op.const([overlap], "float32"), op.const([least], "float32")
    return op.emit("NonMaxSuppression", boxes, scores, *bounds)


def _first(op: Op, column: str, most: int) -> tuple[str, str]:
    """The first ``most`` entries of a column, zeros behind it, and how many it has."""
    number = op.emit("Slice", op.emit("Shape", column), op.const([0]), op.const([1]))
    filled = op.emit("Concat", column, op.const(np.zeros(most)), axis=0)
    return op.emit("Gather", filled, op.const(np.arange(most))), number


def _kept(op: Op, rows: str, count: str, room: int, width: int = 0) -> str:
    """Rows with zeros from row ``count`` on."""
    seen = op.emit("Less", op.const(np.arange(room)), count)
    seen = op.reshaped(seen, [room, 1]) if width else seen
    return op.emit("Where", seen, rows, op.const(0.0, "float32"))


def _below(bound: float) -> float:
    """The next smaller number: what reaches a bound is above it."""
    return float(np.nextafter(np.float32(bound), np.float32(-np.inf)))


DETECTION: dict[str, Callable[[Op], None]] = {
    "NON_MAX_SUPPRESSION_V4": suppression,
    "NON_MAX_SUPPRESSION_V5": suppression,
    "TFLite_Detection_PostProcess": detections,
}
"""Translations of operators that suppress boxes."""
