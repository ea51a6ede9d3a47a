"""Rotary embedding written out -> one fused operator.

Two spellings, each with pairs of elements half a head apart or side by side::

    x * cos + concat(-x2, x1) * sin                                  (Llama and most others)
    concat(x1 * cos - x2 * sin, x2 * cos + x1 * sin)                 (ONNX's definition, GPT-OSS)

where x1 and x2 are the two elements of each pair.  When only the first elements of a head are rotated
and the others appended, the operator takes in both.  It reads x where it lies: the slices, and a
transposition before them, disappear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.ops.rope import Rope
from hetero_tvm.relax_passes.fusions.epilogue import other_operand
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule, check_float32
from hetero_tvm.relax_passes.rewriting.views import Place, View, below, places


@dataclass
class _Rotation:
    """A rotation before it is known where x lies.

    ``first`` and ``second`` are the elements of the pairs, ``top`` the result; ``whole`` is x itself where
    the spelling has it.
    """

    first: Place
    second: Place
    whole: Expr | None
    interleaved: bool
    cos: Expr
    sin: Expr
    top: Var
    absorbed: list[Var]


@dataclass
class _Found:
    op: Rope
    source: Expr
    tables: tuple[Expr, Expr]
    top: Var
    absorbed: list[Var]


class FuseRope(Rule):
    """A rotated tensor: queries and keys count one each."""

    name = "rope"
    anchors = ("relax.concat",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        rotations = list(_rotations(graph, var))
        if not rotations:
            return None
        check_float32(var)
        for rotation in rotations:
            if (found := _located(graph, rotation)) is not None:
                return found
        raise Miss("the two halves are not the halves of one tensor that lies in rows")

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        operands = [found.source]
        for table in found.tables:
            array = array_of(graph.value(table))
            if array is not None:
                rows = array.reshape(*found.op.table[:-1], -1)
                table = relax.const(np.ascontiguousarray(rows[..., : found.op.table[-1]]))
            elif shape_of(table) != found.op.table:
                table = graph.insert_before(
                    found.top, relax.op.reshape(table, found.op.table), found.top.name + "#table"
                )
            operands.append(table)
        call = graph.call_function(found.op.workload(), found.op.label, operands, found.top)
        graph.replace(found.top, call, absorbs=found.absorbed)


def _rotations(graph: Graph, var: Var) -> Iterator[_Rotation]:
    """Rotary patterns that may contain the concatenation ``var``.

    Raises
    ------
    Miss : it joins a negated tensor with another, but is not used as in a rotary embedding.
    """
    call = graph.value(var)
    parts = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    if len(parts) != 2 or call.attrs.axis is None or shape_of(parts[0]) != shape_of(parts[1]):
        return
    rank = len(shape_of(var))
    if int(call.attrs.axis) % rank != rank - 1:
        return
    top, absorbed = _joined(graph, var)
    interleaved = shape_of(parts[0])[-1] == 1 and top is not var
    firsts = places(graph, parts[1], scaled=True)[::-1]  # from as far as possible
    seconds = [p for p in places(graph, parts[0], scaled=True) if p.factor == -1.0]
    if seconds:
        uses = _added_products(graph, top)
        if uses is None:
            raise Miss("a negated and a plain part are joined, but no product with it is added to another")
        sin, others, result, between = uses
        for x, cos in others:
            for first in firsts:
                for second in seconds:
                    if first.factor == 1.0 and first.base.same_as(second.base):
                        passed = [*second.skipped, *first.skipped, *absorbed, var, *between]
                        yield _Rotation(first, second, x, interleaved, cos, sin, result, passed)
        return
    yield from _by_parts(graph, parts, interleaved, top, [*absorbed, var])


def _joined(graph: Graph, var: Var) -> tuple[Var, list[Var]]:
    """The reshape that joins a stacked axis of pairs, and the bindings before it."""
    user = graph.only_user(var)
    shape = shape_of(var)
    if shape[1:] and shape[-1] == 2 and user is not None and graph.op_name(user) == "relax.reshape":
        if shape_of(user) == (*shape[:-2], shape[-2] * 2):
            return user, [var]
    return var, []


def _added_products(
    graph: Graph, rotated: Var
) -> tuple[Expr, list[tuple[Expr, Expr]], Var, list[Var]] | None:
    """Parts of ``x * cos + rotated * sin``: sin, the two readings of (x, cos), the sum, bindings between."""
    turned = graph.only_user(rotated)
    if turned is None or graph.op_name(turned) != "relax.multiply":
        return None
    sin = other_operand(graph, turned, rotated)
    total = graph.only_user(turned)
    if total is None or graph.op_name(total) != "relax.add" or shape_of(total) != shape_of(rotated):
        return None
    kept = other_operand(graph, total, turned)
    product = graph.call(kept, "relax.multiply")
    if product is None or graph.only_user(kept) is None:
        return None
    left, right = product.args
    return sin, [(left, right), (right, left)], total, [rotated, turned, kept]


def _by_parts(
    graph: Graph, parts: list[Expr], interleaved: bool, top: Var, absorbed: list[Var]
) -> Iterator[_Rotation]:
    """Readings of ``concat(x1 * cos - x2 * sin, x2 * cos + x1 * sin)`` as a rotation."""
    bases = [_through_views(graph, part) for part in parts]
    low, high = graph.call(bases[0], "relax.subtract"), graph.call(bases[1], "relax.add")
    if low is None or high is None:
        return
    products = [graph.call(arg, "relax.multiply") for arg in (*low.args, *high.args)]
    if any(product is None for product in products):
        return
    kept, turned, *sums = (tuple(product.args) for product in products)
    passed = [*absorbed, *parts, *bases, *low.args, *high.args]
    for first, cos in (kept, kept[::-1]):
        for second, sin in (turned, turned[::-1]):
            if not any(
                _has(one, (second, cos)) and _has(other, (first, sin)) for one, other in (sums, sums[::-1])
            ):
                continue
            for one in reversed(places(graph, first)):
                for two in places(graph, second):
                    if one.base.same_as(two.base):
                        skipped = [*one.skipped, *two.skipped, *passed]
                        yield _Rotation(one, two, None, interleaved, cos, sin, top, skipped)


def _has(args: tuple[Expr, Expr], wanted: tuple[Expr, Expr]) -> bool:
    """Whether a product has these operands, in any order."""
    return any(a.same_as(wanted[0]) and b.same_as(wanted[1]) for a, b in (args, args[::-1]))


def _through_views(graph: Graph, expr: Expr) -> Expr:
    while (step := below(graph, expr)) is not None:
        expr = step[0]
    return expr


# ---- where x lies --------------------------------------------------------------------------


def _located(graph: Graph, rotation: _Rotation) -> _Found | None:
    """The operator with the place of x; None when the parts are not the pairs of one tensor of rows."""
    first, second, shape = rotation.first.view, rotation.second.view, shape_of(rotation.top)
    rotary = shape[-1]
    if rotation.interleaved:
        first, second = (v.reshape((*shape[:-1], rotary // 2)) for v in (first, second))
        if first is None or second is None:
            return None
    lead = first.dims[:-1]
    x = View((*lead, ((rotary, 1),)), first.offset)
    if not _are_pairs(x, first, second, rotation.interleaved):
        return None
    if rotation.whole is not None:
        wholes = [p for p in places(graph, rotation.whole) if p.base.same_as(rotation.first.base)]
        if not any(p.view == x for p in wholes):
            return None
    strides = [x.stride(axis) for axis in range(len(shape) - 1)]
    if None in strides:
        return None
    table = _table(graph, rotation, shape)
    if table is None:
        return None
    op = Rope(shape, rotary, rotation.interleaved, table, shape_of(rotation.first.base), (x.offset, *strides))
    found = _Found(op, rotation.first.base, (rotation.cos, rotation.sin), rotation.top, rotation.absorbed)
    return _with_rest(graph, found, x)


def _are_pairs(x: View, first: View, second: View, interleaved: bool) -> bool:
    rotary = x.shape[-1]
    if rotary % 2:
        return False
    half, axis = rotary // 2, len(x.dims) - 1
    if interleaved:
        return first == x.slice(axis, 0, half, 2) and second == x.slice(axis, 1, half, 2)
    return first == x.slice(axis, 0, half) and second == x.slice(axis, half, half)


def _table(graph: Graph, rotation: _Rotation, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Extents of cos and sin; a constant that repeats itself in each pair is stored once per pair."""
    tables = rotation.cos, rotation.sin
    leads, widths = set(), set()
    for table in tables:
        extents = shape_of(table)
        if len(extents) > len(shape):
            if any(extent != 1 for extent in extents[: len(extents) - len(shape)]):
                return None
            extents = extents[len(extents) - len(shape) :]
        extents = (1,) * (len(shape) - len(extents)) + extents
        if any(extent not in (1, full) for extent, full in zip(extents[:-1], shape[:-1], strict=True)):
            return None
        leads.add(extents[:-1])
        widths.add(extents[-1])
    if len(leads) != 1 or len(widths) != 1:
        return None
    (lead,), (width,) = leads, widths
    wanted = shape[-1] if rotation.whole is not None else shape[-1] // 2
    if width != wanted or dtype_of(rotation.cos) != "float32":
        return None
    arrays = [array_of(graph.value(table)) for table in tables]
    if rotation.whole is not None and not rotation.interleaved and None not in [type(a) for a in arrays]:
        half = width // 2
        if all(a is not None and np.array_equal(a[..., :half], a[..., half:]) for a in arrays):
            width = half
    return (*lead, width)


def _with_rest(graph: Graph, found: _Found, x: View) -> _Found:
    """Operator that also copies the elements behind the rotated ones, where they are appended as they are."""
    user = graph.only_user(found.top)
    join = graph.call(user, "relax.concat") if user is not None else None
    if join is None or not isinstance(join.args[0], relax.Tuple) or len(join.args[0].fields) != 2:
        return found
    turned, rest = join.args[0].fields
    shape, rank = shape_of(user), len(shape_of(user))
    if not turned.same_as(found.top) or int(join.attrs.axis) % rank != rank - 1:
        return found
    behind = shape[-1] - found.op.rotary
    row = View((*x.dims[:-1], ((shape[-1], 1),)), x.offset)
    wanted = row.slice(rank - 1, found.op.rotary, behind)
    for place in places(graph, rest):
        if behind == 0 or (place.base.same_as(found.source) and place.view == wanted):
            op = replace(found.op, shape=shape)
            return replace(found, op=op, top=user, absorbed=[*found.absorbed, *place.skipped, found.top])
    return found
