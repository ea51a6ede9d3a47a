"""Quantisers without a division, exact all the same."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Expr, Var, relax, te, tirx
from hetero_tvm.ops.integers.quantized import OFFSET
from hetero_tvm.relax_passes.fusions.integers.moves import parameters_of
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_SCALES = (1e-30, 1e30)
"""Steps whose reciprocals and remainders are normal numbers."""
_MOST_STEPS = 32
"""Bindings before a quantiser that are looked at."""
_NAME = "quantize"


class _Found(NamedTuple):
    x: Expr
    scale: np.float32
    zero: int
    dtype: str


class QuantizeByReciprocal(Rule):
    """``quantize(x, scale, zero)`` with one step for all -> products, for a CPU that has fused ones.

    A vector division takes as long as 16 products.  With y the rounded reciprocal of the scale,

        q = x * y;  remainder = x - q * scale (exact, fused);  q + remainder * y

    is the quotient, correctly rounded (Markstein, "Computation of elementary functions on the IBM RISC
    System/6000 processor", 1990), so no value rounds to another step.  Bounds come first: what lies outside
    of them is no large number that overflows, and nothing is left to bound behind the rounding.
    """

    name = "quantize_by_reciprocal"
    counted = False
    anchors = ("relax.quantize",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        steps = parameters_of(graph, call)
        if dtype_of(var) not in OFFSET or dtype_of(call.args[0]) != "float32" or steps is None:
            return None
        dtype, scale, zero = steps
        if not _SCALES[0] < scale < _SCALES[1] or _is_chained(graph, call.args[0]):
            return None
        return _Found(call.args[0], np.float32(scale), int(zero), dtype)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        shape = [tirx.const(extent, "int64") for extent in shape_of(var)]  # as Relax's own kernels count
        x = te.placeholder(shape, "float32", "x")
        y = te.compute(x.shape, lambda *index: _quantized(x(*index), found), "quantized")
        function = te.create_prim_func([x, y]).without_attr("global_symbol").with_attr("tirx.noalias", True)
        graph.replace(var, graph.call_function(function, _NAME, [found.x], var))


def _is_chained(graph: Graph, x: Expr) -> bool:
    """Whether a value comes from another quantiser, by elementwise steps: both are one kernel then, in which
    this form would write out twelve times what the first one is."""
    waiting, seen = [x], 0
    while waiting and seen < _MOST_STEPS:
        var, seen = waiting.pop(), seen + 1
        name, call = graph.op_name(var), graph.value(var)
        if name == "relax.quantize" or (
            name == "relax.call_tir" and call.args[0].name_hint.startswith(_NAME)
        ):
            return True
        if name is not None and name != "relax.call_tir":
            waiting += [arg for arg in call.args if isinstance(arg, relax.Var)]
    return False


def _quantized(x: Expr, found: _Found) -> Expr:
    limits, scale = np.iinfo(found.dtype), found.scale
    low, high = (_float(np.float32(end - found.zero) * scale) for end in (limits.min, limits.max))
    x = tirx.Select(x < high, x, high)  # also of NaN
    x = tirx.Select(x > low, x, low)
    step, reciprocal = _float(scale), _float(np.float32(1) / scale)
    quotient = x * reciprocal
    remainder = _fused(-quotient, step, x)
    whole = tirx.round(_fused(remainder, reciprocal, quotient)).astype("int32")
    return (whole + tirx.const(found.zero, "int32")).astype(found.dtype)


def _fused(a: Expr, b: Expr, c: Expr) -> Expr:
    """``a * b + c``, rounded once."""
    return tirx.call_intrin("float32", "tirx.fma", a, b, c)


def _float(value: np.float32) -> Expr:
    return tirx.const(float(value), "float32")
