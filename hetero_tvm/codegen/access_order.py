"""Alias analysis of TensorIR: may the output of a kernel lie in the memory of one of its inputs?

It may when no element of the input is read after the output's element in the same place has been
written.  Shapes are static, so the question has an exact answer: the kernel is walked with many
iterations of its loops at once (arrays of loop variables), and only the statements that touch the
two buffers are looked at.  Whatever the indices are (views of other shapes, strided or overlapping
slices, row tails, blocks of a schedule), each access becomes the elements that it touches and the
time at which it does.

Time is the position in program order.  Iterations of parallel, vectorised and thread-bound loops have
no order among one another: what one of them reads, another one must not write, unless a whole loop
nest lies between the two.  Reads of a statement come before its write.

Not provable, and refused with the reason: indices, loop bounds or addresses that depend on data or
leave the kernel through a pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_tvm.codegen.iterations import (
    Points,
    Unprovable,
    element_count,
    evaluate,
    flat_elements,
    op_name,
    try_evaluate,
)
from hetero_tvm.host.tvm import (
    Buffer,
    Expr,
    PrimFunc,
    SBlockRealize,
    Stmt,
    TensorLoad,
    Var,
    tirx,
    tvm,
    tvm_ffi,
)

_MOST_ELEMENTS = 1 << 23
_MOST_READS = 24
"""Reads of an element, on average, beyond which the walk is not worth its time: no kernel that could
work in place comes near (normalisation reads a row four times)."""
_TOGETHER = 1 << 16
"""Accesses that are looked at together: their arrays stay in a cache."""
_UNORDERED = ("PARALLEL", "VECTORIZED", "THREAD_BINDING")
_NEVER = np.iinfo(np.int64).max
_PREFETCH = "llvm.prefetch"


def why_not_in_place(function: PrimFunc, inputs: Sequence[int], output: int) -> str | None:
    """Reason why ``inputs`` must not lie in the memory of parameter ``output``; None if they may.

    Parameters
    ----------
    function : scheduled PrimFunc with static shapes.
    inputs : indices of the parameters that would lie in the output's memory.
    """
    params = list(function.params)
    shared = [params[i] for i in inputs]
    target = params[output]
    if any(str(p.dtype) != str(target.dtype) for p in shared):
        return "the types of the elements differ"
    try:
        sizes = {element_count(p) for p in [*shared, target]}
        if len(sizes) != 1:
            return "the sizes differ"
        return _check(function.body, shared, target, sizes.pop())
    except Unprovable as error:
        return str(error)


def _check(body: Stmt, inputs: list[Buffer], output: Buffer, size: int) -> str | None:
    """Walk the kernel's writes, then its reads; an element read after its write is a reason."""
    if size > _MOST_ELEMENTS:
        raise Unprovable(f"{size:,} elements are too many to follow")
    walk = _Walk(body, inputs, output)
    if walk.reads_bound > _MOST_READS * size:
        raise Unprovable("each element is read many times")
    first_time = np.full(size, _NEVER)
    first_epoch = np.full(size, _NEVER)
    workers = np.full(size, _NEVER), np.full(size, -_NEVER)
    clash: list[str] = []

    def write(elements: np.ndarray, points: Points) -> None:
        for places, at in _columns(elements, size):
            np.minimum.at(first_time, places, points.time[at])
            np.minimum.at(first_epoch, places, points.epoch[at])
            np.minimum.at(workers[0], places, points.worker[at])
            np.maximum.at(workers[1], places, points.worker[at])

    def read(elements: np.ndarray, points: Points) -> None:
        for places, at in _columns(elements, size):
            same = (workers[0][places] == points.worker[at]) & (workers[1][places] == points.worker[at])
            fine = points.epoch[at] < first_epoch[places]
            fine |= same & (points.time[at] <= first_time[places])
            if not fine.all():
                clash.append(f"element {places[np.argmin(fine)]} is read after it was written")

    walk.run(write, writes=True)
    walk.run(read, writes=False)
    return clash[0] if clash else None


def _columns(elements: np.ndarray, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Elements of each lane inside of the buffer (a guarded access may point outside), and their points."""
    found = []
    for lane in range(elements.shape[1]):
        at = np.flatnonzero((elements[:, lane] >= 0) & (elements[:, lane] < size))
        found.append((elements[at, lane], at))
    return found


class _Walk:
    """Visits the accesses to some buffers, with all iterations at once."""

    def __init__(self, body: Stmt, inputs: list[Buffer], output: Buffer):
        self._body = body
        self._inputs = {var: 0 for var in inputs}
        self._output = {output: 0}
        self._analyzer = tvm.sym.Analyzer()
        self._spans: dict[int, int] = {}
        self._read: dict[int, list[Expr]] = {}
        self.reads_bound = 0
        self._prefetch = tvm.target.codegen.llvm_lookup_intrinsic_id(_PREFETCH)
        self._measure(body, 1)

    # time that statements take ---------------------------------------------------------------
    def _measure(self, stmt: Stmt, repeats: int) -> int:
        """Slots of time of ``stmt`` (0: it touches none of the buffers); keeps views and spans."""
        span = self._span(stmt, repeats)
        if span * repeats > 1 << 60:
            raise Unprovable("it has too many iterations to follow")
        self._spans[stmt.id_] = span
        return span

    def _span(self, stmt: Stmt, repeats: int) -> int:
        """Slots of time of one kind of statement."""
        if isinstance(stmt, tirx.SeqStmt):
            return sum(self._measure(part, repeats) for part in stmt.seq)
        if isinstance(stmt, tirx.For):
            most = max(0, int(self._analyzer.const_int_bound(stmt.extent).max_value))
            if most > 1 << 40:
                raise Unprovable(f"loop {stmt.loop_var.name} has no constant bound")
            if most:
                low = self._analyzer.const_int_bound(stmt.min)
                self._lies(stmt.loop_var, low.min_value, low.max_value + most - 1)
            return most * self._measure(stmt.body, repeats * most)
        if isinstance(stmt, tirx.IfThenElse):
            span = self._measure(stmt.then_case, repeats)
            span += self._measure(stmt.else_case, repeats) if stmt.else_case is not None else 0
            return span + self._own([stmt.condition], repeats)
        if isinstance(stmt, tirx.AttrStmt):
            return self._measure(stmt.body, repeats)
        if isinstance(stmt, SBlockRealize):
            return self._span_of_block(stmt, repeats)
        if isinstance(stmt, tirx.DeclBuffer):
            self._view(stmt)
            return 0
        if isinstance(stmt, tirx.BufferStore):
            touched = self._own([*stmt.indices, stmt.value], repeats)
            return 1 if touched or stmt.buffer in self._output or stmt.buffer in self._inputs else 0
        if isinstance(stmt, tirx.Bind):
            if _is_integer(stmt.value):
                bound = self._analyzer.const_int_bound(stmt.value)
                self._lies(stmt.var, bound.min_value, bound.max_value)
            return self._own([stmt.value], repeats)
        if isinstance(stmt, tirx.Evaluate):
            return 0 if self._is_prefetch(stmt.value) else self._own([stmt.value], repeats)
        if isinstance(stmt, tirx.AllocBuffer):
            return 0
        if self._mentions(stmt):
            raise Unprovable(f"a {type(stmt).__name__} touches the buffers")
        return 0

    def _span_of_block(self, realize: SBlockRealize, repeats: int) -> int:
        """Slots of time of a block of a schedule, its initialisation included."""
        block = realize.block
        for match in block.match_buffers:
            if match.source.buffer in self._inputs or match.source.buffer in self._output:
                raise Unprovable("a block matches a region of the buffers")
        for var, value in zip(block.iter_vars, realize.iter_values, strict=True):
            bound = self._analyzer.const_int_bound(value)
            self._lies(var.var, bound.min_value, bound.max_value)
        start = self._measure(block.init, repeats) if block.init is not None else 0
        return start + self._measure(block.body, repeats)

    def _lies(self, var: Var, least: int, most: int) -> None:
        """Keep the bounds of a variable, and these alone: sets of values would have to be of one type."""
        self._analyzer.update(var, tvm.sym.ConstIntBound(int(least), int(most)), True)

    def _own(self, exprs: list[Expr], repeats: int) -> int:
        """1 when expressions load from the buffers; refuses pointers to them."""
        loads, mentioned = 0, 0
        for node in _nodes(exprs):
            if isinstance(node, TensorLoad) and self._role(node.source):
                loads += 1
                if node.source in self._inputs:
                    self.reads_bound += repeats
            elif isinstance(node, tvm.ir.Var) and self._role(node):
                mentioned += 1
            elif isinstance(node, tvm.ir.Call) and op_name(node) == "tirx.address_of":
                if isinstance(node.args[0], TensorLoad) and self._role(node.args[0].source):
                    raise Unprovable("an address in the buffers is taken")
        if mentioned > loads:
            raise Unprovable("a pointer to the buffers is passed on")
        return int(loads > 0)

    def _role(self, var: Var) -> bool:
        """Whether a variable is one of the buffers."""
        return var in self._inputs or var in self._output

    def _mentions(self, node: Any) -> bool:
        """Whether a statement or expression has one of the buffers in it."""
        return any(isinstance(part, tvm.ir.Var) and self._role(part) for part in _nodes([node]))

    def _view(self, stmt: tirx.DeclBuffer) -> None:
        """Give a buffer declared on the memory of another one the role of that one."""
        data = stmt.data
        source = data.args[0] if isinstance(data, tvm.ir.Call) and len(data.args) == 1 else data
        for role in (self._inputs, self._output):
            if source in role:
                role[stmt.buffer] = 0
                return
        if self._mentions(data):
            raise Unprovable("a pointer into the buffers is computed")

    def _is_prefetch(self, value: Expr) -> bool:
        return op_name(value) == "tirx.call_llvm_intrin" and int(value.args[0]) == self._prefetch

    # visiting --------------------------------------------------------------------------------
    def run(self, visit: Callable[[np.ndarray, Points], None], *, writes: bool) -> None:
        """``visit(elements [points, lanes], points)`` for each access of the kind asked for."""
        self._visit, self._writes = visit, writes
        start = np.zeros(1, np.int64)
        self._stmt(self._body, Points({}, start, start - 1, start))

    def _stmt(self, stmt: Stmt, points: Points) -> None:
        """Visit the accesses of a statement that ``points`` reach."""
        if isinstance(stmt, tirx.Bind):
            value = try_evaluate(stmt.value, points)
            if value is not None:
                points.env[stmt.var] = value  # type: ignore[index]  # visible to what follows
        if not len(points) or not self._spans[stmt.id_]:
            return
        if isinstance(stmt, tirx.SeqStmt):
            points = replace(points, env=dict(points.env))
            delay = 0
            for part in stmt.seq:
                self._stmt(part, points.at(delay))
                delay += self._spans[part.id_]
        elif isinstance(stmt, tirx.For):
            self._loop(stmt, points)
        elif isinstance(stmt, tirx.IfThenElse):
            self._branches(stmt, points)
        elif isinstance(stmt, tirx.AttrStmt):
            self._stmt(stmt.body, points)
        elif isinstance(stmt, SBlockRealize):
            self._block(stmt, points)
        elif isinstance(stmt, tirx.BufferStore):
            self._loads(stmt, [*stmt.indices, stmt.value], points)
            if stmt.buffer in self._inputs:
                raise Unprovable("the input is written")
            if self._writes and stmt.buffer in self._output:
                self._visit(flat_elements(stmt.buffer, stmt.indices, points), points)
        else:
            self._loads(stmt, [stmt.value], points)

    def _loop(self, stmt: tirx.For, points: Points) -> None:
        extent = np.broadcast_to(evaluate(stmt.extent, points)[:, 0], len(points)).clip(0)
        first = evaluate(stmt.min, points)
        index = np.repeat(np.arange(len(points)), extent)
        step = np.arange(len(index)) - np.repeat(np.cumsum(extent) - extent, extent)
        each = max(1, _TOGETHER // max(1, self._spans[stmt.body.id_]))
        for begin in range(0, len(index), each):
            self._iterations(stmt, points, first, index[begin : begin + each], step[begin : begin + each])

    def _iterations(
        self, stmt: tirx.For, points: Points, first: np.ndarray, index: np.ndarray, step: np.ndarray
    ) -> None:
        """Visit iterations ``step`` of a loop, each at the point ``index``, which begins at ``first``."""
        inner = points.take(index)
        value = (first[index] if len(first) > 1 else first) + step[:, None]
        time = inner.time + step * self._spans[stmt.body.id_]
        worker, epoch = inner.worker, np.where(inner.worker < 0, time, inner.epoch)
        if tirx.ForKind(int(stmt.kind)).name in _UNORDERED:
            epoch = np.where(inner.worker < 0, inner.time, inner.epoch)
            worker = time
        self._stmt(stmt.body, Points({**inner.env, stmt.loop_var: value}, time, worker, epoch))

    def _branches(self, stmt: tirx.IfThenElse, points: Points) -> None:
        self._loads(stmt, [stmt.condition], points)
        after_then = self._spans[stmt.then_case.id_]
        after_else = self._spans[stmt.else_case.id_] if stmt.else_case is not None else 0
        points = points.at(self._spans[stmt.id_] - after_then - after_else)
        truth = try_evaluate(stmt.condition, points)
        holds = None if truth is None else np.broadcast_to(truth[:, 0] != 0, len(points))
        chosen = points if holds is None else points.take(np.flatnonzero(holds))
        self._stmt(stmt.then_case, replace(chosen, env=dict(chosen.env)))
        if stmt.else_case is not None:
            chosen = points if holds is None else points.take(np.flatnonzero(~holds))
            self._stmt(stmt.else_case, replace(chosen, env=dict(chosen.env)).at(after_then))

    def _block(self, realize: SBlockRealize, points: Points) -> None:
        block = realize.block
        env = dict(points.env)
        for var, value in zip(block.iter_vars, realize.iter_values, strict=True):
            env[var.var] = evaluate(value, points)
        points = replace(points, env=env)
        truth = try_evaluate(realize.predicate, points)
        if truth is not None:
            points = points.take(np.flatnonzero(np.broadcast_to(truth[:, 0] != 0, len(points))))
        delay = 0
        if block.init is not None:
            starting = np.ones(len(points), bool)
            for var in block.iter_vars:
                if int(var.iter_type) != tirx.IterVar.DataPar:
                    starting &= np.broadcast_to(
                        (points.env[var.var] == evaluate(var.dom.min, points))[:, 0], len(points)
                    )
            self._stmt(block.init, points.take(np.flatnonzero(starting)))
            delay = self._spans[block.init.id_]
        later = points.at(delay)
        self._stmt(block.body, replace(later, env=dict(later.env)))

    def _loads(self, stmt: Stmt, exprs: list[Expr], points: Points) -> None:
        """Visit what the expressions of a statement load."""
        if self._writes:
            return
        if stmt.id_ not in self._read:
            nodes = [n for n in _nodes(exprs) if isinstance(n, tirx.Let | TensorLoad)]
            self._read[stmt.id_] = [n for n in nodes if isinstance(n, tirx.Let) or n.source in self._inputs]
        for node in self._read[stmt.id_]:
            if isinstance(node, tirx.Let):
                value = try_evaluate(node.value, points)
                if value is not None:
                    points.env[node.var] = value  # type: ignore[index]
            else:
                self._visit(flat_elements(node.source, node.indices, points), points)


def _nodes(exprs: Sequence[Any]) -> list[Any]:
    """Parts of expressions and statements, outer ones first (an error must not pass through TVM's walker)."""
    found: list[Any] = []
    for expr in exprs:
        tvm_ffi.structural_walk(expr, (tvm_ffi.Object, found.append), order="pre")
    return found


def _is_integer(expr: Expr) -> bool:
    """Whether an expression is a scalar integer."""
    dtype = str(getattr(expr, "dtype", "") or getattr(expr.ty, "dtype", ""))
    return dtype.startswith(("int", "uint")) and "x" not in dtype
