"""Transposed convolutions of 8-bit numbers as those of their phases, for ``fusions/integers/``."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.forms.conv_transpose import LAYOUTS, Plan, filters_of, interleaved
from hetero_tvm.relax_passes.forms.quantized.following import following
from hetero_tvm.relax_passes.fusions.integers.quantized import constant_of, scalar_value
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class _Found(NamedTuple):
    call: Call
    plan: Plan
    scale: np.ndarray
    """Scales of the weights: of each channel of a group, or one."""
    zero: np.ndarray
    """Zero points of the weights, likewise."""
    dtype: np.dtype
    """Type that the weights are stored in."""
    bias: np.ndarray | None
    chain: list[Var]
    """The convolution, the sum with its bias, relu and quantiser, as far as they follow."""


class QuantConvTransposeAsConv2d(Rule):
    """``conv2d_transpose`` of dequantised tensors, also of one dimension, with bias, relu and quantiser ->
    ``conv2d`` with strides-fold filters and the same behind it, then its phases side by side, as bytes."""

    name = "quantized_conv_transpose"
    counted = False
    anchors = tuple(LAYOUTS)

    def __init__(self, claims: Claims):
        self.claims = claims

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        layouts = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
        if layouts != LAYOUTS[graph.op_name(var)] or 0 in shape_of(var):
            return None
        x, w = (graph.call(arg, "relax.dequantize") for arg in call.args[:2])
        if x is None or w is None or any(scalar_value(graph, arg) is None for arg in x.args[1:]):
            return None
        stored, scale, zero = (constant_of(graph, arg) for arg in w.args)
        if stored is None or scale is None or zero is None or stored.dtype not in (np.int8, np.uint8):
            return None
        if max(scale.size, zero.size) > 1 and int(w.attrs.axis) % stored.ndim != 1:
            return None
        # Taps that a phase lacks are written as 0, which here is the zero point.
        along = zero.reshape(1, -1, *[1] * (stored.ndim - 2)).astype(np.int16)
        plan = Plan.of(call, stored - along, shape_of(var))
        pads = [kind.padding(axis) for (kind,), axis in zip(plan.together, plan.axes, strict=True)]
        if min(map(min, pads)) < 0:
            return None
        chain, bias = following(graph, var)
        return _Found(call, plan, scale.reshape(-1), zero.reshape(-1), stored.dtype, bias, chain)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        call, plan, scale, zero, dtype, bias, chain = found
        top, bind = chain[-1], graph.binder(chain[-1], [var])
        op, kinds = plan.op, [kind for (kind,) in plan.together]
        phases = math.prod(len(kind.phases) for kind in kinds)

        def wide(values: np.ndarray, groups: int) -> np.ndarray:
            """Values of each channel [groups, channels or 1] for each filter of a phase."""
            values = values.reshape(groups, 1, -1)
            return np.broadcast_to(values, (op.groups, phases, op.channels)).reshape(-1)

        x = graph.call(call.args[0], "relax.dequantize")
        source: Expr = x.args[0]
        if plan.flat:
            source = bind(relax.op.reshape(source, plan.image), "image")
        filters = filters_of(plan.weight, op.groups, plan.axes, tuple(kinds))
        scales, zeros = wide(scale, 1).astype(np.float32), wide(zero, 1)
        filters = (filters + zeros.reshape(-1, 1, 1, 1)).astype(dtype)
        (top_pad, bottom), (left, right) = (k.padding(a) for k, a in zip(kinds, plan.axes, strict=True))
        y = bind(
            relax.op.nn.conv2d(
                bind(relax.op.dequantize(source, *x.args[1:], axis=1, out_dtype="float32"), "x"),
                bind(
                    relax.op.dequantize(
                        constant(filters),
                        constant(scales),
                        constant(zeros.astype(dtype)),
                        axis=0,
                        out_dtype="float32",
                    ),
                    "filters",
                ),
                padding=(top_pad, left, bottom, right),
                dilation=tuple(kind.gap for kind in kinds),
                groups=op.groups,
            ),
            "phases",
        )
        if bias is not None:
            values = wide(bias.astype(np.float32), op.groups).reshape(1, -1, 1, 1)
            y = bind(relax.op.add(y, constant(np.ascontiguousarray(values))), "bias")
        for step in chain[1 + (bias is not None) :]:
            value = graph.value(step)
            if value.op.name == "relax.nn.relu":
                y = bind(relax.op.nn.relu(y), "relu")
            else:
                y = bind(relax.op.quantize(y, *value.args[1:], axis=1, out_dtype=dtype_of(step)), "bytes")
        op = dataclasses.replace(op, dtype=dtype_of(top))
        y = interleaved(graph, bind, y, op, op.strides != (1, 1) and self.claims(op))
        graph.replace(top, relax.op.reshape(y, shape_of(top)) if plan.flat else y, chain)
