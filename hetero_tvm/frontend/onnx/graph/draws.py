"""Random numbers of ONNX nodes, drawn when a model is imported: every call of a library has the same ones.

RandomUniform, RandomNormal, and those like another tensor (the noise of a speech synthesiser, of a sampler of
images) have a seed, their own or one made of the name of their result.  A number depends on the seed and on
its place alone, not on the extents: at a smaller size there are the first numbers of a larger one, so that a
library for many lengths has one table.  They are not those of ONNX Runtime, which go on from call to call:
noise may be shared, decisions (what is dropped, which word comes next) may not, and are refused.

Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators* (the mixing function), 2014.
"""

from __future__ import annotations

import hashlib
import struct
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from hetero_tvm.errors import shortened
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS
from hetero_tvm.frontend.onnx.graph.nodes import all_nodes, nodes_of_model, refusal
from hetero_tvm.host.special import normal_quantile

LIKE = frozenset({"RandomNormalLike", "RandomUniformLike"})
"""Operators whose result has the shape of their operand."""
_DRAWS = LIKE | {"RandomNormal", "RandomUniform"}

_CHOOSE = frozenset({"ArgMax", "ArgMin", "TopK"})
_DECIDE = _CHOOSE | {"Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
"""Operators that decide by the numbers that they read."""
_PASSING = frozenset(
    "Abs Add Cast Clip Div Exp Expand Flatten Identity Log LogSoftmax Max Min Mul Neg Pow Reciprocal Reshape "
    "Sigmoid Softmax Sqrt Squeeze Sub Sum Tanh Transpose Unsqueeze Where".split()
)
"""Operators of single elements, behind which a choice is by the same numbers (the noise of Gumbel)."""

_STEP, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def draws(node: onnx.NodeProto) -> bool:
    """Whether a node draws numbers."""
    return node.op_type in _DRAWS and node.domain in ONNX_DOMAINS


def drawn(node: onnx.NodeProto, like: tuple[int, Sequence[int]] | None = None) -> np.ndarray | None:
    """Numbers of a node; None where their type is no float or not known.

    ``like`` is the element type and the shape of a node's operand.
    """
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    element = attributes.get("dtype", like[0] if like else TensorProto.FLOAT)
    shape = like[1] if like else attributes.get("shape")
    if element not in _FLOATS or shape is None:
        return None
    with np.errstate(over="ignore"):  # products of 64 bits
        part = _parts(_seed(node, attributes.get("seed")), shape)
    if node.op_type.startswith("RandomNormal"):
        values = attributes.get("mean", 0.0) + attributes.get("scale", 1.0) * normal_quantile(part)
    else:
        low, high = attributes.get("low", 0.0), attributes.get("high", 1.0)
        values = low + (high - low) * part
    return values.astype(helper.tensor_dtype_to_np_dtype(element))


def deciding(graph: onnx.GraphProto) -> dict[str, str]:
    """Tensors by which an operator of the graph decides, and which; its nodes are in order."""
    found: dict[str, str] = {}
    for node in reversed(graph.node):
        if node.op_type in _DECIDE:
            found.update(dict.fromkeys(node.input, node.op_type))
        elif node.op_type in _PASSING and found.get(node.output[0]) in _CHOOSE:
            found.update(dict.fromkeys(node.input, found[node.output[0]]))
    return found


def refuse_decisions(node: onnx.NodeProto, deciding: Mapping[str, str]) -> None:
    """Refuse a node by whose numbers an operator decides; see :func:`deciding`."""
    if reader := deciding.get(node.output[0]):
        what = f"random numbers by which {reader} decides, the same way in every call of a library"
        raise refusal(node, what, "Take the numbers, or what they decide, as an input of the model.")


def refuse_undrawn(graph: onnx.GraphProto) -> None:
    """Refuse nodes whose numbers could not be drawn."""
    for node in all_nodes(graph):
        if draws(node):
            what = "random numbers in a branch or loop, of no float type, of an unknown shape or above 64 MiB"
            raise refusal(node, what, "Take the numbers as an input of the model.")


def warn_of_draws(proto: onnx.ModelProto) -> None:
    """Say which nodes of a file draw numbers that all calls of its library share."""
    nodes = [node for node in nodes_of_model(proto) if draws(node)]
    if nodes:
        names = ", ".join(shortened([f"{n.name or n.output[0]!r} ({n.op_type})" for n in nodes], 3))
        text = f"random numbers are drawn once, when the model is imported; all calls have the same: {names}"
        warnings.warn(text, stacklevel=3)


def _seed(node: onnx.NodeProto, seed: float | None) -> int:
    """Bits of the seed that the file gives; else of the name of the result."""
    if seed is not None:
        return struct.unpack("<I", struct.pack("<f", seed))[0]
    return int.from_bytes(hashlib.sha256(node.output[0].encode()).digest()[:8], "little")


def _parts(seed: int, shape: Sequence[int]) -> np.ndarray:
    """Numbers between 0 and 1, float64, neither of them among them."""
    bits = _mixed(np.full((1,) * len(shape), seed, np.uint64))
    for axis, extent in enumerate(shape):
        places = np.arange(extent, dtype=np.uint64).reshape(-1, *[1] * (len(shape) - 1 - axis))
        bits = _mixed(bits + _STEP * (places + np.uint64(1)))
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _mixed(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
