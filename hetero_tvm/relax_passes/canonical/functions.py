"""Functions that code generators lack, in terms of those that they have."""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, is_tensor, scalar_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class EqualityOfTruth(Rule):
    """``equal`` and ``not_equal`` of truth values -> ``logical_xor``: LLVM compares numbers alone."""

    name = "equality_of_truth"
    counted = False
    anchors = ("relax.equal", "relax.not_equal")

    def match(self, graph: Graph, var: Var) -> list[Expr] | None:
        args = list(graph.value(var).args)
        return args if all(is_tensor(a) and dtype_of(a) == "bool" for a in args) else None

    def rewrite(self, graph: Graph, var: Var, found: list[Expr]) -> None:
        value = relax.op.logical_xor(*found)
        if graph.op_name(var) == "relax.equal":
            value = relax.op.logical_not(graph.insert_before(var, value, f"{var.name}#differ", [var]))
        graph.replace(var, value)


class CompareWithLeast(Rule):
    """``x == -2**31`` -> ``~x == 2**31 - 1``, an order turned around: TVM brings a constant of int32 to the
    other side, where this one wraps around, and takes the comparison for false."""

    name = "compare_with_least"
    counted = False
    anchors = ("relax.equal", "relax.not_equal", "relax.less_equal", "relax.greater_equal")

    def match(self, graph: Graph, var: Var) -> int | None:
        args = graph.value(var).args
        least = [n for n, a in enumerate(args) if scalar_of(graph.value(a)) == _LEAST]
        return least[0] if least and all(is_tensor(a) and dtype_of(a) == "int32" for a in args) else None

    def rewrite(self, graph: Graph, var: Var, found: int) -> None:
        args, name = list(graph.value(var).args), graph.op_name(var).removeprefix("relax.")
        turned = relax.op.bitwise_not(args[1 - found])
        constant = array_of(graph.value(args[found]))
        args[1 - found] = graph.insert_before(var, turned, f"{var.name}#turned", [var])
        args[found] = relax.const(~constant, "int32")
        graph.replace(var, getattr(relax.op, _TURNED.get(name, name))(*args))


_LEAST = -(2**31)
_TURNED = {"less_equal": "greater_equal", "greater_equal": "less_equal"}


class ExpandHyperbolic(Rule):
    """``cosh(x)`` -> ``exp(x) / 2 + exp(-x) / 2``, ``sinh`` with a minus: there is no vector form of them."""

    name = "expand_hyperbolic"
    counted = False
    anchors = ("relax.cosh", "relax.sinh")

    def match(self, graph: Graph, var: Var) -> Expr | None:
        return graph.value(var).args[0] if dtype_of(var).startswith("float") else None

    def rewrite(self, graph: Graph, var: Var, found: Expr) -> None:
        combine = relax.op.add if graph.op_name(var) == "relax.cosh" else relax.op.subtract
        bind = graph.binder(var, [var])
        half = relax.const(0.5, dtype_of(var))
        up = bind(relax.op.multiply(bind(relax.op.exp(found), "exp"), half), "up")
        turned = bind(relax.op.negative(found), "turned")
        down = bind(relax.op.multiply(bind(relax.op.exp(turned), "exp"), half), "down")
        graph.replace(var, combine(up, down))


class DifferenceOfEquals(Rule):
    """``x - x`` of floats -> ``x + (-x)``: TVM takes the first for zero, also of infinities."""

    name = "difference_of_equals"
    counted = False
    anchors = ("relax.subtract",)

    def match(self, graph: Graph, var: Var) -> Expr | None:
        a, b = graph.value(var).args
        return a if a.same_as(b) and "float" in dtype_of(var) else None

    def rewrite(self, graph: Graph, var: Var, found: Expr) -> None:
        turned = graph.insert_before(var, relax.op.negative(found), f"{var.name}#turned", [var])
        graph.replace(var, relax.op.add(found, turned))
