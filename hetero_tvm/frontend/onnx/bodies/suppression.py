"""NonMaxSuppression: rounds of the best box left and what it hides, or the operator itself, padded."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from hetero_tvm.frontend.onnx.bodies.promised import PromisedBody

PADDED = "padded by what follows"
"""Note at a node that is not to be written out again."""
_MOST_WRITTEN = 8
"""Rounds up to which they are written out in operators that every target has."""


def non_max(b: PromisedBody) -> bool:
    """Write out a NonMaxSuppression, of boxes [B, N, 4] and scores [B, C, N], of a promised number of boxes.

    Classes take no more than the whole result holds, so that many rounds are enough.
    """
    scores, wanted = b.shape(b.input(1)), b.promised()
    if b.shape(b.input(0)) is None or scores is None or wanted is None:
        return False
    total = wanted[0]
    rounds = min(total, most_rounds(b))
    if not total or not rounds:
        b.end(0, b.ints(np.zeros((total, 3))))
    elif rounds > _MOST_WRITTEN:
        table, found, _ = kept(b, b.input(1), most_rounds(b))
        fits = b.op("Equal", found, b.ints(total))
        table = b.guard(table, fits, what="the boxes that are taken", dtype="int64")
        b.end(0, b.cut(table, 0, 0, total))
    else:
        table, flags, length = candidates(b, b.input(1), rounds)
        b.end(0, _rows(b, table, flags, length, total))
    return True


def kept(b: PromisedBody, scores: str, rounds: int) -> tuple[str, str, int]:
    """The operator itself, with a padded result.

    Returns
    -------
    Rows (sequence, class, box), int64 [n, 3], zeros behind what is taken; their number, a scalar; and n.
    """
    batch, classes, _ = (int(n or 0) for n in b.shape(b.input(1)) or ())
    length = batch * classes * rounds
    # Scores that do not count are the lowest number: no box has to be taken for one of those.
    least = b.input(4) or b.const([np.finfo(np.float32).min])
    limit = b.input(3) or b.const([0.0])
    kind = int(b.attributes.get("center_point_box", 0))
    rows = b.op("NonMaxSuppression", b.input(0), scores, b.input(2), limit, least, center_point_box=kind)
    b.nodes[-1].doc_string = PADDED
    number = b.op("Gather", b.op("Shape", rows), b.ints(0), axis=0)
    longer = b.op("Concat", rows, b.ints(np.zeros((length, 3))), axis=0)
    return b.op("Reshape", b.cut(longer, 0, 0, length), b.ints([length, 3])), number, length


def most_rounds(b: PromisedBody) -> int:
    """Number of boxes of a class that may be taken at most."""
    count, most = int((b.shape(b.input(1)) or ())[2] or 0), b.value(2)
    return count if most is None else max(0, min(count, int(most.reshape(-1)[0])))


def candidates(b: PromisedBody, scores: str, rounds: int) -> tuple[str, str, int]:
    """Rows (sequence, class, box) that may be taken, by sequence, class and round.

    Each round takes the best box of every class that is left, and hides those that overlap with it.

    Returns
    -------
    The rows, int64 [n, 3]; whether each is taken, bool [n]; and n.
    """
    batch, classes, count = (int(n or 0) for n in b.shape(b.input(1)) or ())
    most = b.value(2)
    dtype = b.dtype(b.input(0))
    low, high, area = _corners(b, dtype)
    lowest = b.const(np.finfo(dtype).min, dtype)
    limit = b.op("Reshape", b.input(3), b.ints([])) if b.input(3) else b.const(0, dtype)
    left = scores
    if b.input(4):
        threshold = b.op("Reshape", b.input(4), b.ints([]))
        left = b.op("Where", b.op("Greater", left, threshold), left, lowest)
    chosen, taken = [], []
    for number in range(rounds):
        best = b.op("ArgMax", left, axis=2, keepdims=1)  # [B, C, 1]; the first of equals
        value = b.op("GatherElements", left, best, axis=2)
        found = b.op("Greater", value, lowest)
        if most is None and b.input(2):
            allowed = b.op("Greater", b.op("Reshape", b.whole(b.input(2)), b.ints([])), b.ints(number))
            found = b.op("And", found, allowed)
        elif not b.input(2):
            found = b.op("And", found, b.const(False, "bool"))  # none, when no number is given
        chosen.append(best)
        taken.append(found)
        if number + 1 == rounds:
            break
        mine = [_of(b, corner, best, batch, classes) for corner in (*low, *high, area)]
        shared = b.const(1, dtype)
        for axis in (0, 1):
            start = b.op("Max", low[axis], mine[axis])
            end = b.op("Min", high[axis], mine[2 + axis])
            shared = b.op("Mul", shared, b.op("Max", b.op("Sub", end, start), b.const(0, dtype)))
        union = b.op("Sub", b.op("Add", area, mine[4]), shared)
        # Without a division: an empty union overlaps with nothing.
        hidden = b.op("Greater", shared, b.op("Mul", limit, union))
        places = b.ints(np.arange(count))
        gone = b.op("Or", hidden, b.op("Equal", places, best))
        left = b.op("Where", gone, lowest, left)
    length = batch * classes * rounds
    flags, boxes = (
        b.op("Reshape", parts[0] if rounds == 1 else b.op("Concat", *parts, axis=2), b.ints([-1]))
        for parts in (taken, chosen)
    )
    grid = np.indices((batch, classes, rounds))[:2].reshape(2, -1)
    columns = [*(b.ints(column) for column in grid), boxes]
    table = b.op("Concat", *(b.op("Unsqueeze", c, b.ints([1])) for c in columns), axis=1)
    return table, flags, length


def _corners(b: PromisedBody, dtype: str) -> tuple[list[str], list[str], str]:
    """Lower and upper ends of boxes along both axes, and their areas, each [B, 1, N]."""
    parts = [b.op("Unsqueeze", b.op("Gather", b.input(0), b.ints(n), axis=2), b.ints([1])) for n in range(4)]
    if b.attributes.get("center_point_box", 0):
        half = b.const(0.5, dtype)
        reach = [b.op("Mul", part, half) for part in parts[2:]]
        low = [b.op("Sub", parts[n], reach[n]) for n in range(2)]
        high = [b.op("Add", parts[n], reach[n]) for n in range(2)]
    else:
        low = [b.op("Min", parts[n], parts[n + 2]) for n in range(2)]
        high = [b.op("Max", parts[n], parts[n + 2]) for n in range(2)]
    area = b.op("Mul", b.op("Sub", high[0], low[0]), b.op("Sub", high[1], low[1]))
    return low, high, area


def _of(b: PromisedBody, x: str, best: str, batch: int, classes: int) -> str:
    """Values of a box of each class: ``x`` [B, 1, N] at ``best`` [B, C, 1]."""
    places = b.op("Reshape", best, b.ints([batch, 1, classes]))
    return b.op("Reshape", b.op("GatherElements", x, places, axis=2), b.ints([batch, classes, 1]))


def _rows(b: PromisedBody, table: str, flags: str, length: int, total: int) -> str:
    """The rows that are taken, of which there must be ``total``."""
    number = b.op("Cast", flags, to=TensorProto.INT64)
    key = b.op("Mul", number, b.ints(np.arange(length, 0, -1)))
    b.op("TopK", key, b.ints([total]), axis=0)
    places = f"{b.nodes[-1].output[0]}_places"
    b.nodes[-1].output.append(places)
    found = b.reduce("ReduceSum", number, [0], 0, axes_as_input=13)
    places = b.guard(
        places, b.op("Equal", found, b.ints(total)), what="the boxes that are taken", dtype="int64"
    )
    return b.op("Gather", table, places, axis=0)
