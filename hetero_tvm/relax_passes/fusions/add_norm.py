"""An addition and the norm of its sum -> ``ops.AddNorm`` (Skip-LayerNorm, Skip-RMSNorm).

The rule comes after the epilogues: a product adds its residual for free, where its rows are in registers.
What is left are sums of tensors that no product ends in (the norms behind attention and MLP of Gemma 2,
Swin's windows, position embeddings).  The sum may be used elsewhere as well; it is a second result then.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.relax_passes.rewriting.fused import Claims, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import RESHAPES


@dataclass
class _Found:
    op: AddNorm
    operands: list[Expr]
    total: Var
    """The addition's binding."""
    passed: list[Var]
    """Reshapes between it and the norm."""


class FuseAddNorm(Rule):
    """The residual's addition taken into the norm behind it; counted as the norm already.

    ``claims`` says whether the target has a kernel for an operator: otherwise the two stay apart.
    """

    name = "add_norm"
    counted = False
    anchors = ("relax.call_tir",)

    def __init__(self, claims: Claims):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> _Found | None:
        norm = contract(graph.functions(), graph.value(var))
        if not isinstance(norm, Normalization) or norm.special or norm.dtype != "float32":
            return None
        total, *vectors = graph.value(var).args[1].fields
        passed: list[Var] = []
        while (view := graph.call(total, *RESHAPES)) is not None:
            passed.append(total)
            total = view.args[0]
        addition = graph.call(total, "relax.add")
        if addition is None or dtype_of(total) != "float32" or shape_of(total)[-1:] != (norm.n,):
            return None
        for x, residual in (addition.args, reversed(list(addition.args))):
            added = _added(shape_of(residual), shape_of(total))
            if shape_of(x) != shape_of(total) or added is None or array_of(graph.value(x)) is not None:
                continue
            kept = any(graph.only_user(v) is None for v in (total, *passed))
            op = AddNorm(shape_of(total)[:-1], norm.n, added, norm.eps, norm.centered, norm.shifted, kept)
            if self._claims(op):
                return _Found(op, [x, residual, *vectors], total, passed)
        return None

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        op, operands, shape = found.op, found.operands, shape_of(var)
        first = found.total if op.kept else var  # the sum may be needed before the norm
        if shape_of(operands[1]) != op.added:
            residual = relax.op.reshape(operands[1], op.added)
            operands[1] = graph.insert_before(first, residual, f"{var.name}#residual", [])
        function = graph.add_function(op.workload(), op.label)
        types = [relax.TensorType(output.shape, output.dtype) for output in op.outputs]
        call = relax.call_tir(function, operands, out_ty=types if op.kept else types[0])
        absorbs = [found.total, *found.passed, var]
        if not op.kept and shape == op.output.shape:
            graph.replace(var, call, absorbs=absorbs)
            return
        result = graph.insert_before(first, call, f"{var.name}#add_norm", absorbs)
        if op.kept:
            graph.replace(found.total, relax.TupleGetItem(result, 0))
            if shape != op.output.shape:
                result = graph.insert_before(var, relax.TupleGetItem(result, 1), f"{var.name}#norm", [var])
        if shape != op.output.shape:
            graph.replace(var, relax.op.reshape(result, shape))
        else:
            graph.replace(var, relax.TupleGetItem(result, 1))


def _added(residual: tuple[int, ...], total: tuple[int, ...]) -> tuple[int, ...] | None:
    """Extents of a residual without the leading axes along which it repeats; None when it repeats along
    others as well."""
    while residual and residual[0] == 1 and (len(residual) < len(total) or total[0] != 1):
        residual = residual[1:]
    return residual if residual and residual == total[len(total) - len(residual) :] else None
