"""Common subexpressions: bindings that compute the same from the same are merged into the first."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_tvm.host.tvm import Expr, Var, relax, structural_equal, tvm
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, is_tensor, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_REDUCTIONS = ("relax.mean", "relax.sum", "relax.max")
_COMPARED_ELEMENTS = 1 << 12
"""Most elements of constants that are compared by value; larger ones only by identity, which is quick."""


class MergeDuplicates(Rule):
    """A second call of the same operator on the same operands -> the first one's result."""

    name = "merge_duplicates"
    counted = False
    # fmt: off
    anchors = (
        "relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.negative", "relax.rsqrt",
        "relax.sqrt", "relax.astype", "relax.reshape", "relax.expand_dims", "relax.permute_dims",
        "relax.broadcast_to", "relax.strided_slice", "relax.take", "relax.concat", "relax.where",
        "relax.mean", "relax.sum", "relax.max", "relax.cumsum", "relax.cos", "relax.sin", "relax.exp",
        "relax.less", "relax.less_equal", "relax.greater", "relax.greater_equal", "relax.equal",
        "relax.not_equal", "relax.logical_and", "relax.logical_or", "relax.logical_not", "relax.einsum",
    )
    # fmt: on
    # Products, norms and activations are left alone: whoever writes one twice means two.

    def match(self, graph: Graph, var: Var) -> Var | None:
        if None in graph.users(var) or not is_tensor(var):
            return None
        operands = [arg for arg in _flat(graph.value(var).args) if isinstance(arg, relax.Var)]
        if not operands:
            return None
        # A twin uses them all, and what thousands of bindings use tells least about it.
        operand = min(dict.fromkeys(operands), key=lambda arg: len(graph.users(arg)))
        siblings = {user for user in graph.users(operand) if user is not None}
        twins = [user for user in siblings if _same(graph.value(user), graph.value(var))]
        return min(twins, key=graph.bindings().index) if len(twins) > 1 else None

    def rewrite(self, graph: Graph, var: Var, found: Var) -> None:
        if not found.same_as(var):
            graph.forward(var, found)


def _flat(args: Sequence[Expr]) -> list[Expr]:
    found: list[Expr] = []
    for arg in args:
        found += _flat(arg.fields) if isinstance(arg, relax.Tuple) else [arg]
    return found


def _same(a: Expr, b: Expr) -> bool:
    if isinstance(a, relax.Var) or isinstance(b, relax.Var):
        return a.same_as(b)
    one, two = array_of(a), array_of(b)
    if one is not None and two is not None:
        if a.same_as(b) or one.size > _COMPARED_ELEMENTS:
            return a.same_as(b)
        return one.shape == two.shape and one.dtype == two.dtype and one.tobytes() == two.tobytes()
    if isinstance(a, tvm.ir.Call) and isinstance(b, tvm.ir.Call):
        alike = a.op.same_as(b.op) and len(a.args) == len(b.args) and _same_attributes(a, b)
        return alike and all(_same(x, y) for x, y in zip(a.args, b.args, strict=True))
    if isinstance(a, relax.Tuple) and isinstance(b, relax.Tuple):
        return len(a.fields) == len(b.fields) and all(map(_same, a.fields, b.fields))
    return type(a) is type(b) and structural_equal(a, b)


def _same_attributes(a: tvm.ir.Call, b: tvm.ir.Call) -> bool:
    """Whether two calls of one operator have equal attributes; a reduction's last axis is also its -1st."""
    if structural_equal(a.attrs, b.attrs):
        return True
    if a.op.name not in _REDUCTIONS or a.attrs.keepdims != b.attrs.keepdims or not is_tensor(a.args[0]):
        return False
    rank = len(shape_of(a.args[0]))
    axes = [call.attrs.axis for call in (a, b)]
    if None in axes:
        return False
    one, two = (sorted(int(axis) % rank for axis in found) for found in axes)
    return one == two
