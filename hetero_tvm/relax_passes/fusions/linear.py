"""Products with a constant weight and their bias, for rules that merge several of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.relax_passes.fusions.epilogue import other_operand
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, shape_of
from hetero_tvm.relax_passes.rewriting.views import order_of


@dataclass
class Linear:
    """``x @ weight + bias``: x with its rows in any shape, weight [K, N], bias [N] or None.

    ``absorbed`` are its bindings from ``expr`` down to the product.
    """

    x: Expr
    weight: np.ndarray
    bias: np.ndarray | None
    absorbed: list[Var]


def linear_of(graph: Graph, expr: Expr) -> Linear | None:
    """The product that ``expr`` is, through a bias and reshapes that keep rows whole; else None."""
    bias, absorbed = None, []
    while True:
        absorbed += [expr, *_rows(graph, expr)]
        expr = absorbed[-1]
        addition = graph.call(expr, "relax.add")
        if addition is None:
            break
        if not shape_of(expr):
            return None
        arrays = [array_of(graph.value(arg)) for arg in addition.args]
        constant = next((a for a in arrays if a is not None), None)
        n = shape_of(expr)[-1]
        if bias is not None or constant is None or constant.size != n or (n > 1 and constant.shape[-1] != n):
            return None
        bias = constant.reshape(n)
        expr = other_operand(graph, expr, addition.args[0 if arrays[0] is not None else 1])
    product = graph.call(expr, "relax.matmul")
    weight = constant_matrix(graph, product.args[1]) if product is not None else None
    if weight is None or weight.dtype != np.float32 or len(shape_of(product.args[0])) < 2:
        return None
    x = [product.args[0], *_rows(graph, product.args[0])][-1]
    return Linear(x, weight, bias, absorbed)


def constant_matrix(graph: Graph, expr: Expr) -> np.ndarray | None:
    """A constant [K, N] operand, also behind a transpose."""
    value = graph.value(expr)
    array = array_of(value)
    if array is None and (permuted := graph.call(expr, "relax.permute_dims")) is not None:
        array = array_of(graph.value(permuted.args[0]))
        if array is not None:
            array = np.ascontiguousarray(array.transpose(order_of(permuted)))
    return array if array is not None and array.ndim == 2 else None


def _rows(graph: Graph, expr: Expr) -> list[Expr]:
    """Tensors of which ``expr`` is a reshape, nearest first, as long as the last axis stays."""
    found: list[Expr] = []
    while (call := graph.call(expr, "relax.reshape")) is not None:
        if not shape_of(expr) or shape_of(call.args[0])[-1:] != shape_of(expr)[-1:]:
            break
        expr = call.args[0]
        found.append(expr)
    return found


def constant_of(graph: Graph, expr: Expr) -> np.ndarray | None:
    """The value of a constant, also behind a reshape (importers reshape the bias)."""
    reshape = graph.call(expr, "relax.reshape")
    if reshape is None:
        return array_of(graph.value(expr))
    array = array_of(graph.value(reshape.args[0]))
    return array.reshape(shape_of(expr)) if array is not None else None
