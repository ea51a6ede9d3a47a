"""ONNX Runtime's operators for parallel residual streams and for gates, in plain ONNX.

Language models with hyper-connections and with linear attention have them.  Each computes in float32
and rounds its result.  Semantics: the operators' documentation in ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.body import Body


def _wide(b: Body, index: int) -> str:
    """An input in float32; "" when it is left out."""
    return b.op("Cast", b.input(index), to=TensorProto.FLOAT) if b.input(index) else ""


def _give(b: Body, index: int, y: str) -> None:
    """Round ``y`` to the type of the first input, as an output."""
    if b.wants(index):
        b.op("CastLike", y, b.input(0), output=b.wants(index))


def gated_sum(b: Body) -> None:
    """GatedAdd: the second tensor, times a gate for each row, is added to the first one."""
    if b.input(3):
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (GatedAdd) has a gate_weight, which is for CUDA and not supported.",
            hint="Take the file that this one was made from, or one for CPUs.",
        )
    b.end(0, b.op("Add", b.input(0), b.op("Mul", b.input(1), b.input(2))))


def _extents(b: Body) -> tuple[str, str, str]:
    """Extents of the axes before the streams, number of streams, and their width."""
    shape, count = b.op("Shape", b.input(0)), int(b.attributes.get("num_branches", 0))
    if count:
        width = b.op("Div", b.cut(shape, 0, -1, np.iinfo(np.int64).max), b.const([count], "int64"))
        return b.cut(shape, 0, 0, -1), b.const([count], "int64"), width
    return b.cut(shape, 0, 0, -2), b.cut(shape, 0, -2, -1), b.cut(shape, 0, -1, np.iinfo(np.int64).max)


def _grouped(b: Body, x: str, front: str, count: str, width: str) -> str:
    """Streams as [..., C, H]."""
    if not int(b.attributes.get("num_branches", 0)):
        return x
    return b.op("Reshape", x, b.op("Concat", front, count, width, axis=0))


def _gates(b: Body, gates: str, front: str, count: str) -> str:
    """Gates [..., C], [..., C, 1], [..., C, H] or [..., C * H] as [..., C, 1 or H]."""
    return b.op("Reshape", gates, b.op("Concat", front, count, b.const([-1], "int64"), axis=0))


def reduced_streams(b: Body) -> None:
    """HyperConnectionPreMix: the weighted sum of the streams."""
    front, count, width = _extents(b)
    x = _grouped(b, _wide(b, 0), front, count, width)
    product = b.op("Mul", x, _gates(b, _wide(b, 1), front, count))
    total = b.reduce("ReduceSum", product, [-2], 0, axes_as_input=13)
    factor = float(b.attributes.get("reduction_scale", 1.0))
    _give(b, 0, total if factor == 1.0 else b.op("Mul", total, b.const(factor)))


def mixed_streams(b: Body) -> None:
    """HyperConnectionPostMix: the streams, mixed by a matrix, and a block's result times a gate for each."""
    front, count, width = _extents(b)
    x = _grouped(b, _wide(b, 0), front, count, width)
    if b.input(3):
        x = b.op("Einsum", _wide(b, 3), x, equation="...ck,...ch->...kh")
    row = b.op("Reshape", _wide(b, 1), b.op("Concat", front, b.const([1], "int64"), width, axis=0))
    y = b.op("Add", x, b.op("Mul", _gates(b, _wide(b, 2), front, count), row))
    _give(b, 0, b.op("Reshape", y, b.op("Shape", b.input(0))))


def stream_norm(b: Body) -> None:
    """BranchwiseRMSNorm: the RMS norm of each stream."""
    front, count, width = _extents(b)
    x = _grouped(b, _wide(b, 0), front, count, width)
    y = _rms_norm(b, x, "")
    if b.input(1):
        table = b.op("Concat", b.const([-1], "int64"), width, axis=0)
        y = b.op("Mul", y, b.op("Reshape", _wide(b, 1), table))
    _give(b, 0, b.op("Reshape", y, b.op("Shape", b.input(0))))


def _rms_norm(b: Body, x: str, scale: str) -> str:
    y = b.rms_norm(x, float(b.attributes.get("epsilon", 1e-5)))
    return b.op("Mul", y, scale) if scale else y


def scaled_silu(b: Body) -> None:
    """ScaledSiLU: SiLU of a multiple, each step of which is rounded."""
    factor = b.input(1)
    if not factor:
        factor = b.op("CastLike", b.const(float(b.attributes.get("alpha", 1.0))), b.input(0))
    z = b.op("Mul", b.input(0), b.op("CastLike", factor, b.input(0)))
    b.end(0, b.op("Mul", z, b.op("Sigmoid", z)))


def delta_gates(b: Body) -> None:
    """LinearAttentionGate: decay and update rate of the gated delta rule."""
    curve = b.op("Softplus", b.op("Add", _wide(b, 0), _wide(b, 1)))
    _give(b, 0, b.op("Mul", curve, _wide(b, 2)))
    if b.wants(1):
        _give(b, 1, b.op("Sigmoid", _wide(b, 3)))


def engram_gate(b: Body) -> None:
    """EngramGate: a value, gated for each stream by the product of a key and a query, and its norm."""
    width = b.shape(b.input(0))
    if width is None or width[-1] is None:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (EngramGate) has keys of unknown size.",
            hint="State the shape of its first input in the file (value_info).",
        )
    key, query = (_rms_norm(b, _wide(b, n), _wide(b, n + 3)) for n in range(2))
    dot = b.reduce("ReduceSum", b.op("Mul", key, query), [-1], 1, axes_as_input=13)
    dot = b.op("Mul", dot, b.const(1 / math.sqrt(int(width[-1]))))
    size = b.op("Sqrt", b.op("Max", b.op("Abs", dot), b.const(1e-6)))
    gate = b.op("Sigmoid", b.op("Mul", b.op("Sign", dot), size))
    value = b.op("Unsqueeze", _wide(b, 2), b.const([2], "int64"))
    y = b.op("Mul", gate, value)
    _give(b, 0, y)
    if b.wants(1):
        _give(b, 1, _rms_norm(b, y, _wide(b, 5)))


EXPANSIONS: dict[str, Callable[[Body], None]] = {
    "GatedAdd": gated_sum,
    "HyperConnectionPreMix": reduced_streams,
    "HyperConnectionPostMix": mixed_streams,
    "BranchwiseRMSNorm": stream_norm,
    "ScaledSiLU": scaled_silu,
    "LinearAttentionGate": delta_gates,
    "EngramGate": engram_gate,
}
"""Operator -> function that writes it out."""
