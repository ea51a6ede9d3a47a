"""Row operators over the last axis (layer and RMS norm, softmax) -> fused operators."""

from __future__ import annotations

from typing import Any

from hetero_tvm.ops.normalization import Normalize
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.relax_passes.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rule import Miss, Rule


class ClaimNorm(Rule):
    """``relax.nn.layer_norm`` and ``relax.nn.rms_norm`` over the last axis -> ``ops.Normalize``."""

    name = "norm_kernel"
    counted = False
    anchors = ("relax.nn.layer_norm", "relax.nn.rms_norm")

    def match(self, graph: Graph, var: Any) -> Any | None:
        call = graph.value(var)
        x, scale, *shift = call.args
        shape = shape_of(x)
        if dtype_of(x) != "float32":
            raise Miss(f"dtype is {dtype_of(x)}, expected float32")
        if [int(axis) % len(shape) for axis in call.attrs.axes] != [len(shape) - 1]:
            raise Miss(f"axes are {[int(a) for a in call.attrs.axes]}, expected the last")
        vectors = [scale, *shift]
        if any(shape_of(v) != (shape[-1],) for v in vectors):
            raise Miss("scale and shift are not vectors of the last axis")
        centered = call.op.name == "relax.nn.layer_norm"
        op = Normalize(shape[:-1], shape[-1], float(call.attrs.epsilon), centered, bool(shift))
        return op, [x, *vectors]

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        op, operands = found
        graph.replace(var, graph.call_function(op.workload(), op.label, operands, var))


class ClaimSoftmax(Rule):
    """``relax.nn.softmax`` over the last axis -> ``ops.Softmax``."""

    name = "softmax_kernel"
    counted = False
    anchors = ("relax.nn.softmax",)

    def match(self, graph: Graph, var: Any) -> Any | None:
        call = graph.value(var)
        shape = shape_of(call.args[0])
        if int(call.attrs.axis) % len(shape) != len(shape) - 1:
            raise Miss(f"axis {int(call.attrs.axis)} of {len(shape)}, expected the last")
        if dtype_of(var) != "float32":
            raise Miss(f"dtype is {dtype_of(var)}, expected float32")
        return Softmax(shape[:-1], shape[-1]), [call.args[0]]

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        op, operands = found
        graph.replace(var, graph.call_function(op.workload(), op.label, operands, var))
