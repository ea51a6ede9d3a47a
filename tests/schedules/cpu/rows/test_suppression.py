"""Suppression of boxes: sequences, classes, equal scores, empty boxes, NaN, limits, beside plain Python."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.cpu.rows.suppression import emit_suppression
from tests.schedules.cpu.running import MACHINES, SWEPT, TARGET
from tests.selection import thorough

LIMIT, LEAST = np.float32(0.3), np.float32(0.4)


def overlap(a, b):
    low = np.maximum(np.minimum(a[:2], a[2:]), np.minimum(b[:2], b[2:]))
    high = np.minimum(np.maximum(a[:2], a[2:]), np.maximum(b[:2], b[2:]))
    shared = np.prod(np.maximum(high - low, np.float32(0)))
    areas = [np.prod(np.abs(box[2:] - box[:2])) for box in (a, b)]
    union = areas[0] + areas[1] - shared
    return min(*areas, union) > 0 and shared / union > LIMIT


def wanted(boxes, scores, most):
    rows = []
    for n, classes in enumerate(scores):
        for c, row in enumerate(classes):
            left = [i for i in np.argsort(-row, kind="stable") if row[i] > LEAST]
            for _ in range(most):
                if left:
                    best, *left = left
                    rows.append((n, c, best))
                    left = [i for i in left if not overlap(boxes[n, best], boxes[n, i])]
    return np.array(rows, "int64").reshape(-1, 3)


@pytest.mark.parametrize("machine", SWEPT)
@pytest.mark.parametrize(
    "batch, classes, count, most", [(1, 1, 1, 1), (2, 3, 40, 5), *thorough([(1, 2, 190, 190)]), (1, 1, 7, 0)]
)
def test_suppression(machine, batch, classes, count, most):
    random = np.random.default_rng(count)
    corner = random.random((batch, count, 2)).astype("float32")
    boxes = np.concatenate(
        [corner, corner + 0.4 * random.random((batch, count, 2)).astype("float32")], axis=2
    )
    boxes[:, ::3] = boxes[:, ::3, [2, 1, 0, 3]]  # other corners of the same boxes
    boxes[:, ::7, 2:] = boxes[:, ::7, :2]  # without an area
    scores = random.integers(0, 12, (batch, classes, count)).astype("float32") / 12
    scores[:, :, 5::11] = np.nan
    function = emit_suppression(machine, batch, classes, count, most).with_attr("global_symbol", "f")
    library = compile_kernels(tvm.IRModule({"f": function}), TARGET).jit()
    table = tvm.runtime.tensor(np.full((batch * classes * count, 3), -7, "int64"))
    total = tvm.runtime.tensor(np.zeros(1, "int64"))
    scalars = (tvm.runtime.tensor(np.array(value)) for value in (np.int64(most), LIMIT, LEAST))
    library["f"](tvm.runtime.tensor(boxes), tvm.runtime.tensor(scores), *scalars, table, total)
    rows = wanted(boxes, scores, most)
    assert total.numpy() == [len(rows)]
    np.testing.assert_array_equal(table.numpy()[: len(rows)], rows)
    assert not table.numpy()[len(rows) : batch * classes * most].any()


def test_scores_are_ordered_whatever_their_sign():
    """Boxes do not overlap: all are taken, the best first, of equal ones (also 0.0 and -0.0) the first."""
    scores = np.array([[[-1, 0.0, 3e38, -0.0, -2.5, 1e-40, 2, -np.inf, np.inf, -3e38]]], "float32")
    count = scores.size
    boxes = np.arange(count, dtype="float32").reshape(1, count, 1) * [[[2, 2, 2, 2]]] + [[[0, 0, 1, 1]]]
    kernel = emit_suppression(MACHINES["avx2"], 1, 1, count, count).with_attr("global_symbol", "f")
    library = compile_kernels(tvm.IRModule({"f": kernel}), TARGET).jit()
    table, total = (tvm.runtime.tensor(np.zeros(shape, "int64")) for shape in ((count, 3), (1,)))
    scalars = (tvm.runtime.tensor(np.array(v)) for v in (np.int64(count), LIMIT, np.float32(-3.3e38)))
    library["f"](
        tvm.runtime.tensor(boxes.astype("float32")), tvm.runtime.tensor(scores), *scalars, table, total
    )
    assert total.numpy() == [count - 1]
    assert table.numpy()[: count - 1, 2].tolist() == [8, 2, 6, 5, 1, 3, 0, 4, 9]
