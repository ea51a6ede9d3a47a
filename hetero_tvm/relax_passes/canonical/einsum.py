"""Einstein sums become transposes and matrix products, which the fusions know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    """``einsum`` of one operand -> a sum and a transposition; of two -> ``matmul`` between transpositions.

    Letters in both operands and the result are the product's batch, those in both operands alone its
    reduction; what one operand alone has is summed before.  More operands are multiplied two by two, in the
    order that takes the fewest operations.  A product of one row (or column) for each of a batch that lies
    innermost is a sum of products: vectors hold neighbours of the batch there, where a matrix product would
    gather numbers.  Two that share nothing to sum over, repeated letters and ellipses are left alone.
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
        if not arrow or len(terms) != len(fields) or "." in left:
            return None
        extents: dict[str, int] = {}
        for field, term in zip(fields, terms, strict=True):
            for letter, extent in zip(term, shape_of(field), strict=True):
                if extents.setdefault(letter, extent) != extent:
                    return None  # an extent of 1 is broadcast
        if any(len(set(term)) < len(term) for term in (*terms, result)) or set(result) - set(extents):
            return None
        if len(terms) > 2 and not all(isinstance(extent, int) for extent in extents.values()):
            return None
        if len(terms) == 2 and not _summed(terms, result):
            return None
        operands = list(zip(fields, terms, strict=True))
        if len(terms) == 2 and array_of(graph.value(fields[0])) is not None:
            operands.reverse()  # weights to the right
        return _Found(operands, result, extents)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        writer = _Writer(graph, var, found.extents)
        operands = list(found.operands)
        for pair in _path(found)[:-1]:
            chosen = [operands.pop(n) for n in sorted(pair, reverse=True)][::-1]
            seen = {*found.result}.union(*(term for _, term in operands))
            letters = "".join(x for x in dict.fromkeys(chosen[0][1] + chosen[1][1]) if x in seen)
            value = writer.product(chosen, letters)
            operands.append((writer.insert(value, "pair"), letters))
        graph.replace(var, writer.product(operands, found.result))


def _summed(terms: Sequence[str], result: str) -> set[str]:
    """Letters of both of two operands alone."""
    return {*terms[0]} & {*terms[1]} - {*result}


def _path(found: _Found) -> list[tuple[int, ...]]:
    """Places of the operands that are multiplied in each step; products go to the end."""
    if len(found.operands) < 3:
        return [tuple(range(len(found.operands)))]
    nothing = [
        np.broadcast_to(np.float32(0), [found.extents[letter] for letter in term])
        for _, term in found.operands
    ]
    equation = ",".join(term for _, term in found.operands) + "->" + found.result
    path, _ = np.einsum_path(equation, *nothing, optimize="greedy")
    steps = [tuple(step) for step in path[1:]]
    # NumPy multiplies what it finds too small to care for all at once: two by two from the left then.
    return steps if all(len(step) == 2 for step in steps) else [(0, 1)] * (len(found.operands) - 1)


class _Writer:
    """Writes transposes and products in the place of an ``einsum``."""

    def __init__(self, graph: Graph, var: Var, extents: dict[str, int]):
        self._graph, self._var, self._extents = graph, var, extents

    def insert(self, value: Expr, name: str, origins: Sequence[Var] = ()) -> Expr:
        """Bind a value before the ``einsum``."""
        return self._graph.insert_before(self._var, value, f"{self._var.name}#{name}", list(origins))

    def product(self, operands: Sequence[tuple[Expr, str]], result: str) -> Expr:
        """The value with the letters ``result`` of one or two operands."""
        known = [term for _, term in operands]
        operands = [
            self._summed(*operand, {*result}.union(*known[:n], *known[n + 1 :]))
            for n, operand in enumerate(operands)
        ]
        if len(operands) == 1:
            ((x, term),) = operands
            order = [term.index(letter) for letter in result]
            return relax.op.permute_dims(x, order)
        (x, own), (y, others) = operands
        if not _summed([own, others], result):
            return relax.op.einsum((x, y), f"{own},{others}->{result}")
        batch = [letter for letter in result if letter in own and letter in others]
        reduced = [letter for letter in others if letter in own and letter not in result]
        rows = [letter for letter in result if letter in own and letter not in others]
        columns = [letter for letter in result if letter in others and letter not in own]
        if not (rows and columns):
            large, small = ((y, others), (x, own)) if columns else ((x, own), (y, others))
            if large[1][-1] in batch and self._extents[large[1][-1]] > 1:
                return self._sum_of_products(large, small, reduced, result)
        lead = [self._extents[letter] for letter in batch]
        # Without a batch the rows keep their axes, as in a product with a weight.
        heights = [self._extent(rows)] if batch else [self._extents[letter] for letter in rows] or [1]
        depth = self._extent(reduced)
        left = self._moved(x, own, [*batch, *rows, *reduced], [*lead, *heights, depth], "left")
        right = self._moved(
            y, others, [*batch, *reduced, *columns], [*lead, depth, self._extent(columns)], "right"
        )
        product = self.insert(relax.op.matmul(left, right), "product", [self._var])
        letters = [*batch, *rows, *columns]
        order = [letters.index(letter) for letter in result]
        value: Expr = relax.op.reshape(product, [self._extents[letter] for letter in letters])
        if order != sorted(order):
            value = relax.op.permute_dims(self.insert(value, "split"), order)
        return value

    def _sum_of_products(
        self, large: tuple[Expr, str], small: tuple[Expr, str], reduced: Sequence[str], result: str
    ) -> Expr:
        """An operand with all letters by the other, element by element, summed over ``reduced``."""
        (x, own), (y, others) = large, small
        shape = [self._extents[letter] if letter in others else 1 for letter in own]
        y = self._moved(y, others, [letter for letter in own if letter in others], shape, "spread")
        products = self.insert(relax.op.multiply(x, y), "products", [self._var])
        total = self.insert(relax.op.sum(products, [own.index(letter) for letter in reduced]), "sums")
        left = [letter for letter in own if letter not in reduced]
        order = [left.index(letter) for letter in result]
        return relax.op.permute_dims(total, order) if order != sorted(order) else total

    def _extent(self, letters: Sequence[str]) -> int:
        return math.prod(self._extents[letter] for letter in letters)

    def _summed(self, x: Expr, term: str, wanted: set[str]) -> tuple[Expr, str]:
        """An operand without the letters that nothing else has."""
        alone = [n for n, letter in enumerate(term) if letter not in wanted]
        if not alone:
            return x, term
        total = self.insert(relax.op.sum(x, alone), "sum", [self._var])
        return total, "".join(letter for letter in term if letter in wanted)

    def _moved(self, x: Expr, term: str, letters: Sequence[str], shape: list[int], name: str) -> Expr:
        """An operand with its axes in the order of ``letters``, in ``shape``."""
        order = [term.index(letter) for letter in letters]
        if order != sorted(order):
            x = self.insert(relax.op.permute_dims(x, order), name)
        return x if list(shape_of(x)) == shape else self.insert(relax.op.reshape(x, shape), name)
