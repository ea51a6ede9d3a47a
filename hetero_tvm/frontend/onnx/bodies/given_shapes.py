"""Operators that take the shape of their result, or extents of it, as values at run time.

Each is written for the promised shape (see ``promised.py``), and gives False where nothing promises one.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from onnx import TensorProto, numpy_helper

from hetero_tvm.frontend.onnx.bodies.promised import PromisedBody

_MOST_CHOICES = 64
"""Choices of axes of extent 1 that a check tells apart."""


def reshape(b: PromisedBody) -> bool:
    """Reshape: its values are the promised extents, but for 0 and -1."""
    wanted, given = b.promised(), b.shape(b.input(0))
    if wanted is None or given is None or math.prod(wanted) != math.prod(given):
        return False
    if 0 in wanted:
        b.end(0, b.const(np.zeros(wanted), b.dtype(b.input(0))))
        return True
    shape = b.whole(b.input(1))
    extents = np.array(wanted, np.int64)
    fits = b.op("Or", b.op("Equal", shape, b.ints(extents)), b.op("Equal", shape, b.ints(-1)))
    if not b.attributes.get("allowzero", 0):
        kept = [n < len(given) and given[n] == size for n, size in enumerate(wanted)]
        zero = b.op("And", b.op("Equal", shape, b.ints(0)), b.const(kept, "bool"))
        fits = b.op("Or", fits, zero)
    rest = b.op("Cast", b.op("Equal", shape, b.ints(-1)), to=TensorProto.INT64)
    one_rest = b.op("Less", b.reduce("ReduceSum", rest, [0], 1, axes_as_input=13), b.ints([2]))
    fits = b.op("And", fits, one_rest)
    b.end(0, b.op("Reshape", b.guard(b.input(0), fits), b.ints(wanted)))
    return True


def squeeze(b: PromisedBody) -> bool:
    """Squeeze and Unsqueeze of axes that come at run time: a view of the promised shape."""
    wanted, given = b.promised(), b.shape(b.input(0))
    if wanted is None or given is None or math.prod(wanted) != math.prod(given):
        return False
    rank = max(len(wanted), len(given))
    axes = b.from_end(b.whole(b.input(1)), rank)
    longer, shorter = sorted((tuple(wanted), tuple(given)), key=len, reverse=True)
    count = rank - len(shorter)
    single = [axis for axis, size in enumerate(longer) if size == 1]
    if math.comb(len(single), count) > _MOST_CHOICES:
        return False
    # Sums of these numbers differ for any two choices of so many axes, also where one is named twice.
    weights = (count + 1) ** np.arange(rank, dtype=np.int64)
    fitting = [
        sum(weights[list(chosen)])
        for chosen in itertools.combinations(single, count)
        if shorter == tuple(size for axis, size in enumerate(longer) if axis not in chosen)
    ]
    total = b.reduce("ReduceSum", b.op("Gather", b.ints(weights), axes, axis=0), [0], 1, axes_as_input=13)
    same = b.op("Cast", b.op("Equal", total, b.ints(fitting)), to=TensorProto.INT64)
    fits = b.op("Less", b.ints([0]), b.reduce("ReduceSum", same, [0], 1, axes_as_input=13))
    b.end(0, b.op("Reshape", b.guard(b.input(0), fits), b.ints(wanted)))
    return True


def expand(b: PromisedBody) -> bool:
    """Expand: its values are the promised extents, or 1 where the operand has them."""
    wanted, given, count = b.promised(), b.shape(b.input(0)), b.shape(b.input(1))
    if wanted is None or given is None or count is None or max(len(given), count[0]) != len(wanted):
        return False
    own = [1] * (count[0] - len(given)) + list(given[max(0, len(given) - count[0]) :])
    last = wanted[len(wanted) - count[0] :]
    x = b.input(0)
    if count[0]:
        values = b.whole(b.input(1))
        kept = b.const([size == extent for size, extent in zip(own, last, strict=True)], "bool")
        one = b.op("And", b.op("Equal", values, b.ints(1)), kept)
        x = b.guard(x, b.op("Or", b.op("Equal", values, b.ints(last)), one))
    b.end(0, b.op("Expand", x, b.ints(wanted)))
    return True


def tile(b: PromisedBody) -> bool:
    """Tile: as often as the promised extents are multiples."""
    wanted, given = b.promised(), b.shape(b.input(0))
    if (
        wanted is None
        or given is None
        or 0 in given
        or any(w % g for w, g in zip(wanted, given, strict=True))
    ):
        return False
    times = [w // g for w, g in zip(wanted, given, strict=True)]
    b.again({0: b.guard(b.input(0), b.same(b.input(1), times)), 1: b.ints(times)})
    return True


def constant_of_shape(b: PromisedBody) -> bool:
    """ConstantOfShape: a constant."""
    wanted = b.promised()
    if wanted is None:
        return False
    tensor = b.attributes.get("value")
    value = numpy_helper.to_array(tensor) if tensor is not None else np.zeros(1, np.float32)
    y = b.const(np.full(wanted, value.reshape(-1)[0]), value.dtype.name)
    b.end(0, y if 0 in wanted else b.guard(y, b.same(b.input(0), wanted), what=f"the values of {b.input(0)}"))
    return True


def top_k(b: PromisedBody) -> bool:
    """TopK: k is the promised extent along its axis."""
    wanted = b.promised(0) or b.promised(1)
    if wanted is None:
        return False
    k = wanted[int(b.attributes.get("axis", -1))]
    b.again({0: b.guard(b.input(0), b.same(b.input(1), k)), 1: b.ints([k])})
    return True


def one_hot(b: PromisedBody) -> bool:
    """OneHot: the depth is the promised extent of its axis."""
    wanted = b.promised()
    if wanted is None:
        return False
    depth = wanted[int(b.attributes.get("axis", -1))]
    b.again({0: b.guard(b.input(0), b.same(b.input(1), depth)), 1: b.ints(depth)})
    return True


def split(b: PromisedBody) -> bool:
    """Split: each part has its promised extent."""
    parts = [b.promised(n) for n in range(len(b.node.output))]
    if not b.input(1) or any(part is None for part in parts):
        return False
    axis = int(b.attributes.get("axis", 0))
    sizes = [part[axis] for part in parts if part is not None]
    b.again({0: b.guard(b.input(0), b.same(b.input(1), sizes)), 1: b.ints(sizes)})
    return True


def affine_grid(b: PromisedBody) -> bool:
    """AffineGrid: its size but for the channels, which its result does not have."""
    wanted = b.promised()
    if wanted is None:
        return False
    size = [wanted[0], 1, *wanted[1:-1]]
    ignored = b.const([n == 1 for n in range(len(size))], "bool")
    b.again({0: b.guard(b.input(0), b.op("Or", b.same(b.input(1), size), ignored)), 1: b.ints(size)})
    return True


def max_unpool(b: PromisedBody) -> bool:
    """MaxUnpool with the shape of its result."""
    wanted = b.promised()
    if wanted is None or not b.input(2):
        return False
    b.again({0: b.guard(b.input(0), b.same(b.input(2), wanted)), 2: b.ints(wanted)})
    return True


def center_crop_pad(b: PromisedBody) -> bool:
    """CenterCropPad: its shape is the promised one along its axes."""
    wanted, given = b.promised(), b.shape(b.input(0))
    if wanted is None or given is None:
        return False
    axes = [int(a) for a in b.attributes.get("axes", range(len(given)))]
    x, sizes = b.input(0), [wanted[a] for a in axes]
    if b.value(1) is None:
        x = b.guard(x, b.same(b.input(1), sizes))
    before, after = [0] * len(given), [0] * len(given)
    for axis in axes:
        cut = given[axis] - wanted[axis]
        if cut > 0:
            x = b.cut(x, axis % len(given), cut // 2, cut // 2 + wanted[axis])
        before[axis], after[axis] = max(0, -cut) // 2, max(0, -cut) - max(0, -cut) // 2
    pads = b.ints([*before, *after])
    zero = b.const(0, b.dtype(b.input(0)))
    b.end(0, b.op("Pad", x, pads, zero))
    return True


def count_up(b: PromisedBody) -> bool:
    """Range: as many steps from its start as promised."""
    wanted = b.promised()
    if wanted is None:
        return False
    start, limit, delta = (b.op("Reshape", b.input(n), b.ints([])) for n in range(3))
    dtype = b.dtype(b.input(0))
    steps = b.const(np.arange(wanted[0]), dtype)
    y = b.op("Add", start, b.op("Mul", steps, delta))
    span = b.op("Sub", limit, start)
    if b.is_float(b.input(0)):
        counted = b.op("Max", b.op("Ceil", b.op("Div", span, delta)), b.const(0, dtype))
        fits = b.op("Equal", counted, b.const(wanted[0], dtype))
    else:
        rounded = b.op("Add", span, b.op("Sub", delta, b.op("Sign", delta)))
        counted = b.op("Max", b.op("Div", rounded, delta), b.const(0, dtype))
        fits = b.op("Equal", counted, b.const(wanted[0], dtype))
    b.end(0, b.guard(y, fits, what="start, limit and delta"))
    return True
