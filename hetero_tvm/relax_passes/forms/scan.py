"""Scans (``cumsum``, ``cumprod``) as steps of whole tensors, for targets without loops over data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from hetero_tvm.host.tvm import Call, Expr, PrimFunc, TETensor, Var, te, tirx
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule


class _Found(NamedTuple):
    call: Call
    axis: int
    exclusive: bool
    product: bool


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
        return _Found(call, axis, bool(call.attrs.exclusive), graph.op_name(var) == "relax.cumprod")

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        call, axis, exclusive, product = found
        function = self.function(
            shape_of(var), axis, dtype_of(call.args[0]), dtype_of(var), product=product, exclusive=exclusive
        )
        name = "cumprod" if product else "cumsum"
        graph.replace(var, graph.call_function(function, name, [call.args[0]], var))

    def function(
        self, shape: tuple[int, ...], axis: int, given: str, dtype: str, *, product: bool, exclusive: bool
    ) -> PrimFunc:
        """The PrimFunc from a tensor of dtype ``given`` to one of ``dtype``."""
        raise NotImplementedError


class ScanAsKernel(_Scan):
    """``cumsum(x)`` -> a kernel that is scheduled already.

    Parameters
    ----------
    kernel : makes it, from what :meth:`function` is given.
    """

    def __init__(self, kernel: Callable[..., PrimFunc]):
        self.function = kernel


class ScanAsShifts(_Scan):
    """``cumsum(x)`` -> ``x += x shifted by 1``, then by 2, 4, ...: a step per doubling of the length.

    The same of ``cumprod`` with products.
    """

    def function(
        self, shape: tuple[int, ...], axis: int, given: str, dtype: str, *, product: bool, exclusive: bool
    ) -> PrimFunc:
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
