"""Alias analysis of TensorIR: may the output of a kernel lie in the memory of one of its inputs?

It may when no element of the input is read after the output's element in the same place has been
written.  Shapes are static, so the question has an exact answer: the kernel is walked with all
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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

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
_UNORDERED = ("PARALLEL", "VECTORIZED", "THREAD_BINDING")
_NEVER = np.iinfo(np.int64).max
_PREFETCH = "llvm.prefetch"


def why_not_in_place(function: PrimFunc, inputs: Sequence[int], output: int) -> str | None:
    """Reason why parameter ``output`` must not share its memory with the parameters ``inputs``; None if it may.

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
        sizes = {_elements(p) for p in [*shared, target]}
        if len(sizes) != 1:
            return "the sizes differ"
        return _check(function.body, shared, target, sizes.pop())
    except _Unprovable as error:
        return str(error)


class _Unprovable(Exception):
    """The reason for which the analysis has no answer."""


@dataclass(frozen=True)
class _Points:
    """Iterations that reach a statement, one array element each."""

    env: Mapping[Var, np.ndarray]
    """Integer variable -> its values, ``[points, 1]``."""
    time: np.ndarray
    """Position in program order."""
    worker: np.ndarray
    """Iteration of unordered loops (the time at which it began); -1 outside of them."""
    epoch: np.ndarray
    """Time at which the outermost unordered loop began; the point's own time outside of them."""

    def __len__(self) -> int:
        return len(self.time)

    def take(self, index: np.ndarray) -> _Points:
        """The iterations at these indices."""
        env = {var: value[index] if len(value) > 1 else value for var, value in self.env.items()}
        return _Points(env, self.time[index], self.worker[index], self.epoch[index])

    def at(self, delay: int) -> _Points:
        """These iterations, ``delay`` later."""
        ordered = self.worker < 0
        return replace(self, time=self.time + delay, epoch=np.where(ordered, self.epoch + delay, self.epoch))


def _check(body: Stmt, inputs: list[Buffer], output: Buffer, size: int) -> str | None:
    """Walk the kernel's writes, then its reads; an element read after its write is a reason."""
    if size > _MOST_ELEMENTS:
        raise _Unprovable(f"{size:,} elements are too many to follow")
    walk = _Walk(body, inputs, output)
    if walk.reads_bound > _MOST_READS * size:
        raise _Unprovable("each element is read many times")
    first_time = np.full(size, _NEVER)
    first_epoch = np.full(size, _NEVER)
    workers = np.full(size, _NEVER), np.full(size, -_NEVER)
    clash: list[str] = []

    def write(elements: np.ndarray, points: _Points) -> None:
        for places, at in _columns(elements, size):
            np.minimum.at(first_time, places, points.time[at])
            np.minimum.at(first_epoch, places, points.epoch[at])
            np.minimum.at(workers[0], places, points.worker[at])
            np.maximum.at(workers[1], places, points.worker[at])

    def read(elements: np.ndarray, points: _Points) -> None:
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


def _elements(buffer: Buffer) -> int:
    """Elements of a buffer of constant shape."""
    count = 1
    for extent in buffer.shape:
        if not isinstance(extent, (int, tirx.IntImm)):
            raise _Unprovable("its shape is symbolic")
        count *= int(extent)
    return count


class _Walk:
    """Visits the accesses to some buffers, with all iterations at once."""

    def __init__(self, body: Stmt, inputs: list[Buffer], output: Buffer):
        self._body = body
        self._inputs = {var: 0 for var in inputs}
        self._output = {output: 0}
        self._analyzer = tvm.sym.Analyzer()
        self._spans: dict[int, int] = {}
        self.reads_bound = 0
        self._prefetch = tvm.target.codegen.llvm_lookup_intrinsic_id(_PREFETCH)
        self._measure(body, 1)

    # time that statements take ---------------------------------------------------------------
    def _measure(self, stmt: Stmt, repeats: int) -> int:
        """Slots of time of ``stmt`` (0: it touches none of the buffers); keeps views and spans."""
        span = self._span(stmt, repeats)
        if span * repeats > 1 << 60:
            raise _Unprovable("it has too many iterations to follow")
        self._spans[stmt.id_] = span
        return span

    def _span(self, stmt: Stmt, repeats: int) -> int:
        """Slots of time of one kind of statement."""
        if isinstance(stmt, tirx.SeqStmt):
            return sum(self._measure(part, repeats) for part in stmt.seq)
        if isinstance(stmt, tirx.For):
            most = max(0, int(self._analyzer.const_int_bound(stmt.extent).max_value))
            if most > 1 << 40:
                raise _Unprovable(f"loop {stmt.loop_var.name} has no constant bound")
            if most:
                low = self._analyzer.const_int_bound(stmt.min)
                self._analyzer.bind(
                    stmt.loop_var, tvm.ir.Range(int(low.min_value), int(low.max_value) + most), True
                )
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
            bound = self._analyzer.const_int_bound(stmt.value) if _is_integer(stmt.value) else None
            if bound is not None:
                self._analyzer.bind(stmt.var, stmt.value)
            return self._own([stmt.value], repeats)
        if isinstance(stmt, tirx.Evaluate):
            return 0 if self._is_prefetch(stmt.value) else self._own([stmt.value], repeats)
        if isinstance(stmt, tirx.AllocBuffer):
            return 0
        if self._mentions(stmt):
            raise _Unprovable(f"a {type(stmt).__name__} touches the buffers")
        return 0

    def _span_of_block(self, realize: SBlockRealize, repeats: int) -> int:
        """Slots of time of a block of a schedule, its initialisation included."""
        block = realize.block
        for match in block.match_buffers:
            if match.source.buffer in self._inputs or match.source.buffer in self._output:
                raise _Unprovable("a block matches a region of the buffers")
        for var, value in zip(block.iter_vars, realize.iter_values, strict=True):
            bound = self._analyzer.const_int_bound(value)
            self._analyzer.bind(var.var, tvm.ir.Range(int(bound.min_value), int(bound.max_value) + 1), True)
        start = self._measure(block.init, repeats) if block.init is not None else 0
        return start + self._measure(block.body, repeats)

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
            elif isinstance(node, tvm.ir.Call) and _op_name(node) == "tirx.address_of":
                if isinstance(node.args[0], TensorLoad) and self._role(node.args[0].source):
                    raise _Unprovable("an address in the buffers is taken")
        if mentioned > loads:
            raise _Unprovable("a pointer to the buffers is passed on")
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
            raise _Unprovable("a pointer into the buffers is computed")

    def _is_prefetch(self, value: Expr) -> bool:
        return _op_name(value) == "tirx.call_llvm_intrin" and int(value.args[0]) == self._prefetch

    # visiting --------------------------------------------------------------------------------
    def run(self, visit: Callable[[np.ndarray, _Points], None], *, writes: bool) -> None:
        """``visit(elements [points, lanes], points)`` for each access of the kind asked for."""
        self._visit, self._writes = visit, writes
        start = np.zeros(1, np.int64)
        self._stmt(self._body, _Points({}, start, start - 1, start))

    def _stmt(self, stmt: Stmt, points: _Points) -> None:
        """Visit the accesses of a statement that ``points`` reach."""
        if isinstance(stmt, tirx.Bind):
            value = self._try(stmt.value, points)
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
            self._loads([*stmt.indices, stmt.value], points)
            if stmt.buffer in self._inputs:
                raise _Unprovable("the input is written")
            if self._writes and stmt.buffer in self._output:
                self._visit(self._flat(stmt.buffer, stmt.indices, points), points)
        else:
            self._loads([stmt.value], points)

    def _loop(self, stmt: tirx.For, points: _Points) -> None:
        extent = np.broadcast_to(self._eval(stmt.extent, points)[:, 0], len(points)).clip(0)
        first = self._eval(stmt.min, points)
        index = np.repeat(np.arange(len(points)), extent)
        step = np.arange(len(index)) - np.repeat(np.cumsum(extent) - extent, extent)
        inner = points.take(index)
        value = (first[index] if len(first) > 1 else first) + step[:, None]
        time = inner.time + step * self._spans[stmt.body.id_]
        worker, epoch = inner.worker, np.where(inner.worker < 0, time, inner.epoch)
        if tirx.ForKind(int(stmt.kind)).name in _UNORDERED:
            epoch = np.where(inner.worker < 0, inner.time, inner.epoch)
            worker = time
        self._stmt(stmt.body, _Points({**inner.env, stmt.loop_var: value}, time, worker, epoch))

    def _branches(self, stmt: tirx.IfThenElse, points: _Points) -> None:
        self._loads([stmt.condition], points)
        after_then = self._spans[stmt.then_case.id_]
        after_else = self._spans[stmt.else_case.id_] if stmt.else_case is not None else 0
        points = points.at(self._spans[stmt.id_] - after_then - after_else)
        truth = self._try(stmt.condition, points)
        holds = None if truth is None else np.broadcast_to(truth[:, 0] != 0, len(points))
        chosen = points if holds is None else points.take(np.flatnonzero(holds))
        self._stmt(stmt.then_case, replace(chosen, env=dict(chosen.env)))
        if stmt.else_case is not None:
            chosen = points if holds is None else points.take(np.flatnonzero(~holds))
            self._stmt(stmt.else_case, replace(chosen, env=dict(chosen.env)).at(after_then))

    def _block(self, realize: SBlockRealize, points: _Points) -> None:
        block = realize.block
        env = dict(points.env)
        for var, value in zip(block.iter_vars, realize.iter_values, strict=True):
            env[var.var] = self._eval(value, points)
        points = replace(points, env=env)
        truth = self._try(realize.predicate, points)
        if truth is not None:
            points = points.take(np.flatnonzero(np.broadcast_to(truth[:, 0] != 0, len(points))))
        delay = 0
        if block.init is not None:
            starting = np.ones(len(points), bool)
            for var in block.iter_vars:
                if int(var.iter_type) != tirx.IterVar.DataPar:
                    starting &= np.broadcast_to(
                        (points.env[var.var] == self._eval(var.dom.min, points))[:, 0], len(points)
                    )
            self._stmt(block.init, points.take(np.flatnonzero(starting)))
            delay = self._spans[block.init.id_]
        later = points.at(delay)
        self._stmt(block.body, replace(later, env=dict(later.env)))

    def _loads(self, exprs: list[Expr], points: _Points) -> None:
        if self._writes:
            return

        for node in _nodes(exprs):
            if isinstance(node, tirx.Let):
                value = self._try(node.value, points)
                if value is not None:
                    points.env[node.var] = value  # type: ignore[index]
            elif isinstance(node, TensorLoad) and node.source in self._inputs:
                self._visit(self._flat(node.source, node.indices, points), points)

    def _flat(self, buffer: Buffer, indices: Sequence[Expr], points: _Points) -> np.ndarray:
        """Elements from the start of the memory, ``[points, lanes]``."""
        flat: np.ndarray = self._eval(buffer.elem_offset, points)
        if len(buffer.strides):
            strides = [self._eval(stride, points) for stride in buffer.strides]
        else:
            strides, step = [], 1
            for extent in reversed(list(buffer.shape)):
                strides.insert(0, np.full((1, 1), step))
                step *= int(extent)
        for index, stride in zip(indices, strides, strict=True):
            flat = flat + self._eval(index, points) * stride
        return np.broadcast_to(flat, (len(points), flat.shape[1]))

    def _try(self, expr: Expr, points: _Points) -> np.ndarray | None:
        """Values of an expression; None where they cannot be told."""
        try:
            return self._eval(expr, points)
        except _Unprovable:
            return None

    def _eval(self, expr: Expr | int, points: _Points) -> np.ndarray:
        """Values of an integer expression, ``[points or 1, lanes or 1]``."""
        if isinstance(expr, (int, tirx.IntImm)):
            return np.full((1, 1), int(expr), np.int64)
        if isinstance(expr, tvm.ir.Var) and expr in points.env:
            return points.env[expr]
        if isinstance(expr, tirx.Ramp):
            lanes = np.arange(int(expr.lanes))[None, :]
            return self._eval(expr.base, points) + self._eval(expr.stride, points) * lanes
        if isinstance(expr, (tirx.Broadcast, tirx.Cast)):
            return self._eval(expr.value, points)
        if isinstance(expr, tirx.Not):
            return 1 - (self._eval(expr.a, points) != 0)
        if isinstance(expr, tirx.Select):
            parts = (expr.condition, expr.true_value, expr.false_value)
            condition, yes, no = (self._eval(part, points) for part in parts)
            return np.where(condition != 0, yes, no)
        combine = _BINARY.get(type(expr).__name__)
        if combine is not None:
            return combine(self._eval(expr.a, points), self._eval(expr.b, points))
        combine = _CALLS.get(_op_name(expr))
        if combine is not None:
            return combine(*(self._eval(arg, points) for arg in expr.args))
        raise _Unprovable(f"an index or a loop depends on {type(expr).__name__}, not on loops alone")


# fmt: off
_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Min": np.minimum, "Max": np.maximum,
    "FloorDiv": np.floor_divide, "FloorMod": np.mod,
    "Div": lambda a, b: np.where((a < 0) != (b < 0), -(np.abs(a) // np.abs(b)), np.abs(a) // np.abs(b)),
    "Mod": np.fmod,
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal,
    "GT": np.greater, "GE": np.greater_equal,
    "And": np.logical_and, "Or": np.logical_or,
}
_CALLS: dict[str, Callable[..., np.ndarray]] = {
    "tirx.shift_left": np.left_shift, "tirx.shift_right": np.right_shift, "tirx.bitwise_and": np.bitwise_and,
    "tirx.if_then_else": lambda c, a, b: np.where(c != 0, a, b), "tirx.likely": lambda a: a,
}
# fmt: on


def _nodes(exprs: Sequence[Any]) -> list[Any]:
    """Parts of expressions and statements, outer ones first (an error must not pass through TVM's walker)."""
    found: list[Any] = []
    for expr in exprs:
        tvm_ffi.structural_walk(expr, (tvm_ffi.Object, found.append), order="pre")
    return found


def _op_name(expr: Expr) -> str:
    """Name of the operator that is called; empty for what is no call."""
    return expr.op.name if isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op) else ""


def _is_integer(expr: Expr) -> bool:
    """Whether an expression is a scalar integer."""
    dtype = str(getattr(expr, "dtype", "") or getattr(expr.ty, "dtype", ""))
    return dtype.startswith(("int", "uint")) and "x" not in dtype
