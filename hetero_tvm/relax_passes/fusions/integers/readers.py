"""Readers of dequantised tensors that no quantiser follows: they read the bytes."""

from __future__ import annotations

import math

import numpy as np

from hetero_tvm.host.tvm import Call, Var, relax, tvm
from hetero_tvm.ops.integers.quantized import OFFSET
from hetero_tvm.relax_passes.fusions.integers.moves import parameters_of
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_MOST_TERMS = 1 << 23
"""Bytes whose sum fits int32 for certain."""


class MeanOfBytes(Rule):
    """``mean(dequantize(x))`` -> the sum of the bytes, scaled once: exact, and floats are never read.

    ``alone``: whether means that are part of a norm stay, for sizes of which some have too many terms.
    """

    name = "mean_of_bytes"
    counted = False
    anchors = ("relax.mean",)

    def __init__(self, alone: bool = False):
        self._alone = alone

    def match(self, graph: Graph, var: Var) -> tuple[Call, int] | None:
        call = graph.call(graph.value(var).args[0], "relax.dequantize")
        if call is None or parameters_of(graph, call) is None or dtype_of(call.args[0]) not in OFFSET:
            return None
        if self._alone and graph.only_user(graph.value(var).args[0]) is None:
            return None
        terms = math.prod(shape_of(call.args[0])) // max(1, math.prod(shape_of(var)))
        return (call, terms) if 0 < terms < _MOST_TERMS else None

    def rewrite(self, graph: Graph, var: Var, found: tuple[Call, int]) -> None:
        (call, terms), attrs = found, graph.value(var).attrs
        _, scale, zero = parameters_of(graph, call)
        bind = graph.binder(var, [var])
        whole = bind(relax.op.astype(call.args[0], "int32"), "whole")
        total = bind(relax.op.sum(whole, attrs.axis, bool(attrs.keepdims)), "total")
        offset = relax.const(np.int32(terms * int(zero)))
        centred = bind(relax.op.subtract(total, offset), "centred")
        steps = bind(relax.op.astype(centred, "float32"), "steps")
        # The count alone is a number, which other sizes of the model have another one for.
        average = bind(relax.op.multiply(steps, relax.const(np.float32(1.0 / terms))), "average")
        graph.replace(var, relax.op.multiply(average, relax.const(np.float32(scale))))


class DequantizeForEach(Rule):
    """A dequantised tensor with several readers -> one of each reader's own.

    A reader that is fused with its dequantiser reads a quarter of the bytes, and nothing is written at all.
    """

    name = "dequantize_for_each"
    counted = False
    anchors = ("relax.dequantize",)

    def match(self, graph: Graph, var: Var) -> list[Var] | None:
        if array_of(graph.value(graph.value(var).args[0])) is not None:
            return None
        users = list(dict.fromkeys(graph.users(var)))
        calls = [user for user in users if user is not None and isinstance(graph.value(user), tvm.ir.Call)]
        reading = [user for user in calls if any(var.same_as(arg) for arg in graph.value(user).args)]
        return reading[: len(users) - 1] or None

    def rewrite(self, graph: Graph, var: Var, found: list[Var]) -> None:
        for user in found:
            mine = graph.insert_before(user, graph.value(var), f"{var.name}#own", [var])
            call = graph.value(user)
            args = [mine if var.same_as(arg) else arg for arg in call.args]
            graph.replace(user, tvm.ir.Call(call.op, args, call.attrs))
