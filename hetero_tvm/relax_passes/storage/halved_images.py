"""Images that convolutions of bfloat16 alone read are stored in it: rounded once, half of the memory.

A convolution rounds what it reads in any case (:class:`hetero_tvm.ops.integers.bf16_conv2d.Bf16Conv2d`), so
that numbers stay the same to the last bit.  Concatenations and slices of such images go along.
"""

from __future__ import annotations

import dataclasses
import math

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.ops.integers.bf16_conv2d import HALVES, Bf16Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.relax_passes.rewriting.fused import Claims, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.rewriting.rule import GraphPass, Report


class HalveImages(GraphPass):
    """Results of convolutions of bfloat16, and concatenations and slices of these, in bfloat16.

    Parameters
    ----------
    claims : whether the target has a kernel for an operator.
    """

    name = "halved_images"

    def __init__(self, claims: Claims):
        self._claims = claims

    def run(self, graph: Graph, report: Report) -> None:
        halved = self._halved(graph)
        stored: dict[Expr, Var] = {}
        for var in graph.bindings():
            op = _convolution(graph, var)
            if var not in halved and (op is None or _operands(graph, var)[0] not in stored):
                continue
            if op is not None:
                value = self._convolved(graph, var, op, stored, var in halved)
            else:
                value = self._moved(graph, var, stored)
            if var in halved:
                stored[var] = graph.insert_before(var, value, f"{var.name}#halves", [var])
                # For readers that are yet to be rewritten; nobody reads it in the end.
                graph.replace(var, relax.op.astype(stored[var], "float32"))
                report.fusions[self.name] = report.fusions.get(self.name, 0) + 1
            else:
                graph.replace(var, value)

    def _halved(self, graph: Graph) -> set[Var]:
        """Images that are stored in bfloat16."""
        joined = {var for var in graph.bindings() if graph.op_name(var) in _MOVES}
        while True:
            wanted: set[Var] = set()
            for var in reversed(graph.bindings()):
                users = graph.users(var)
                if users and all(_reads_halves(graph, user, var, wanted & joined) for user in users):
                    wanted.add(var)
            halved: set[Var] = set()
            for var in graph.bindings():
                if var in wanted and self._gives_halves(graph, var, halved):
                    halved.add(var)
            if halved >= wanted & joined:
                return halved
            joined &= halved  # parts of the others stay as they are

    def _gives_halves(self, graph: Graph, var: Var, halved: set[Var]) -> bool:
        """Whether the result of a binding may be stored in bfloat16: a convolution's, or a move's of which
        such results are half or more."""
        if graph.op_name(var) in _MOVES:
            parts = _parts(graph, var)
            inside = sum(math.prod(shape_of(part)) for part in parts if part in halved)
            return 2 * inside >= sum(math.prod(shape_of(part)) for part in parts)
        op = _convolution(graph, var)
        return op is not None and self._claims(dataclasses.replace(op, y_dtype=HALVES))

    def _convolved(
        self, graph: Graph, var: Var, op: Bf16Conv2d, stored: dict[Expr, Var], to_halves: bool
    ) -> Expr:
        """A convolution of an image as it is stored."""
        x, *others = _operands(graph, var)
        op = dataclasses.replace(
            op,
            x_dtype=HALVES if x in stored else op.x_dtype,
            y_dtype=HALVES if to_halves else op.y_dtype,
        )
        function = graph.add_function(op.workload(), op.label)
        out = relax.TensorType(op.output.shape, op.output.dtype)
        return relax.call_tir(function, [stored.get(x, x), *others], out_ty=out)

    def _moved(self, graph: Graph, var: Var, stored: dict[Expr, Var]) -> Expr:
        """A move of images that are stored in bfloat16, or rounded for it."""
        parts = [
            stored[part]
            if part in stored
            else graph.insert_before(var, relax.op.astype(part, HALVES), f"{var.name}#rounded")
            for part in _parts(graph, var)
        ]
        call = graph.value(var)
        if graph.op_name(var) == "relax.concat":
            return relax.op.concat(parts, call.attrs.axis)
        return relax.Call(call.op, [*parts, *call.args[1:]], call.attrs)


def _reads_halves(graph: Graph, user: Var | None, var: Var, joined: set[Var]) -> bool:
    """Whether ``user`` reads of ``var`` only what is left after rounding: a convolution does, and a move of
    ``joined``."""
    if user is None:
        return False
    op = _convolution(graph, user)
    if op is None or not Layout.parse(op.x_layout).blocked:
        return user in joined
    x, *others = _operands(graph, user)
    return x.same_as(var) and not any(other.same_as(var) for other in others)


def _convolution(graph: Graph, var: Var) -> Bf16Conv2d | None:
    op = contract(graph.functions(), graph.value(var))
    return op if isinstance(op, Bf16Conv2d) else None


def _operands(graph: Graph, var: Var) -> list[Expr]:
    return list(graph.value(var).args[1].fields)


def _parts(graph: Graph, var: Var) -> list[Expr]:
    """The images that a move reads."""
    x = graph.value(var).args[0]
    return [x] if graph.op_name(var) == "relax.strided_slice" else graph.fields(x)


_MOVES = ("relax.concat", "relax.strided_slice")
"""Operators that move values as they are: parts of images, and images without the zeros around."""
