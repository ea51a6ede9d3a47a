"""Products of two computed tensors, or with several constant matrices -> ``ops.BatchMatmul``, which reads
transposed operands where they lie."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import Place, operand_place, order_of


@dataclass
class _Found:
    op: BatchMatmul
    operands: list[Expr]
    top: Var
    absorbed: list[Var]


class FuseBatchMatmul(Rule):
    """A product whose operands are views of other tensors, and a transposition of its result.

    ``claims`` says whether the target has a kernel for an operator.
    """

    name = "batch_matmul"
    counted = False
    anchors = ("relax.matmul",)

    def __init__(self, claims: Claims):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> _Found | None:
        args = graph.value(var).args
        dtypes = {dtype_of(x) for x in (*args, var)}
        if min(len(shape_of(arg)) for arg in args) < 2 or dtypes not in ({"float32"}, {"float64"}):
            return None
        weight = array_of(graph.value(args[1]))
        if 0 in shape_of(var) or (weight is not None and weight.ndim == 2 and "float32" in dtypes):
            return None  # one constant matrix of float32 is the matter of the matmul epilogue
        shape = shape_of(var)
        lead, depth = shape[:-2], shape_of(args[0])[-1]
        left, right = (operand_place(graph, arg, lead) for arg in args)
        top, order, absorbed = var, list(range(len(shape))), [*left[0].skipped, *right[0].skipped]
        user = graph.only_user(var)
        if user is not None and graph.op_name(user) == "relax.permute_dims":
            moved = order_of(graph.value(user))
            if moved[-1] == len(shape) - 1:
                top, order = user, moved
                absorbed.append(var)
        op = BatchMatmul(
            lead, shape[-2], shape[-1], depth, *places_of(left, right), order=tuple(order), dtype=dtypes.pop()
        )
        return _Found(op, [left[0].base, right[0].base], top, absorbed) if self._claims(op) else None

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        function = graph.add_function(found.op.workload(), found.op.label)
        call = relax.call_tir(function, found.operands, out_ty=found.top.ty)
        graph.replace(found.top, call, absorbs=found.absorbed)


def places_of(*sides: tuple[Place, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Extents of what holds an operand, and its place there, of both sides in turn."""
    return [part for place, strides in sides for part in (shape_of(place.base), strides)]
