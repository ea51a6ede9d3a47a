"""ONNX Runtime's fused operators, and two of ONNX's, written out in plain ONNX.

Files that ONNX Runtime optimised hold norms and activations as ``com.microsoft`` operators.  They are
expanded here into the form that exporters write, so that one set of fusion rules serves both, in our
own kernels.  Semantics: ONNX Runtime, docs/ContribOperators.md.

A new operator is one function and one entry in ``EXPANSIONS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.errors import UnsupportedOperatorError

DOMAIN = "com.microsoft"


class Body:
    """Collects the nodes that replace one.

    Parameters
    ----------
    node : the node to replace; new nodes and tensors bear its name.
    opset : of the default domain, which decides what may be used.
    """

    def __init__(self, node: onnx.NodeProto, opset: int):
        self.node, self.opset = node, opset
        self.nodes: list[onnx.NodeProto] = []
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}

    def input(self, index: int) -> str:
        """Name of an input; "" when it is left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def wants(self, index: int) -> str:
        """Name of an output; "" when nobody asks for it."""
        return self.node.output[index] if index < len(self.node.output) else ""

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: object) -> str:
        """A plain node; returns its (first) output, under a name of its own unless given."""
        name = f"{self.node.name}/{kind}_{len(self.nodes)}"
        output = output or f"{name}_output"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=name, **attributes))
        return output

    def const(self, value: object, dtype: str = "float32") -> str:
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def reduce(self, kind: str, x: str, axes: list[int], keepdims: int, axes_as_input: int) -> str:
        """A reduction; from opset ``axes_as_input`` on the operator takes its axes as an input."""
        if self.opset >= axes_as_input:
            return self.op(kind, x, self.const(axes, "int64"), keepdims=keepdims)
        return self.op(kind, x, axes=axes, keepdims=keepdims)

    def mean(self, x: str, axes: tuple[int, ...] = (-1,)) -> str:
        """Over the last axes, which stay."""
        return self.reduce("ReduceMean", x, list(axes), 1, axes_as_input=18)

    def end(self, index: int, value: str) -> None:
        """Give ``value`` the name of an output when somebody asks for that."""
        if self.wants(index):
            self.op("Identity", value, output=self.wants(index))

    def norm(self, x: str, scale: str, shift: str, default_eps: float, *, centered: bool) -> None:
        """Layer or RMS norm of x as output 0."""
        eps = float(self.attributes.get("epsilon", default_eps))
        base = x
        if centered:
            base = self.op("Sub", x, self.mean(x))
        variance = self.mean(self.op("Mul", base, base))
        deviation = self.op("Sqrt", self.op("Add", variance, self.const(eps)))
        y = self.op("Mul", self.op("Div", base, deviation), scale)
        self.end(0, self.op("Add", y, shift) if shift else y)


def _skip_norm(b: Body, *, centered: bool) -> None:
    # input, skip, gamma, [beta,] bias -> output, mean, 1 / deviation, sum
    _refuse_statistics(b, 1, 2)
    total = b.op("Add", b.input(0), b.input(1))
    bias = b.input(4 if centered else 3)
    if bias:
        total = b.op("Add", total, bias)
    b.end(3, total)
    b.norm(total, b.input(2), b.input(3) if centered else "", 1e-12, centered=centered)


def _simplified_norm(b: Body) -> None:
    if int(b.attributes.get("axis", -1)) != -1:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (SimplifiedLayerNormalization) normalises from axis "
            f"{b.attributes['axis']} on; only the last one is supported.",
            hint="Write its axis as -1.",
        )
    _refuse_statistics(b, 1)
    b.norm(b.input(0), b.input(1), "", 1e-5, centered=False)


def _refuse_statistics(b: Body, *outputs: int) -> None:
    """Mean and deviation are for training, and ONNX Runtime's CPU kernels do not give them either."""
    for index in outputs:
        if b.wants(index):
            raise UnsupportedOperatorError(
                f"Node {b.node.name!r} ({b.node.op_type}) gives its statistics as output {b.wants(index)!r}.",
                hint="Remove that output: it is used in training only.",
            )


def _embed_norm(b: Body) -> None:
    # ids, segments, word, position, segment table, gamma, beta, mask, position ids
    # -> output, mask index, sum
    ids, places = b.input(0), b.input(8)
    total = b.op("Gather", b.input(2), ids, axis=0)
    if places:
        position = b.op("Gather", b.input(3), places, axis=0)
    else:
        length = b.op("Gather", b.op("Shape", ids), b.const([1], "int64"), axis=0)
        zero = b.const([0], "int64")
        position = b.op("Slice", b.input(3), zero, length, zero)
    total = b.op("Add", total, position)
    if b.input(1):
        total = b.op("Add", total, b.op("Gather", b.input(4), b.input(1), axis=0))
    b.end(2, total)
    b.norm(total, b.input(5), b.input(6), 1e-12, centered=True)
    if b.wants(1):  # how many tokens are unmasked, by sample; without a mask ONNX Runtime says 0
        mask = b.op("Cast", b.input(7) or ids, to=TensorProto.INT32)
        if not b.input(7):
            mask = b.op("Mul", mask, b.const(0, "int32"))
        b.end(1, b.reduce("ReduceSum", mask, [1], 0, axes_as_input=13))


def _gelu(b: Body) -> None:
    x = b.op("Add", b.input(0), b.input(1)) if b.input(1) else b.input(0)
    curve = b.op("Erf", b.op("Mul", x, b.const(math.sqrt(0.5))))
    b.end(0, b.op("Mul", b.op("Mul", x, b.const(0.5)), b.op("Add", curve, b.const(1.0))))


def _fast_gelu(b: Body) -> None:
    x = b.op("Add", b.input(0), b.input(1)) if b.input(1) else b.input(0)
    cube = b.op("Mul", b.op("Mul", x, x), x)
    inner = b.op("Add", x, b.op("Mul", cube, b.const(0.044715)))
    curve = b.op("Tanh", b.op("Mul", inner, b.const(math.sqrt(2 / math.pi))))
    b.end(0, b.op("Mul", b.op("Mul", x, b.const(0.5)), b.op("Add", curve, b.const(1.0))))


def _quick_gelu(b: Body) -> None:
    slope = float(b.attributes.get("alpha", 1.702))
    x = b.input(0)
    b.end(0, b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, b.const(slope)))))


def _layer_norm(b: Body) -> None:
    """The norm with one result; mean and 1 / deviation, if the node has them, are computed beside it."""
    node, axis = b.node, int(b.attributes.get("axis", -1))
    alone = onnx.NodeProto.FromString(node.SerializeToString())
    b.nodes.append(alone)
    if not any(node.output[1:]) or axis >= 0:  # without the rank the axes are not known
        return
    del alone.output[1:]
    axes = tuple(range(axis, 0))
    x = b.op("Cast", b.input(0), to=TensorProto.FLOAT)
    mean = b.mean(x, axes)
    base = b.op("Sub", x, mean)
    total = b.op("Add", b.mean(b.op("Mul", base, base), axes), b.const(b.attributes.get("epsilon", 1e-5)))
    b.end(1, mean)
    b.end(2, b.op("Reciprocal", b.op("Sqrt", total)))


def _group_norm(b: Body) -> None:
    # As PyTorch exports it, over [N, C, -1]: ONNX infers no type for the operator's result.
    x, groups = b.input(0), int(b.attributes["num_groups"])
    flat = b.op("Reshape", x, b.const([0, 0, -1], "int64"))
    rows = b.op("Reshape", flat, b.const([0, groups, -1], "int64"))
    ones, zeros = b.const(np.ones(groups)), b.const(np.zeros(groups))
    eps = float(b.attributes.get("epsilon", 1e-5))
    y = b.op("Reshape", b.op("InstanceNormalization", rows, ones, zeros, epsilon=eps), b.op("Shape", flat))
    column = b.const([-1, 1], "int64")
    y = b.op("Mul", y, b.op("Reshape", b.input(1), column))
    y = b.op("Add", y, b.op("Reshape", b.input(2), column))
    b.op("Reshape", y, b.op("Shape", x), output=b.wants(0))


EXPANSIONS: dict[tuple[str, str], Callable[[Body], None]] = {
    (DOMAIN, "SkipLayerNormalization"): lambda b: _skip_norm(b, centered=True),
    (DOMAIN, "SkipSimplifiedLayerNormalization"): lambda b: _skip_norm(b, centered=False),
    (DOMAIN, "EmbedLayerNormalization"): _embed_norm,
    (DOMAIN, "Gelu"): _gelu,
    (DOMAIN, "BiasGelu"): _gelu,
    (DOMAIN, "FastGelu"): _fast_gelu,
    (DOMAIN, "QuickGelu"): _quick_gelu,
    # ONNX Runtime keeps this one in the default domain, where the standard does not know it.
    ("", "SimplifiedLayerNormalization"): _simplified_norm,
    (DOMAIN, "SimplifiedLayerNormalization"): _simplified_norm,
    ("", "GroupNormalization"): _group_norm,
    ("", "LayerNormalization"): _layer_norm,
}
"""(domain, operator) -> what writes it out."""


def expand_contrib(model: onnx.ModelProto, opset: int) -> None:
    """Replace every node that has an entry in ``EXPANSIONS`` by plain ones, in place.

    Raises
    ------
    UnsupportedOperatorError : a node uses an option that its expansion does not cover; names the node.
    """
    if not any((node.domain, node.op_type) in EXPANSIONS for node in model.graph.node):
        return
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        expansion = EXPANSIONS.get((node.domain, node.op_type))
        if expansion is None:
            nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
            continue
        body = Body(node, opset)
        expansion(body)
        nodes += body.nodes
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    if not any(node.domain == DOMAIN for node in nodes):
        others = [o for o in model.opset_import if o.domain != DOMAIN]
        kept = [onnx.OperatorSetIdProto.FromString(o.SerializeToString()) for o in others]
        del model.opset_import[:]
        model.opset_import.extend(kept)
