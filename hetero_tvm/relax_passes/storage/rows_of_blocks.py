"""Transpositions beside a change of an image's layout become part of it: rows of channels from and to blocks.

The products of an image net (ConvNeXt, the hybrids of convolutions and attention) want an image as rows, one
pixel's channels side by side; its convolutions want blocks.  Between the two stood plain NCHW, which is made
in squares that are transposed, twice.  Blocks and rows both have vectors of channels: their order changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.ops.layout import PLAIN, Layout
from hetero_tvm.ops.pool2d import Relayout
from hetero_tvm.relax_passes.rewriting.fused import Claims, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import RESHAPES, order_of

_TO_ROWS = {4: [0, 2, 3, 1], 3: [0, 2, 1]}
_FROM_ROWS = {4: [0, 3, 1, 2], 3: [0, 2, 1]}
"""Order of the transposition by the number of axes: of images, and of images whose pixels are one axis."""


class _Found(NamedTuple):
    op: Relayout
    x: Expr
    to_rows: bool


class RowsOfBlocks(Rule):
    """``transpose(unblock(x))`` and ``block(transpose(x))`` -> one change of layout.

    Parameters
    ----------
    claims : whether the target has a kernel for an operator.
    """

    name = "rows_of_blocks"
    counted = False
    anchors = ("relax.permute_dims", "relax.call_tir")

    def __init__(self, claims: Claims):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> _Found | None:
        value = graph.value(var)
        to_rows = graph.op_name(var) == "relax.permute_dims"
        if to_rows:
            change, found = _image(graph, value.args[0]), value
        else:
            change, found = var, _transposition(graph, value)
        op = contract(graph.functions(), graph.value(change)) if change is not None else None
        if found is None or not isinstance(op, Relayout):
            return None
        orders = _TO_ROWS if to_rows else _FROM_ROWS
        plain, rows = op.y_layout if to_rows else op.x_layout, str(Layout(op.channels))
        source = found.args[0]
        of_image = len(shape_of(source)) == 4 or shape_of(source)[1 if to_rows else 2] == op.channels
        if plain != PLAIN or order_of(found) != orders.get(len(shape_of(source))) or not of_image:
            return None
        wanted = replace(op, y_layout=rows) if to_rows else replace(op, x_layout=rows)
        if wanted.x_layout != wanted.y_layout and not self._claims(wanted):
            return None
        return _Found(wanted, graph.value(change).args[1].fields[0] if to_rows else source, to_rows)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        op, x, same = found.op, found.x, found.op.x_layout == found.op.y_layout  # of one block
        if found.to_rows:
            made = x
            if not same:
                function = graph.add_function(op.workload(), op.label)
                out = relax.TensorType(list(op.output.shape), op.output.dtype)
                call = relax.call_tir(function, [x], out_ty=out)
                made = graph.insert_before(var, call, f"{var.name}#rows", [var])
            graph.replace(var, relax.op.reshape(made, shape_of(var)))
            return
        if same:
            graph.replace(var, relax.op.reshape(x, op.output.shape))
            return
        rows = graph.insert_before(var, relax.op.reshape(x, op.inputs[0].shape), f"{var.name}#rows", [var])
        graph.replace(var, graph.call_function(op.workload(), op.label, [rows], var))


def _image(graph: Graph, value: Expr) -> Expr:
    """The image that ``value`` is, or whose pixels are one axis of it."""
    view = graph.call(value, *RESHAPES)
    if view is None or len(shape_of(view.args[0])) != 4 or len(shape_of(value)) != 3:
        return value
    return view.args[0] if shape_of(view.args[0])[:2] == shape_of(value)[:2] else value


def _transposition(graph: Graph, change: Call) -> Call | None:
    """The transposition that makes the operand of a change of layout."""
    operand = change.args[1].fields[0]
    view = graph.call(operand, *RESHAPES)
    if view is not None and len(shape_of(view.args[0])) == 3:
        if shape_of(view.args[0])[:2] == shape_of(operand)[:2]:
            operand = view.args[0]
    return graph.call(operand, "relax.permute_dims")
