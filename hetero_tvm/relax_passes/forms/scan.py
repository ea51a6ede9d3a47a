"""Loops over an axis as steps of whole tensors, for targets without loops over data.

These are scans (``cumsum``, ``cumprod``) and recurrent layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.host.tvm import Expr, PrimFunc, TETensor, Var, relax, te, tirx
from hetero_tvm.ops.loops.recurrence import Functions, Recurrence, gated_state, next_state, reset_state
from hetero_tvm.relax_passes.rewriting.fused import contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

_FAN = 16
"""Largest number of parts of one split or concatenation: all steps are the same few kernels."""
_MOST_STEPS = 4096
"""Largest number of time steps, since each is written out."""

Bind = Callable[[Expr, str], Expr]


class _Found(NamedTuple):
    """A scan of ``x`` whose result is ``top``; in reverse between two reversals, which ``beside`` are."""

    x: Expr
    top: Var
    axis: int
    exclusive: bool
    product: bool
    beside: tuple[Var, ...] = ()


class _Scan(Rule):
    """``cumsum`` and ``cumprod`` along one axis as another function."""

    name = "scan"
    counted = False
    anchors = ("relax.cumsum", "relax.cumprod")

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        if dtype_of(var) not in ("float32", "int32", "int64") or not math.prod(shape_of(var)):
            return None
        shape = shape_of(call.args[0])
        axis = call.attrs.axis
        if axis is None and len(shape) > 1:
            raise Miss("a scan over several axes")
        axis = 0 if axis is None else int(axis) % max(len(shape), 1)
        product = graph.op_name(var) == "relax.cumprod"
        return _Found(call.args[0], var, axis, bool(call.attrs.exclusive), product)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        more = {"reverse": True} if found.beside else {}
        function = self.function(
            shape_of(var),
            found.axis,
            dtype_of(found.x),
            dtype_of(var),
            product=found.product,
            exclusive=found.exclusive,
            **more,
        )
        name = "cumprod" if found.product else "cumsum"
        graph.replace(found.top, graph.call_function(function, name, [found.x], found.top), found.beside)

    def function(
        self,
        shape: tuple[int, ...],
        axis: int,
        given: str,
        dtype: str,
        *,
        product: bool,
        exclusive: bool,
        reverse: bool = False,
    ) -> PrimFunc:
        """The PrimFunc from a tensor of dtype ``given`` to one of ``dtype``."""
        raise NotImplementedError


class ScanAsKernel(_Scan):
    """``cumsum(x)`` -> a kernel that is scheduled already.

    Parameters
    ----------
    kernel : makes it, from what :meth:`function` is given.
    reverses : whether it has scans from the end on; else tensors are reversed before and after.
    """

    def __init__(self, kernel: Callable[..., PrimFunc], reverses: bool = False):
        self.function, self._reverses = kernel, reverses

    def match(self, graph: Graph, var: Var) -> _Found | None:
        found = super().match(graph, var)
        if found is None or not self._reverses:
            return found
        before, top = graph.call(found.x, "relax.flip"), graph.only_user(var)
        after = None if top is None else graph.call(top, "relax.flip")
        axes = {int(each.attrs.axis) % len(shape_of(var)) for each in (before, after) if each is not None}
        if before is None or after is None or axes != {found.axis} or graph.only_user(found.x) is None:
            return found
        return found._replace(x=before.args[0], top=top, beside=(found.x, var))


class ScanAsShifts(_Scan):
    """``cumsum(x)`` -> ``x += x shifted by 1``, then by 2, 4, ...: a step per doubling of the length.

    The same of ``cumprod`` with products.
    """

    def function(
        self,
        shape: tuple[int, ...],
        axis: int,
        given: str,
        dtype: str,
        *,
        product: bool,
        exclusive: bool,
        reverse: bool = False,
    ) -> PrimFunc:
        if reverse:
            raise ValueError("no shifts in reverse")
        neutral = tirx.const(1 if product else 0, dtype)

        def shifted(x: TETensor, by: int, combine: bool, name: str) -> TETensor:
            def element(*i: Expr) -> Expr:
                before = x(*i[:axis], i[axis] - by, *i[axis + 1 :])
                if not combine:
                    return tirx.if_then_else(i[axis] >= by, before, neutral)
                both = x(*i) * before if product else x(*i) + before
                return tirx.if_then_else(i[axis] >= by, both, x(*i))

            return te.compute(shape, element, name=name)

        x = te.placeholder(shape, given, "x")
        y = te.compute(shape, lambda *i: x(*i).astype(dtype), name="typed")
        if exclusive:
            y = shifted(y, 1, False, "before")
        step = 1
        while step < shape[axis]:
            y = shifted(y, step, True, f"scan{step}")
            step *= 2
        return te.create_prim_func([x, y], "int64").without_attr("global_symbol")


# ---- recurrent layers -----------------------------------------------------------------------


class _Layer(NamedTuple):
    op: Recurrence
    operands: dict[str, Expr]


class RecurrenceAsSteps(Rule):
    """A ``Recurrence`` -> a product, gates and a state for each of its steps."""

    name = "recurrence"
    counted = False
    anchors = ("relax.call_tir",)

    def match(self, graph: Graph, var: Var) -> _Layer | None:
        call = graph.value(var)
        op = contract(graph.functions(), call)
        if not isinstance(op, Recurrence):
            return None
        if op.steps > _MOST_STEPS:
            raise UnsupportedOperatorError(
                f"The target runs recurrent layers of at most {_MOST_STEPS} time steps, not {op.steps}.",
                problems=[f"node {graph.node(var)!r}"],
                hint="Steps are written out: feed long sequences in pieces, with the state as input and "
                "output, or build it for the CPU.",
            )
        return _Layer(op, dict(zip((o.name for o in op.inputs), call.args[1].fields, strict=True)))

    def rewrite(self, graph: Graph, var: Var, found: _Layer) -> None:
        op, operands = found
        bind = graph.binder(var, [var])
        functions = Functions(
            *(_function(f) for f in (relax.op.sigmoid, relax.op.tanh, relax.op.nn.relu)), lambda value: value
        )
        zeros = relax.const(np.zeros((op.batch, op.hidden), np.float32))
        nothing = relax.const(np.zeros((op.batch, op.gates * op.hidden), np.float32))
        h, c = (_Value(operands.get(name, zeros), bind) for name in ("h", "c"))
        z = s = _Value(zeros, bind)
        inputs = _pieces(bind, operands["X"], op.steps)
        states: list[Expr] = [zeros] * op.steps
        own = None
        if op.cell == "gru_before":
            begin = (op.gates - 1) * op.hidden
            own = bind(relax.op.strided_slice(operands["R"], [1], [begin], [begin + op.hidden]), "weights")
        for n, t in enumerate(reversed(range(op.steps)) if op.reverse else range(op.steps)):
            x = bind(relax.op.reshape(inputs[t], [op.batch, op.gates * op.hidden]), "x")
            product = relax.op.matmul(h.expr, operands["R"])
            a = bind(product, "product") if n or op.initial else nothing
            sums = _gates(bind, bind(relax.op.add(a, x), "sum"), op.gates)
            of_x, of_h = (_gates(bind, whole, op.gates)[-1] for whole in (x, a))
            if own is not None:
                z, s = reset_state(sums, h, functions)
                new = of_x + s.of("product", relax.op.matmul(s.expr, own))
                h = gated_state(z, functions.tanh(new), h, functions)
            elif op.cell == "gru":
                shares = of_x, of_h + _Value(operands["bias"], bind)
                h, c = next_state(op.cell, sums, shares, h, c, functions)
            else:
                h, c = next_state(op.cell, sums, None, h, c, functions)
            states[t] = bind(relax.op.expand_dims(h.expr, 0), "row")
        y = _joined(bind, states)
        if len(op.outputs) == 1:
            graph.replace(var, graph.value(y))
            return
        results = (z.expr, s.expr, y) if own is not None else (c.expr, y)
        graph.replace(var, relax.Tuple(results))
        for user in list(graph.users(var)):
            value = None if user is None else graph.value(user)
            if user is not None and isinstance(value, relax.TupleGetItem):
                graph.forward(user, results[int(value.index)])


@dataclass(frozen=True)
class _Value:
    """A tensor whose sums and products are bindings."""

    expr: Expr
    bind: Bind

    def of(self, name: str, value: Expr) -> _Value:
        """Result of an operator, bound."""
        return _Value(self.bind(value, name), self.bind)

    def __add__(self, other: _Value) -> _Value:
        return self.of("sum", relax.op.add(self.expr, other.expr))

    def __sub__(self, other: _Value) -> _Value:
        return self.of("difference", relax.op.subtract(self.expr, other.expr))

    def __mul__(self, other: _Value) -> _Value:
        return self.of("product", relax.op.multiply(self.expr, other.expr))


def _function(operator: Callable[[Expr], Expr]) -> Callable[[_Value], _Value]:
    return lambda value: value.of("activation", operator(value.expr))


def _gates(bind: Bind, x: Expr, count: int) -> list[_Value]:
    """Columns of each gate."""
    if count == 1:
        return [_Value(x, bind)]
    parts = bind(relax.op.split(x, count, axis=1), "gates")
    return [_Value(bind(relax.TupleGetItem(parts, n), "gate"), bind) for n in range(count)]


def _pieces(bind: Bind, x: Expr, count: int) -> list[Expr]:
    """``x`` by its first axis, in trees of splits."""
    if count == 1:
        return [x]
    size = 1
    while size * _FAN < count:
        size *= _FAN
    cuts = list(range(size, count, size))
    parts = bind(relax.op.split(x, cuts, axis=0), "steps")
    sizes = [min(size, count - begin) for begin in range(0, count, size)]
    each = [bind(relax.TupleGetItem(parts, n), "part") for n in range(len(sizes))]
    return [piece for part, n in zip(each, sizes, strict=True) for piece in _pieces(bind, part, n)]


def _joined(bind: Bind, parts: list[Expr]) -> Expr:
    """Concatenation along the first axis, in trees."""
    while len(parts) > 1:
        groups = [parts[n : n + _FAN] for n in range(0, len(parts), _FAN)]
        parts = [g[0] if len(g) == 1 else bind(relax.op.concat(g, axis=0), "rows") for g in groups]
    return parts[0]
