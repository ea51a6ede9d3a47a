"""Einstein sums become transposes and matrix products, which the fusions know."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


@dataclass
class _Found:
    """Operands with their letters, and those of the result: ``extents`` by letter."""

    operands: list[tuple[Expr, str]]
    result: str
    extents: dict[str, int]


class ExpandEinsum(Rule):
    """``einsum`` of one operand -> a transposition; of two -> ``matmul`` between transpositions.

    Letters in both operands and the result are the product's batch, those in both operands alone its
    reduction.  Sums over a letter of one operand, repeated letters and ellipses are left alone.
    """

    name = "expand_einsum"
    counted = False
    anchors = ("relax.einsum",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        fields = graph.value(call.args[0])
        fields = list(fields.fields) if isinstance(fields, relax.Tuple) else []
        left, arrow, result = str(call.attrs.subscripts).replace(" ", "").partition("->")
        terms = left.split(",")
        if not arrow or len(terms) != len(fields) or len(fields) not in (1, 2) or "." in left:
            return None
        extents: dict[str, int] = {}
        for field, term in zip(fields, terms, strict=True):
            for letter, extent in zip(term, shape_of(field), strict=True):
                if extents.setdefault(letter, extent) != extent:
                    return None  # an extent of 1 is broadcast
        if any(len(set(term)) < len(term) for term in (*terms, result)):
            return None
        if len(terms) == 1:
            return _Found([(fields[0], terms[0])], result, extents) if set(result) == set(left) else None
        one, other = map(set, terms)
        if (one ^ other) - set(result) or not (one & other) - set(result):
            return None
        operands = list(zip(fields, terms, strict=True))
        if array_of(graph.value(fields[0])) is not None:
            operands.reverse()  # weights to the right
        return _Found(operands, result, extents)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        if len(found.operands) == 1:
            ((x, term),) = found.operands
            graph.replace(var, relax.op.permute_dims(x, [term.index(letter) for letter in found.result]))
            return
        (x, own), (y, others) = found.operands
        batch = [letter for letter in found.result if letter in own and letter in others]
        reduced = [letter for letter in others if letter in own and letter not in found.result]
        rows = [letter for letter in found.result if letter in own and letter not in others]
        columns = [letter for letter in found.result if letter in others and letter not in own]

        def extent(letters: list[str]) -> int:
            return math.prod(found.extents[letter] for letter in letters)

        def moved(expr: Expr, term: str, letters: list[str], shape: list[int], name: str) -> Expr:
            order = [term.index(letter) for letter in letters]
            if order != sorted(order):
                expr = graph.insert_before(var, relax.op.permute_dims(expr, order), f"{var.name}#{name}", [])
            if list(shape_of(expr)) != shape:
                expr = graph.insert_before(var, relax.op.reshape(expr, shape), f"{var.name}#{name}", [])
            return expr

        lead = [found.extents[letter] for letter in batch]
        # Without a batch the rows keep their axes, as in a product with a weight.
        heights = [extent(rows)] if batch else [found.extents[letter] for letter in rows] or [1]
        depth = extent(reduced)
        left = moved(x, own, [*batch, *rows, *reduced], [*lead, *heights, depth], "left")
        right = moved(y, others, [*batch, *reduced, *columns], [*lead, depth, extent(columns)], "right")
        product = graph.insert_before(var, relax.op.matmul(left, right), f"{var.name}#product", [var])
        letters = [*batch, *rows, *columns]
        order = [letters.index(letter) for letter in found.result]
        value: Expr = relax.op.reshape(product, [found.extents[letter] for letter in letters])
        if order != sorted(order):
            split = graph.insert_before(var, value, f"{var.name}#split", [])
            value = relax.op.permute_dims(split, order)
        graph.replace(var, value)
