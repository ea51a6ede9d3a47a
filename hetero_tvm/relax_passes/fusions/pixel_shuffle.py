"""Channels that become pixels (DepthToSpace, PixelShuffle) -> ``ops.Interleave``.

::

    reshape(permute_dims(reshape(x, (N, C, r, s, H, W)), (0, 1, 4, 2, 5, 3)), (N, C, H * r, W * s))
    reshape(permute_dims(reshape(x, (N, r, s, C, H, W)), (0, 3, 4, 1, 5, 2)), (N, C, H * r, W * s))

A transposition whose rows are as short as a factor runs value by value; these are shuffles of whole vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.ops.interleave import Interleave
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import RESHAPES, order_of

_BY_CHANNEL = (0, 1, 4, 2, 5, 3)
_BY_PLACE = (0, 3, 4, 1, 5, 2)


@dataclass
class _Found:
    op: Interleave
    x: Expr
    top: Var
    absorbs: list[Var]


class FusePixelShuffle(Rule):
    """Channels that become pixels, where the target has a kernel for it."""

    name = "pixel_shuffle"
    counted = False
    anchors = ("relax.permute_dims",)

    def __init__(self, claims: Claims):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        x, top = call.args[0], graph.only_user(var)
        if len(shape_of(x)) != 6 or top is None or graph.op_name(top) not in RESHAPES:
            return None
        apart, whole = graph.call(x, *RESHAPES), shape_of(top)
        order = tuple(order_of(call))
        if apart is None or order not in (_BY_CHANNEL, _BY_PLACE):
            return None
        if order == _BY_CHANNEL:
            batch, channels, down, across, rows, columns = shape_of(x)
            groups, each = channels, 1
        else:
            batch, down, across, channels, rows, columns = shape_of(x)
            groups, each = 1, channels
        image = (batch, channels * down * across, rows, columns)
        if whole != (batch, channels, rows * down, columns * across) or shape_of(apart.args[0]) != image:
            return None
        op = Interleave(batch, groups, each, rows, columns, (down, across), (0, 0), whole[2:], dtype_of(var))
        return _Found(op, apart.args[0], top, [x, var]) if self._claims(op) else None

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        op, top = found.op, found.top
        graph.replace(top, graph.call_function(op.workload(), op.label, [found.x], top), found.absorbs)
