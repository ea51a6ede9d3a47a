"""Convolutions of 8-bit integers in float32, for targets whose kernels of integers do not serve a shape.

::

    conv2d(int32 x, int32 W)  ->  astype(round(conv2d(astype(x), float32 W)), int32)

Sums of whole numbers below 2**24 are exact in float32.  Weights whose sums may be larger are taken in two
parts, ``16 * high + low``.  (Kernels that transform images round as they do those of floats.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.tvm import Var, relax
from hetero_tvm.relax_passes.fusions.integers.quantized import constant_of
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

_EXACT = 1 << 24
_LARGEST = 255
"""Magnitude of an 8-bit value less its zero point."""
_HIGH = 16


@dataclass
class _Found:
    parts: list[tuple[np.ndarray, int]]
    """Weights, and the factor of their sums."""


class IntegersAsFloats(Rule):
    """A convolution of integers with constant weights, which float32 computes."""

    name = "integers-as-floats"
    anchors = ("relax.nn.conv1d", "relax.nn.conv2d")

    def match(self, graph: Graph, var: Var) -> _Found | None:
        if dtype_of(var) != "int32":
            return None
        weights = constant_of(graph, graph.value(var).args[1])
        if weights is None:
            return None
        weights = weights.astype(np.int64)
        high, low = np.divmod(weights, _HIGH)
        for parts in ([(weights, 1)], [(high, _HIGH), (low, 1)]):
            if all(_sums(part) < _EXACT for part, _ in parts):
                return _Found(parts)
        raise Miss("sums of so many products are not exact in float32")

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        call = graph.value(var)
        attrs = call.attrs
        conv = relax.op.nn.conv1d if call.op.name == "relax.nn.conv1d" else relax.op.nn.conv2d
        add = graph.binder(var, [var])
        x = add(relax.op.astype(call.args[0], "float32"), "float")
        total = None
        for number, (weights, factor) in enumerate(found.parts):
            product = conv(
                x,
                relax.const(weights.astype(np.float32)),
                strides=list(attrs.strides),
                padding=list(attrs.padding),
                dilation=list(attrs.dilation),
                groups=int(attrs.groups),
                data_layout=str(attrs.data_layout),
                kernel_layout=str(attrs.kernel_layout),
            )
            product = relax.op.round(add(product, f"product{number}"))
            whole = relax.op.astype(add(product, f"rounded{number}"), "int32")
            if factor != 1:
                whole = relax.op.multiply(add(whole, f"whole{number}"), relax.const(factor, "int32"))
            total = whole if total is None else relax.op.add(add(total, "high"), add(whole, "low"))
        graph.replace(var, total)


def _sums(weights: np.ndarray) -> int:
    """Bound of the magnitude of a sum."""
    return _LARGEST * int(np.abs(weights).reshape(len(weights), -1).sum(1).max(initial=0))
