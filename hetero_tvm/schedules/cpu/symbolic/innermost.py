"""Innermost loops over an extent that is known at run time: cut where conditions change, then in vectors.

A loop over ``n`` elements becomes ``n // lanes`` whole vectors, and what is left one by one.  Where its
values ask on which side of a place they lie (the edges of a pad), the loop is cut there first: within a part
there is nothing to ask.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import (
    Call,
    Expr,
    PrimFunc,
    SBlockRealize,
    TensorLoad,
    Var,
    s_tir,
    tirx,
    tvm,
    tvm_ffi,
)
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.reduction import PARALLEL_WORTH
from hetero_tvm.schedules.nests.nest import loads_of, substitute

_MOST_PLACES = 2
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)


def in_vectors(function: PrimFunc, machine: CpuModel) -> PrimFunc:
    """The function with its innermost loops of elements in vectors, where their extent is no constant.

    Where no loop is shared among threads (there are rows for too few of them), long innermost ones are.
    """
    shared: list[tirx.For] = []

    def note(node: tirx.For) -> tirx.For:
        if node.kind == tirx.ForKind.PARALLEL:
            shared.append(node)
        return node

    tvm_ffi.structural_map(function.body, (tirx.For, note), order="post")
    threads = 1 if shared else machine.threads

    def loop(node: tirx.For) -> tirx.For | tirx.SeqStmt:
        plain = node.kind == tirx.ForKind.SERIAL and not isinstance(node.extent, tirx.IntImm)
        if not plain or not isinstance(node.body, SBlockRealize) or not _is_zero(node.min):
            return node
        axis = _axis_of(node)
        if axis is None:
            return node
        parts = _parts(node, axis)
        if all(_is_scattered(body, axis) for _, _, body in parts):
            return node
        loops: list[tirx.Stmt] = []
        for begin, end, body in parts:
            if _is_scattered(body, axis):
                loops.append(_one_by_one(node, begin, end, body))
            else:
                loops += _by_vectors(node, begin, end, body, machine.lanes, threads)
        return tirx.SeqStmt(loops)

    body = tvm_ffi.structural_map(function.body, (tirx.For, loop), order="post")
    return function.with_body(body)


def _is_zero(value: Expr) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) == 0


def _axis_of(loop: tirx.For) -> Var | None:
    """The block's axis that the loop goes along, if its elements are independent."""
    block, values = loop.body.block, loop.body.iter_values
    if not (isinstance(loop.body.predicate, tirx.IntImm) and int(loop.body.predicate)):
        return None
    spatial = all(int(axis.iter_type) == tirx.IterVar.DataPar for axis in block.iter_vars)
    if block.init is not None or not spatial or not isinstance(block.body, tirx.BufferStore):
        return None
    bound = [
        axis.var
        for axis, value in zip(block.iter_vars, values, strict=True)
        if isinstance(value, Var) and value.same_as(loop.loop_var)
    ]
    others = [v for v in values if not (isinstance(v, Var) and v.same_as(loop.loop_var))]
    if len(bound) != 1 or any(_uses(value, loop.loop_var) for value in others):
        return None
    return bound[0]


def _is_scattered(realize: SBlockRealize, axis: Var) -> bool:
    """Whether a block reads or writes places along the axis that are no line of them."""
    store = realize.block.body
    loads = [load for load, _ in loads_of(store.value)]
    indices = [*store.indices, *(index for load in loads for index in load.indices)]
    return any(_uses(index, axis) and _is_devious(index) for index in indices)


def _uses(value: Expr, variable: Var) -> bool:
    return any(v.same_as(variable) for v in tirx.analysis.undefined_vars(value))


def _is_devious(index: Expr) -> bool:
    """Whether an index divides, chooses or reads: vectors of such places gain nothing."""
    found = []

    def note(node: Expr) -> Expr:
        if isinstance(node, (*_DIVISIONS, tirx.Select, Call, TensorLoad)):
            found.append(node)
        return node

    tvm_ffi.structural_map(index, (tvm.ir.Expr, note), order="post")
    return bool(found)


def _parts(loop: tirx.For, axis: Var) -> list[tuple[Expr, Expr, SBlockRealize]]:
    """Begin and end of each part of the loop, and its body; the whole loop where nothing is asked."""
    block = loop.body.block
    dtype = str(loop.loop_var.ty.dtype)
    zero, extent = tirx.const(0, dtype), loop.extent
    asked: list[tuple[Expr, Expr]] = []
    outside = {
        other.var: value
        for other, value in zip(block.iter_vars, loop.body.iter_values, strict=True)
        if not other.var.same_as(axis)
    }

    def note(node: Expr) -> Expr:
        if isinstance(node, _COMPARISONS) and (place := _place(node, axis)) is not None:
            place = substitute(place, outside)  # as it is known before the loop
            if not loads_of(place) and not _uses(place, axis):
                asked.append((node, place))
        return node

    tvm_ffi.structural_map(block.body.value, (tvm.ir.Expr, note), order="post")
    analyzer = tvm.sym.Analyzer()
    for variable in {v for _, place in asked for v in tirx.analysis.undefined_vars(place)}:
        none, most = (tirx.const(value, str(variable.ty.dtype)) for value in (0, 1 << 30))
        analyzer.bind(variable, tvm.ir.Range.from_min_extent(none, most))
    places: list[Expr] = []
    for _, place in asked:
        if not any(tvm_ffi.structural_equal(place, other) for other in places):
            places.append(place)
    if len(places) == 2 and analyzer.can_prove(places[1] <= places[0]):
        places.reverse()
    ordered = len(places) < 2 or analyzer.can_prove(places[0] <= places[1])
    if not places or len(places) > _MOST_PLACES or not ordered:
        return [(zero, extent, loop.body)]
    ends = [tirx.max(zero, tirx.min(extent, tirx.Cast(dtype, place))) for place in places]
    parts = []
    for n, (begin, end) in enumerate(zip([zero, *ends], [*ends, extent], strict=True)):
        known = [
            (node, _holds(node, axis, any(tvm_ffi.structural_equal(place, p) for p in places[:n])))
            for node, place in asked
        ]
        parts.append((begin, end, _with_value(loop.body, _told(block.body.value, known))))
    return parts


def _place(node: Expr, axis: Var) -> Expr | None:
    """The first place along the axis at which a comparison is other than before it; None where it asks for
    something else, or for more."""
    if not str(node.a.ty.dtype).startswith("int"):
        return None  # no place: of unsigned constants TVM makes no difference below 0
    difference = tvm.sym.detect_linear_equation(node.a - node.b, [axis])
    if len(difference) != 2:
        return None
    step, base = (tvm.sym.Analyzer().simplify(value) for value in difference)
    if not isinstance(step, tirx.IntImm) or abs(int(step)) != 1:
        return None
    # a - b = step * axis + base changes its sign at -base / step.
    root = tvm.sym.Analyzer().simplify(-base if int(step) == 1 else base)
    # Both "v < root" and "root <= v" change at root, "v <= root" and "root < v" one behind it.
    rising = int(step) == 1
    at_root = isinstance(node, (tirx.LT, tirx.GE)) if rising else isinstance(node, (tirx.LE, tirx.GT))
    return root if at_root else tvm.sym.Analyzer().simplify(root + tirx.const(1, str(root.ty.dtype)))


def _holds(node: Expr, axis: Var, beyond: bool) -> bool:
    """Whether a comparison holds beyond its place, or before it."""
    step = tvm.sym.detect_linear_equation(node.a - node.b, [axis])[0]
    grows = int(tvm.sym.Analyzer().simplify(step)) == 1
    return (isinstance(node, (tirx.GT, tirx.GE)) == grows) == beyond


def _told(value: Expr, known: list[tuple[Expr, bool]]) -> Expr:
    """A value whose comparisons are known."""

    def compared(node: Expr) -> Expr:
        for other, holds in known:
            if isinstance(node, _COMPARISONS) and tvm_ffi.structural_equal(node, other):
                return tirx.const(holds, "bool")
        return node

    return tvm.sym.Analyzer().simplify(tvm_ffi.structural_map(value, (tvm.ir.Expr, compared), order="post"))


def _with_value(realize: SBlockRealize, value: Expr) -> SBlockRealize:
    block, store = realize.block, realize.block.body
    body = tirx.BufferStore(store.buffer, value, store.indices)
    changed = s_tir.SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, body)
    return s_tir.SBlockRealize(realize.iter_values, realize.predicate, changed)


def _by_vectors(
    loop: tirx.For, begin: Expr, end: Expr, body: SBlockRealize, lanes: int, threads: int
) -> list[tirx.Stmt]:
    """Loops over whole vectors from ``begin`` to ``end``, and over what is left."""
    dtype = str(loop.loop_var.ty.dtype)
    lanes = tirx.const(lanes, dtype)
    count = end - begin
    zero, vectors = tirx.const(0, dtype), tirx.floordiv(count, lanes)
    whole = vectors * lanes

    def vectors_by(kind: int) -> tirx.For:
        number, lane = (tirx.Var(f"{loop.loop_var.name}_{name}", dtype) for name in ("v", "l"))
        place = begin + number * lanes + lane
        vector = tirx.For(lane, zero, lanes, tirx.ForKind.VECTORIZED, _at(loop, body, place))
        return tirx.For(number, zero, vectors, kind, vector)

    along: tirx.Stmt = vectors_by(tirx.ForKind.SERIAL)
    if threads > 1:
        long = count >= tirx.const(2 * PARALLEL_WORTH, dtype)
        along = tirx.IfThenElse(long, vectors_by(tirx.ForKind.PARALLEL), along)
    return [along, _one_by_one(loop, begin + whole, end, body)]


def _one_by_one(loop: tirx.For, begin: Expr, end: Expr, body: SBlockRealize) -> tirx.For:
    """Loop over the elements from ``begin`` to ``end``."""
    place = tirx.Var(f"{loop.loop_var.name}_r", str(loop.loop_var.ty.dtype))
    zero = tirx.const(0, str(place.ty.dtype))
    return tirx.For(place, zero, end - begin, tirx.ForKind.SERIAL, _at(loop, body, begin + place))


def _at(loop: tirx.For, body: SBlockRealize, place: Expr) -> SBlockRealize:
    """The block at a place of the loop."""
    values = [substitute(value, {loop.loop_var: place}) for value in body.iter_values]
    return s_tir.SBlockRealize(values, body.predicate, body.block)
