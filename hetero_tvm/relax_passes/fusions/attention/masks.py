"""Masks of an attention: what is added to its scores, and where they are replaced, as one addend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hetero_tvm.host.tvm import Expr, Var, relax, tvm_ffi
from hetero_tvm.ops.attention import Attention
from hetero_tvm.relax_passes.fusions.attention.operands import causal_window, mask_extents, shortened
from hetero_tvm.relax_passes.fusions.attention.scores import MASKED, Mask, Scores
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, is_tensor, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss

MASK_NAME = "#mask"
"""Mark in the names of bindings that compute masks, by which equal ones are found again."""

_LOWEST = float(np.finfo(np.float32).min)
_NEXT = 1e-8
"""Ratio of an addend for hidden scores to the one below: each swallows scores, and hides the one below."""
_SWALLOWS = -1e9
"""Number that stays itself when a score is added: steps of float32 are 64 there."""

_TABLES = frozenset({"relax.take", "relax.gather_elements"})
_MODERATE = frozenset({"relax.matmul", "relax.tanh", "relax.sigmoid", "relax.nn.softmax"})
"""Operators whose results are no numbers that hide keys."""
# fmt: off
_CARRYING = _TABLES | frozenset("relax." + name for name in (
    "add", "subtract", "multiply", "divide", "negative", "where", "astype", "reshape", "expand_dims",
    "squeeze", "permute_dims", "broadcast_to", "strided_slice",
))
# fmt: on
"""Operators whose results are as low as their operands make them."""

Step = tuple[Mask | None, np.ndarray | None]
"""A mask; with the values of a constant one at [B, H, Sq, Sk], without the axes along which it repeats.  None
for the mask stands for a constant that is added."""


def with_masks(
    graph: Graph, op: Attention, scores: Scores, shapes: list[tuple[int, ...]]
) -> tuple[Attention, list[Step]]:
    """The operator with its masks, from the innermost on: constant ones in one as far as they follow one
    another, causality and windows found in them."""
    full = op.batch, op.heads, op.q_len, op.kv_len
    # Numbers that replace others are the last word; sums, and what -inf hides, come in any order.
    masks = [(mask, array_of(graph.value(mask.expr))) for mask in reversed(scores.masks)]
    ordered = len(masks) > 1 and any(mask.hidden not in (None, -np.inf) for mask in scores.masks)
    if not ordered:
        masks.sort(key=lambda each: each[1] is None)
    hiding = [array is None and _may_hide(graph, mask) for mask, array in masks]
    _check_sums(masks, hiding)
    levels = _levels(scores.masks)
    whole: np.ndarray | None = None
    inner: np.ndarray | None = None
    steps: list[Step] = []
    for mask, array in masks:
        if array is None:
            steps.append((mask, None))
            continue
        values = _broadcast_array(array, _steps(mask, scores, shapes), full)
        if values is None:
            raise Miss(f"a mask of shape {array.shape} does not follow the heads")
        whole = _applied(whole, values, mask, levels)
        if not steps:
            inner = whole
        else:
            kind = np.float32 if mask.hidden is None else bool
            steps.append((mask, shortened(values.astype(kind))))
    if whole is not None and _may_leave_out(scores.masks, hiding, whole):
        window = causal_window(shortened(whole), MASKED)
        if window is not None:
            op, inner = replace(op, causal=True, window=window), None
            steps = [step for step in steps if step[1] is None]
    if inner is not None and inner.any():
        steps.insert(0, (None, shortened(inner)))
    parts = [
        _extents(graph, mask, scores, shapes, full) if array is None else array.shape for mask, array in steps
    ]
    if not parts:
        return op, []
    first = {extents[0] for extents in parts} - {1}
    batch = first.pop() if len(first) == 1 else op.batch if first else 1
    extents = (batch, *(max(sizes) for sizes in list(zip(*parts, strict=True))[1:]))
    return replace(op, mask=extents), steps


def _may_hide(graph: Graph, mask: Mask) -> bool:
    """Whether a mask that is computed at run time may hide keys: not a bias that products or tables make."""
    return mask.hidden is not None or _may_be_low(graph, mask.expr)


def _may_be_low(graph: Graph, expr: Expr, depth: int = 16) -> bool:
    array, name = array_of(graph.value(expr)), graph.op_name(expr)
    if array is not None:
        return array.dtype.kind == "f" and bool((np.abs(array) >= -MASKED).any())
    if name in _MODERATE:
        return False
    if name not in _CARRYING or not depth:
        return True
    args = [arg for arg in graph.value(expr).args if is_tensor(arg)]
    return any(_may_be_low(graph, arg, depth - 1) for arg in (args[:1] if name in _TABLES else args))


def _check_sums(masks: Sequence[tuple[Mask, np.ndarray | None]], hiding: Sequence[bool]) -> None:
    """Refuse numbers in the place of scores that sums with a mask bring near to scores.

    Where an added mask hides all other keys from a query, as padding does, it sees those whose scores were
    replaced; -10000 plus a score is another number than -10000 then.
    """
    number = max((mask.hidden for mask, _ in masks if mask.hidden not in (None, -np.inf)), default=-np.inf)
    if number <= _SWALLOWS:
        return
    replaced = False
    for (mask, array), hides in zip(masks, hiding, strict=True):  # from the innermost on
        if mask.hidden is None:
            hides |= array is not None and bool((array * mask.factor <= MASKED).any())
            if replaced or hides:
                raise Miss(
                    f"scores are replaced by {number:g}, and a mask is added that may hide as many keys"
                )
        else:
            replaced = True


def _may_leave_out(masks: Sequence[Mask], hiding: Sequence[bool], whole: np.ndarray) -> bool:
    """Whether keys that constants hide need no score, as those of a causal mask: not where a finite number
    stands for them that a query sees which a mask that is computed hides all other keys from."""
    if not any(hiding):
        return True
    endless = all(mask.hidden in (None, -np.inf) for mask in masks)
    return endless and bool(np.isneginf(whole[whole <= MASKED]).all())


def _levels(masks: Sequence[Mask]) -> dict[float, float]:
    """Addend for scores by the number that replaces them: it swallows the score, as replacing does, and of
    two numbers the greater one hides the other.  A query that sees nothing gets the same then.

    Beside masks that are added it is the number itself, as sums of these may be as low.
    """
    finite = sorted({mask.hidden for mask in masks if mask.hidden not in (None, -np.inf)})
    if finite and finite[-1] <= _SWALLOWS and any(mask.hidden is None for mask in masks):
        return {number: max(number, _LOWEST) for number in finite} | {-np.inf: -np.inf}
    return {-np.inf: -np.inf, **{number: _LOWEST * _NEXT**n for n, number in enumerate(finite)}}


def _applied(
    below: np.ndarray | None, values: np.ndarray, mask: Mask, levels: dict[float, float]
) -> np.ndarray:
    """Addends to the scores with a constant mask over those ``below``, float32."""
    if mask.hidden is None:
        with np.errstate(over="ignore"):
            values = values.astype(np.float32) * np.float32(mask.factor)
            return values if below is None else below + values
    others = np.float32(0) if below is None else below
    return np.where(values.astype(bool) == mask.hides, np.float32(levels[mask.hidden]), others)


def _steps(mask: Mask, scores: Scores, shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The shapes from that to which a mask is added to the second product's."""
    return shapes[len(scores.shapes) - 1 - mask.step :]


def _broadcast_array(
    array: np.ndarray, steps: list[tuple[int, ...]], full: tuple[int, ...]
) -> np.ndarray | None:
    """A constant mask at [B, H, Sq, Sk]."""
    current = np.broadcast_to(array, steps[0])
    for step in steps[1:]:
        lead, rows = step[:-2], current.shape[-2:]
        if np.prod(lead) == np.prod(current.shape[:-2]):
            current = current.reshape(*lead, *rows)
        else:
            current = np.broadcast_to(current, (*lead, *rows))
    return current.reshape(full)


def _extents(
    graph: Graph, mask: Mask, scores: Scores, shapes: list[tuple[int, ...]], full: tuple[int, ...]
) -> tuple[int, ...]:
    steps = _steps(mask, scores, shapes)
    extents = mask_extents(shape_of(mask.expr), steps, full)
    if extents is None and steps[0][-2:] + (np.prod(steps[0][:-2]),) != (*full[2:], full[0] * full[1]):
        raise Miss(f"a mask of shape {shape_of(mask.expr)} does not follow the heads")
    return full if extents is None else extents


def mask_operand(
    graph: Graph,
    op: Attention,
    scores: Scores,
    shapes: list[tuple[int, ...]],
    steps: Sequence[Step],
    top: Var,
    earlier: list[Var],
) -> Expr:
    """The mask operand: all masks, those that are computed at run time too, as one addend.

    ``earlier`` are such bindings of attentions before this one, which are used again.
    """
    full = op.batch, op.heads, op.q_len, op.kv_len
    levels = _levels(scores.masks)

    def put(value: Expr) -> Expr:
        for var in earlier:
            known = graph.value(var)
            if known.op.same_as(value.op) and all(map(_same, known.args, value.args)):
                return var
        return graph.insert_before(top, value, f"{top.name}{MASK_NAME}")

    def full_batch(mask: Expr) -> Expr:
        """A mask that repeats with a period along the batch, written out."""
        period, *rest = shape_of(mask)
        if period in (1, op.batch):
            return mask
        wide = put(relax.op.broadcast_to(mask, (op.batch // period, period, *rest)))
        return put(relax.op.reshape(wide, (op.batch, *rest)))

    def operand(mask: Mask, array: np.ndarray | None) -> Expr:
        if array is not None:
            return relax.const(np.ascontiguousarray(array))
        extents = mask_extents(shape_of(mask.expr), _steps(mask, scores, shapes), full)
        expr = mask.expr
        if extents is None:
            expr, extents = put(relax.op.broadcast_to(expr, _steps(mask, scores, shapes)[0])), full
        return expr if shape_of(expr) == extents else put(relax.op.reshape(expr, extents))

    total: Expr | None = None
    for mask, array in steps:
        if mask is None:
            total = relax.const(np.ascontiguousarray(array))
            continue
        expr = operand(mask, array)
        if total is not None and shape_of(total)[0] != shape_of(expr)[0]:
            total, expr = full_batch(total), full_batch(expr)
        if mask.hidden is not None:
            hidden = relax.const(levels[mask.hidden], "float32")
            rest = relax.const(0.0, "float32") if total is None else total
            if dtype_of(expr) != "bool":
                expr = put(relax.op.astype(expr, "bool"))
            total = put(relax.op.where(expr, *((hidden, rest) if mask.hides else (rest, hidden))))
            continue
        if mask.factor != 1.0:
            expr = put(relax.op.multiply(expr, relax.const(mask.factor, "float32")))
        total = expr if total is None else put(relax.op.add(total, expr))
    assert total is not None
    return total


def _same(one: Expr, other: Expr) -> bool:
    if one.same_as(other):
        return True
    return not isinstance(one, relax.Var) and tvm_ffi.structural_equal(one, other)
