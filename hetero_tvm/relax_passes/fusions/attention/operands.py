"""Places of the operands of an attention, and the axes that are its batch and its heads.

Exporters write the same attention with heads as an axis of their own, folded into the batch, grouped
in five axes, or repeated by broadcasts.  Here every operand is a strided view of the tensor that it is
made from (see ``views.py``); the leading axes of all of them are cut into common factors, and a place
is looked for where these part into one batch axis and one head axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.ops.attention import Attention
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss
from hetero_tvm.relax_passes.rewriting.views import (
    FREE_VIEWS,
    Factor,
    Place,
    View,
    below,
    extent_of,
    merge,
    places,
    refine,
    through,
)


@dataclass(frozen=True)
class Candidate:
    """A way to read Q, K or V: lead axes, then rows, then the elements of one row.

    ``cost`` counts the tensors that must be written for it to be read so.  ``transposed`` says that the
    operand itself is (its elements lie apart).
    """

    place: Place
    leads: tuple[Factor, ...]
    row: int
    cost: int = 0
    transposed: bool = False


@dataclass(frozen=True)
class Output:
    """The binding that the fused operator replaces; ``passed`` are those from the second product to it.

    ``transposed`` says that it wants heads before rows, which costs a transposition.
    """

    top: Var
    passed: tuple[Var, ...]
    transposed: bool


@dataclass(frozen=True)
class Layout:
    """Extents of one attention, and for each operand the candidate and its strides."""

    batch: int
    heads: int
    kv_heads: int
    chosen: tuple[Candidate, Candidate, Candidate]
    strides: tuple[tuple[int, int], ...]
    """(batch, head) of Q, K and V."""
    output: Output


def lifted(view: View, shapes: Sequence[tuple[int, ...]]) -> View | None:
    """A view whose leading axes follow those of ``shapes``, from one shape to the next (all but the last
    two axes count), by reshape or broadcast."""
    current: View | None = view
    for shape in shapes:
        lead = shape[:-2]
        if current is None:
            return None
        leads = View(current.dims[:-2], current.offset)
        if leads.shape == lead:
            continue
        one_more = len(leads.dims) <= len(lead) and all(
            a in (1, b) for a, b in zip(leads.shape, lead[len(lead) - len(leads.dims) :], strict=True)
        )
        moved = leads.broadcast(lead) if one_more else leads.reshape(lead)
        current = None if moved is None else View((*moved.dims, *current.dims[-2:]), moved.offset)
    return current


def candidates(
    graph: Graph, expr: Expr, shapes: Sequence[tuple[int, ...]], *, swapped: bool, scaled: bool
) -> list[Candidate]:
    """Ways to read an operand, the furthest base first.

    ``shapes`` are those that the leading axes go through (see :func:`lifted`); ``swapped`` says that the
    operand has elements before rows, as the keys of a plain product.
    """
    found = []
    for place in places(graph, expr, scaled=scaled):
        view = place.view
        if swapped:
            view = View((*view.dims[:-2], view.dims[-1], view.dims[-2]), view.offset)
        if (view := lifted(view, shapes)) is None:
            continue
        element, row = view.stride(-1), view.stride(-2)
        unit = view.shape[-1] == 1 or element == 1
        if unit and row is not None:
            leads = tuple(factor for factors in view.dims[:-2] for factor in factors)
            found.append(Candidate(Place(place.base, view, place.skipped, place.factor), leads, row))
    if not found or not found[0].place.base.same_as(expr):
        shape = shape_of(expr)
        if swapped:
            shape = (*shape[:-2], shape[-1], shape[-2])
        view = lifted(View.whole(shape), shapes)
        if view is not None and view.stride(-2) is not None:
            leads = tuple(factor for factors in view.dims[:-2] for factor in factors)
            found.insert(0, Candidate(Place(expr, view), leads, view.stride(-2), transposed=swapped))
    copies = [v for v in (found[-1].place.skipped if found else ()) if graph.op_name(v) not in FREE_VIEWS]
    return [
        replace(c, cost=sum(v not in c.place.skipped for v in copies) + c.transposed) for c in found[::-1]
    ]


def solve(
    graph: Graph, operands: Sequence[Sequence[Candidate]], product: Var, q_len: int, values: int
) -> Layout:
    """The reading of Q, K and V that one kernel can do and that needs the fewest copies.

    Raises
    ------
    Miss : there is none (an axis of heads crosses one of batches).
    """
    lead = shape_of(product)[:-2]
    best, least = None, math.inf
    for chosen in sorted(itertools.product(*operands), key=_cost):
        if _cost(chosen) >= least:
            break
        for whole in (True, False):
            layout = _parted(graph, chosen, lead, product, q_len, values, whole)
            if layout is not None and _cost(chosen) + layout.output.transposed < least:
                best, least = layout, _cost(chosen) + layout.output.transposed
    if best is None:
        raise Miss(f"the leading axes {lead} do not part into a batch and heads")
    return best


def _cost(chosen: Sequence[Candidate]) -> int:
    return sum(candidate.cost for candidate in chosen)


def _parted(
    graph: Graph,
    chosen: Sequence[Candidate],
    lead: tuple[int, ...],
    product: Var,
    q_len: int,
    values: int,
    whole: bool,
) -> Layout | None:
    refined = refine([candidate.leads for candidate in chosen])
    if refined is None:
        return None
    count = len(refined[0])
    natural = _position(refined[0], lead[-1]) if len(lead) > 1 else count
    for split in sorted(range(count + 1), key=lambda p: (p != natural, abs(p - (natural or 0)))):
        batches = [merge(factors[:split]) for factors in refined]
        query, key, value = (merge(factors[split:]) for factors in refined)
        if any(len(factors) > 1 for factors in (*batches, query)):
            continue
        batch, heads = extent_of(batches[0]), extent_of(query)
        key_group, value_group = _grouped(key), _grouped(value)
        if key_group is None or value_group is None:
            continue
        kv_heads = max(key_group[0], value_group[0])
        if any(n not in (1, kv_heads) for n, _ in (key_group, value_group)):
            continue
        output = _output(graph, product, lead, (batch, q_len, heads, values))
        if output is None or (whole and output.transposed):
            continue
        head_strides = query[0][1] if query else 0, key_group[1], value_group[1]
        batch_strides = (factors[0][1] if factors else 0 for factors in batches)
        strides = tuple(zip(batch_strides, head_strides, strict=True))
        return Layout(batch, heads, kv_heads, tuple(chosen), strides, output)
    return None


def _position(factors: Sequence[Factor], inner: int) -> int | None:
    """Position from which on the product of the factors is ``inner``."""
    for position in range(len(factors) + 1):
        if extent_of(factors[position:]) == inner:
            return position
    return None


def _grouped(factors: Sequence[Factor]) -> tuple[int, int] | None:
    """(key heads, stride) when ``factors`` run through key heads, each once or several times in a row."""
    if not factors or (len(factors) == 1 and factors[0][1] == 0):
        return 1, 0
    if len(factors) == 1 or (len(factors) == 2 and factors[1][1] == 0 != factors[0][1]):
        return factors[0]
    return None


def _output(
    graph: Graph, product: Var, lead: tuple[int, ...], extents: tuple[int, int, int, int]
) -> Output | None:
    """Follow the product's users as long as they only rearrange, to where the kernel's result stands."""
    batch, rows, heads, values = extents
    view = View.whole((batch, rows, heads, values)).permute((0, 2, 1, 3)).reshape((*lead, rows, values))
    if view is None:
        return None
    exact = (batch, rows, heads * values)
    passed: list[Var] = []
    found = Output(product, (), True) if not view.is_whole else Output(product, (), False)
    top = product
    while (user := graph.only_user(top)) is not None:
        step = below(graph, user)
        moved = through(graph, user, view) if step is not None and step[0].same_as(top) else None
        if moved is None or np.prod(moved.shape) != np.prod(view.shape):
            break
        passed.append(top)
        top, view = user, moved
        if view.is_whole and (found.transposed or shape_of(found.top) != exact):
            found = Output(top, tuple(passed), False)
    return found


# ---- masks ---------------------------------------------------------------------------------


def mask_extents(
    shape: tuple[int, ...], shapes: Sequence[tuple[int, ...]], full: tuple[int, int, int, int]
) -> tuple[int, int, int, int] | None:
    """Extents of a mask of ``shape`` in the contract; None when it must be broadcast first.

    ``shapes`` starts with that to which the mask is added, and goes on to the last one whose leading axes
    are the batch and heads of ``full`` [B, H, Sq, Sk].
    """
    level = shapes[0]
    view = lifted(View.whole(shape).broadcast((*level[:-2], *full[2:])), shapes)
    if view is None or (view := view.reshape(full)) is None:
        return None
    extents = []
    for axis, factors in enumerate(view.dims):
        if not factors or (len(factors) == 1 and factors[0][1] == 0):
            extents.append(1)
        elif len(factors) == 1:
            extents.append(full[axis])
        elif axis == 0 and len(factors) == 2 and factors[0][1] == 0:
            extents.append(factors[1][0])
        else:
            return None
    whole = View.whole(extents)
    repeated = []
    for factors, extent, wanted in zip(whole.dims, extents, full, strict=True):
        repeated.append(merge([(wanted // extent, 0), *factors]))
    return tuple(extents) if View(tuple(repeated)) == view else None


def shortened(mask: np.ndarray) -> np.ndarray:
    """A constant mask [B, H, Sq, Sk] without the axes, or periods of the batch, in which it repeats."""
    for axis in range(4):
        first = mask.take([0], axis)
        if (mask == first).all():
            mask = first
    length = mask.shape[0]
    for period in range(2, length):
        if length % period == 0 and (mask.reshape(-1, period, *mask.shape[1:]) == mask[:period]).all():
            return mask[:period]
    return mask


def causal_window(mask: np.ndarray, hides: float) -> int | None:
    """Window of a causal mask: the number of last keys that a query sees, 0 for all.

    Causal is a mask that lets query i see the keys ``j <= i + Sk - Sq``, or the last w of these alone; others
    give None.  Its values must be 0, or at or below ``hides``.
    """
    if mask.shape[:2] != (1, 1):
        return None
    q_len, kv_len = mask.shape[2:]
    visible = mask[0, 0] == 0
    if q_len < 2 or kv_len < q_len or not (visible | (mask[0, 0] <= hides)).all():
        return None  # with fewer keys than queries the first queries would see nothing
    distance = np.arange(q_len)[:, None] + (kv_len - q_len) - np.arange(kv_len)
    if np.array_equal(visible, distance >= 0):
        return 0
    window = int(visible[-1].sum())
    return window if np.array_equal(visible, (distance >= 0) & (distance < window)) else None


def attention_of(layout: Layout, q_len: int, kv_len: int, dim: int, values: int, scale: float) -> Attention:
    """The contract of a layout, without masks; its operands are the distinct bases in their order."""
    tensors, held = [], []
    for candidate in layout.chosen:
        index = next((i for i, c in enumerate(tensors) if same_base(c, candidate)), len(tensors))
        if index == len(tensors):
            tensors.append(candidate)
        held.append(index)
    spots = tuple(
        (index, c.place.view.offset, batch, head, c.row)
        for index, c, (batch, head) in zip(held, layout.chosen, layout.strides, strict=True)
    )
    shapes = tuple(_base_shape(c) for c in tensors)
    for candidate in layout.chosen:
        if not candidate.transposed:
            scale *= candidate.place.factor
    return Attention(
        layout.batch,
        layout.heads,
        q_len,
        kv_len,
        dim,
        scale,
        layout.kv_heads,
        value_dim=0 if values == dim else values,
        tensors=shapes,
        places=spots,
    )


def distinct(layout: Layout) -> list[Candidate]:
    """Candidates for the tensors that the layout reads, one each, in the order of the contract's operands."""
    found: list[Candidate] = []
    for candidate in layout.chosen:
        if not any(same_base(c, candidate) for c in found):
            found.append(candidate)
    return found


def same_base(one: Candidate, other: Candidate) -> bool:
    return one.transposed == other.transposed and one.place.base.same_as(other.place.base)


def _base_shape(candidate: Candidate) -> tuple[int, ...]:
    shape = shape_of(candidate.place.base)
    return (*shape[:-2], shape[-1], shape[-2]) if candidate.transposed else shape
