"""Operators whose axis, or axes, come as values at run time: computed for each axis they may name.

The promised shape of a result (see ``promised.py``) leaves one or a few choices of axes.  All are computed
and the values select among them, which costs as many times as there are choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from onnx import TensorProto

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.promised import PromisedBody

_MOST_CHOICES = 16

# fmt: off
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)
# fmt: on


def reduction(b: PromisedBody) -> bool:
    """A reduction over axes that come at run time."""
    given, wanted, count = b.shape(b.input(0)), b.promised(), b.shape(b.input(1))
    if given is None or wanted is None or count is None or not count[0]:
        return False
    keep = bool(b.attributes.get("keepdims", 1))

    def result(axes: Sequence[int]) -> tuple[int, ...]:
        if keep:
            return tuple(1 if n in axes else size for n, size in enumerate(given))
        return tuple(size for n, size in enumerate(given) if n not in axes)

    choices = [axes for axes in combinations(range(len(given)), count[0]) if result(axes) == wanted]
    _check(b, choices)
    first = 13 if b.node.op_type == "ReduceSum" else 18
    x = b.input(0)
    if flags := b.dtype(x) == "bool":
        x = b.op("Cast", x, to=TensorProto.UINT8)

    def reduced(axes: Sequence[int]) -> str:
        y = b.reduce(b.node.op_type, x, list(axes), int(keep), axes_as_input=first)
        return b.op("Cast", y, to=TensorProto.BOOL) if flags else y

    b.end(0, _selected(b, choices, reduced))
    return True


def cumulative(b: PromisedBody) -> bool:
    """CumSum along an axis that comes at run time."""
    given = b.shape(b.input(0))
    if given is None or b.value(1) is not None:
        return False
    choices = [(n,) for n in range(len(given))]
    _check(b, choices)
    attributes = {k: v for k, v in b.attributes.items() if k in ("exclusive", "reverse")}
    b.end(
        0,
        _selected(b, choices, lambda axes: b.op(b.node.op_type, b.input(0), b.ints(axes[0]), **attributes)),
    )
    return True


def dft(b: PromisedBody) -> bool:
    """DFT along an axis, or of a length, that comes at run time."""
    given, wanted = b.shape(b.input(0)), b.promised()
    if given is None or wanted is None or b.opset < 20:
        return False
    sizes = _sizes_by_axis(b, given, wanted)
    fixed = b.value(2) if b.input(2) else len(given) - 2
    if fixed is not None:
        sizes = {axis: size for axis, size in sizes.items() if axis == int(fixed) % len(given)}
    choices = [(axis,) for axis in sizes]
    _check(b, choices)
    x = b.input(0)
    if b.input(1) and b.value(1) is None:
        length = b.op("Reshape", b.whole(b.input(1)), b.ints([1]))
        x = b.guard(x, b.op("Equal", length, b.ints([next(iter(sizes.values()))])))

    def along(axes: Sequence[int]) -> str:
        size = b.ints(sizes[axes[0]]) if b.input(1) else ""
        return b.op("DFT", x, size, b.ints(axes[0]), **b.attributes)

    b.end(0, along(choices[0]) if fixed is not None else _selected(b, choices, along, source=2))
    return True


def stft(b: PromisedBody) -> bool:
    """STFT whose step, or length of a frame, comes at run time: those that the promised shape implies."""
    given, wanted = b.shape(b.input(0)), b.promised()
    window = b.shape(b.input(2)) if b.input(2) else None
    if given is None or wanted is None or None in given or (b.input(2) and window is None):
        return False
    whole, frames, bins = int(given[1] or 0), wanted[1], wanted[2]
    onesided = bool(b.attributes.get("onesided", 1))
    step, known = b.value(1), b.value(3) if b.input(3) else None
    length = int(window[0] or 0) if window else _length(bins, onesided)
    length = length if known is None else int(known.reshape(-1)[0])
    steps = [n for n in range(1, whole + 1) if (whole - length) // n + 1 == frames]
    if step is not None:
        steps = [int(step.reshape(-1)[0])]
    if len(steps) != 1:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (STFT) takes its step at run time, and {len(steps)} fit the declared "
            "shape of its result.",
            hint="Make frame_step a constant.",
        )
    tests = [b.same(b.input(1), steps[0])] if step is None else []
    changed = {1: b.ints(steps[0])}
    if b.input(3):
        changed[3] = b.ints(length)
        tests += [b.same(b.input(3), length)] if known is None else []
    b.again({0: b.guard(b.input(0), *tests), **changed})
    return True


def _sizes_by_axis(b: PromisedBody, given: tuple[int, ...], wanted: tuple[int, ...]) -> dict[int, int]:
    """Length of the transform along each axis that gives the promised shape."""
    half = bool(b.attributes.get("onesided", 0))
    back = half and bool(b.attributes.get("inverse", 0))
    known, sizes = b.value(1), {}
    for axis in range(len(given) - 1):
        size = 2 * (given[axis] - 1) if back else given[axis]
        if b.input(1):
            size = (
                int(known.reshape(-1)[0]) if known is not None else _length(wanted[axis], half and not back)
            )
        bins = size // 2 + 1 if half and not back else size
        rest = [n for n in range(len(given) - 1) if n != axis]
        if bins == wanted[axis] and all(wanted[n] == given[n] for n in rest):
            sizes[axis] = size
    return sizes


def _length(bins: int, onesided: bool) -> int:
    """Length of a transform of so many frequencies, the even one where two are possible."""
    return 2 * (bins - 1) if onesided else bins


def _check(b: PromisedBody, choices: list) -> None:
    """Refuse a node without choices, or with too many to compute them all."""
    if 0 < len(choices) <= _MOST_CHOICES:
        return
    many = f"{len(choices)} choices of axes fit" if choices else "no choice of axes fits"
    raise UnsupportedOperatorError(
        f"Node {b.node.name!r} ({b.node.op_type}) takes its axes at run time, and {many} the declared shape "
        "of its result.",
        hint="Make its axes constants.",
    )


def _selected(
    b: PromisedBody,
    choices: Sequence[tuple[int, ...]],
    compute: Callable[[Sequence[int]], str],
    source: int = 1,
) -> str:
    """Result of the choice that the values of the axes name; an error at run time when it is none."""
    rank = len(b.shape(b.input(0)) or ())
    axes = b.from_end(b.op("Reshape", b.whole(b.input(source)), b.ints([-1, 1])), rank)
    y = kept = ""
    for choice in choices:
        hit = b.op("Cast", b.op("Equal", axes, b.ints([choice])), to=TensorProto.INT32)
        named = b.reduce("ReduceMax", hit, [0], 0, axes_as_input=18)
        chosen = b.op("ReduceMin", named, keepdims=0)
        result = compute(choice)
        if not y:
            y, kept = result, chosen
            continue
        y = b.op("Where", b.op("Cast", chosen, to=TensorProto.BOOL), result, y)
        kept = b.op("Max", kept, chosen)
    return b.guarded(y, kept)
