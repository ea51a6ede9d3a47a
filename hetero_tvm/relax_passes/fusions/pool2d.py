"""Pooling as one fused operator, for targets that have a kernel of their own for it."""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.ops.pool2d import AVERAGE, MAX, Pool2d
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, is_image, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_NO_PADDING = (0, 0, 0, 0)
_IMAGES = ("float32", "int8", "uint8")
"""Types of images; of integers only the largest is taken."""


class FusePool2d(Rule):
    """Maximum and average pooling, also global, in plain NCHW.

    ``claims`` tells which of them the target has a kernel for, all of float32 unless given; the others stay
    as they are.
    """

    name = "pool"
    counted = False
    anchors = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d", "relax.mean")

    def __init__(self, claims: Claims | None = None):
        self.claims = claims or (lambda op: op.dtype == "float32")

    def match(self, graph: Graph, var: Var) -> tuple[Pool2d, Expr] | None:
        found = pool_of(graph, var)
        return found if found is not None and self.claims(found[0]) else None

    def rewrite(self, graph: Graph, var: Var, found: tuple[Pool2d, Expr]) -> None:
        op, x = found
        graph.replace(var, graph.call_function(op.workload(), op.label, [x], var))


def pool_of(graph: Graph, var: Var) -> tuple[Pool2d, Expr] | None:
    """Pooling that ``var`` computes, and its image; None for anything else."""
    call = graph.call(
        var, "relax.nn.max_pool2d", "relax.nn.avg_pool2d", "relax.nn.adaptive_avg_pool2d", "relax.mean"
    )
    if call is None or not is_image(graph, call.args[0], _IMAGES):
        return None
    x, attrs = call.args[0], call.attrs
    image, out = shape_of(x), shape_of(var)[2:]
    if call.op.name in ("relax.mean", "relax.nn.adaptive_avg_pool2d"):
        if call.op.name == "relax.mean":
            axes = sorted(int(a) % 4 for a in attrs.axis) if attrs.axis is not None else []
            whole = axes == [2, 3] and bool(attrs.keepdims)
        else:
            whole = out == (1, 1) and str(attrs.layout) == "NCHW"
        whole = whole and dtype_of(x) == "float32"
        return (Pool2d(*image, image[2:], (1, 1), _NO_PADDING, (1, 1), AVERAGE), x) if whole else None
    if str(attrs.layout) != "NCHW" or [int(d) for d in attrs.dilation] != [1, 1]:
        return None
    kernel, strides, padding = (
        tuple(int(v) for v in getattr(attrs, name)) for name in ("pool_size", "strides", "padding")
    )
    mode, dtype = MAX if call.op.name == "relax.nn.max_pool2d" else AVERAGE, dtype_of(x)
    if mode != MAX and dtype != "float32":
        return None
    counted = mode == AVERAGE and bool(attrs.count_include_pad)
    return Pool2d(*image, kernel, strides, padding, out, mode, counted, dtype=dtype), x
