"""ONNX Runtime's fused operators, and two norms of ONNX's, written out in plain ONNX.

Files that ONNX Runtime optimised hold norms and activations as ``com.microsoft`` operators.  They are
expanded here into the form that exporters write, so that one set of fusion rules serves both, in our
own kernels.  Semantics: ONNX Runtime, docs/ContribOperators.md.

A new operator is one function and one entry in ``EXPANSIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend.onnx import contrib_layers as layers
from hetero_tvm.frontend.onnx.bodies import learning, retired
from hetero_tvm.frontend.onnx.bodies.contrib import attention, experts, quantized, regions, streams
from hetero_tvm.frontend.onnx.bodies.contrib import layers as device_layers
from hetero_tvm.frontend.onnx.bodies.contrib.attributes import refuse_unknown
from hetero_tvm.frontend.onnx.bodies.contrib.linear_attention import linear_attention
from hetero_tvm.frontend.onnx.definitions import with_constants
from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool, subgraphs, tensor_type, to_array
from hetero_tvm.frontend.onnx.graph.nodes import all_nodes, named, set_nodes
from hetero_tvm.frontend.onnx.operands.fused import refuse_other_shapes

DOMAIN = "com.microsoft"


def _skip_norm(b: Body, *, centered: bool) -> None:
    """SkipLayerNormalization, or its RMS form."""
    # input, skip, gamma, [beta,] bias -> output, mean, 1 / deviation, sum
    _refuse_statistics(b, 1, 2)
    total = b.op("Add", b.input(0), b.input(1))
    bias = b.input(4 if centered else 3)
    if bias:
        total = b.op("Add", total, bias)
    b.end(3, total)
    b.norm(total, b.input(2), b.input(3) if centered else "", 1e-12, centered=centered)


def _simplified_norm(b: Body) -> None:
    """RMS norm over the last axis."""
    if int(b.attributes.get("axis", -1)) != -1:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (SimplifiedLayerNormalization) normalises from axis "
            f"{b.attributes['axis']} on; only the last one is supported.",
            hint="Write its axis as -1.",
        )
    _refuse_statistics(b, 1)
    b.norm(b.input(0), b.input(1), "", 1e-5, centered=False)


def _refuse_statistics(b: Body, *outputs: int) -> None:
    """Refuse to give mean and deviation: they are for training, ONNX Runtime on a CPU lacks them too."""
    for index in outputs:
        if b.wants(index):
            raise UnsupportedOperatorError(
                f"Node {b.node.name!r} ({b.node.op_type}) gives its statistics as output {b.wants(index)!r}.",
                hint="Remove that output: it is used in training only.",
            )


def _embed_norm(b: Body) -> None:
    """EmbedLayerNormalization: up to three lookups, added and normalised."""
    # ids, segments, word, position, segment table, gamma, beta, mask, position ids
    # -> output, mask index, sum
    _embedded(b, lambda x, index: x, b.input(8))


def _quantized_embed_norm(b: Body) -> None:
    """QEmbedLayerNormalization: its tables, gamma and beta are bytes, with a scale and a zero point each."""
    # as above up to the mask, then five scales and five zero points

    def floats(x: str, index: int) -> str:
        scale, zero = (b.op("Reshape", b.input(index + n), b.const([], "int64")) for n in (6, 11))
        return b.op("DequantizeLinear", x, scale, zero)

    _embedded(b, floats, "")


def _embedded(b: Body, floats: Callable[[str, int], str], places: str) -> None:
    """Write lookups, their sum and its norm; ``floats`` makes numbers of what the input of an index holds."""
    ids = b.input(0)
    if places:
        position = b.row(b.input(3), places)
    else:
        length = b.op("Gather", b.op("Shape", ids), b.const([1], "int64"), axis=0)
        zero = b.const([0], "int64")
        position = b.op("Slice", b.input(3), zero, length, zero)
    total = b.op("Add", floats(b.row(b.input(2), ids), 2), floats(position, 3))
    if b.input(1):
        total = b.op("Add", total, floats(b.row(b.input(4), b.input(1)), 4))
    b.end(2, total)
    b.norm(total, floats(b.input(5), 5), floats(b.input(6), 6), 1e-12, centered=True)
    if b.wants(1):  # how many tokens are unmasked, by sample; without a mask ONNX Runtime says 0
        mask = b.op("Cast", b.input(7) or ids, to=TensorProto.INT32)
        if not b.input(7):
            mask = b.op("Mul", mask, b.const(0, "int32"))
        b.end(1, b.reduce("ReduceSum", mask, [1], 0, axes_as_input=13))


def _gelu(b: Body) -> None:
    """Gelu and BiasGelu, by the error function."""
    x = b.op("Add", b.input(0), b.input(1)) if b.input(1) else b.input(0)
    b.end(0, device_layers.gelu(b, x))


def _fast_gelu(b: Body) -> None:
    """FastGelu, by tanh, with or without a bias."""
    x = b.op("Add", b.input(0), b.input(1)) if b.input(1) else b.input(0)
    b.end(0, device_layers.fast_gelu(b, x))


def _quick_gelu(b: Body) -> None:
    """QuickGelu, by a sigmoid."""
    slope = float(b.attributes.get("alpha", 1.702))
    x = b.input(0)
    b.end(0, b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, b.const(slope)))))


def _layer_norm(b: Body) -> None:
    """Leave the norm one result; mean and 1 / deviation, if the node has them, are computed beside it.

    ONNX Runtime writes the operator into files of opsets from before 17 too, where ONNX does not know it.
    """
    node, axis = b.node, int(b.attributes.get("axis", -1))
    rank = b.rank(b.input(0), 0)
    axis = axis - rank if axis >= 0 and rank else axis
    if b.opset < 17 and axis == -1:
        b.norm(b.input(0), b.input(1), b.input(2), 1e-5, centered=True)
    else:
        alone = onnx.NodeProto.FromString(node.SerializeToString())
        b.nodes.append(alone)
        if not any(node.output[1:]) or axis >= 0:  # without the rank the axes are not known
            return
        del alone.output[1:]
    if not any(node.output[1:]):
        return
    axes = tuple(range(axis, 0))
    x = b.op("Cast", b.input(0), to=TensorProto.FLOAT)
    mean = b.mean(x, axes)
    base = b.op("Sub", x, mean)
    total = b.op("Add", b.mean(b.op("Mul", base, base), axes), b.const(b.attributes.get("epsilon", 1e-5)))
    b.end(1, mean)
    b.end(2, b.op("Reciprocal", b.op("Sqrt", total)))


def _group_norm(b: Body) -> None:
    """GroupNormalization as PyTorch exports it, over [N, C, -1]: ONNX infers no type for the operator.

    Before opset 21 scale and bias are those of groups.
    """
    x, groups = b.input(0), int(b.attributes["num_groups"])
    shape = b.shape(x)
    if shape is not None and 0 in shape:  # which no normalisation is left of, nor a rest for -1
        b.op("Identity", x, output=b.wants(0))
        return
    if shape is not None and len(shape) > 1 and shape[1] is not None and shape[1] % groups:
        raise ModelError(
            f"Node {b.node.name!r} (GroupNormalization) has {groups} groups of {shape[1]} channels.",
            hint="Check the program that wrote the file.",
        )
    eps = float(b.attributes.get("epsilon", 1e-5))
    if b.opset < 21 and b.shape(b.input(1)) in (None, (groups,)):
        flat = b.op("Reshape", x, b.const([0, 0, -1], "int64"))
        rows = b.op("Reshape", flat, b.const([0, groups, -1], "int64"))
        y = b.op("InstanceNormalization", rows, b.input(1), b.input(2), epsilon=eps)
        b.op("Reshape", y, b.op("Shape", x), output=b.wants(0))
        return
    b.end(0, device_layers.normalized_groups(b, x, b.input(1), b.input(2), groups, eps))


def _max_unpool(b: Body) -> None:
    """MaxUnpool, whose places do not count from the end."""
    inputs = [b.input(n) for n in range(len(b.node.input))]
    b.op("MaxUnpool", *inputs, output=b.wants(0), **b.attributes)
    b.count_from_0()


def _fused_matmul(b: Body) -> None:
    """FusedMatMul: a product with turned operands and a factor.

    An operand of unknown rank is turned by an Einsum, until :func:`_turn_operands` knows better.
    """
    operands = []
    for index, side in enumerate("AB"):
        x, shape = b.input(index), b.shape(b.input(index))
        turn, batch = (bool(b.attributes.get(f"trans{part}{side}", 0)) for part in ("", "Batch"))
        if turn or batch:
            equation = _TURNS[turn, batch]
            if shape is None:
                x = b.op("Einsum", x, equation=equation)
            else:
                x = b.op("Transpose", x, perm=_turned(equation, len(shape)))
        operands.append(x)
    y, factor = b.op("MatMul", *operands), float(b.attributes.get("alpha", 1.0))
    b.end(0, y if factor == 1.0 else b.op("Mul", y, b.const(factor)))


_TURNS = {(True, False): "...ij->...ji", (False, True): "i...j->...ij", (True, True): "i...j->...ji"}
"""Whether a matrix is turned, and whether the first axis is one of it -> Einsum that undoes it."""


def _turned(equation: str, rank: int) -> list[int]:
    """Permutation that an Einsum of ``_TURNS`` makes of an operand."""
    source, result = (side.replace("...", "abcdefgh"[: rank - 2]) for side in equation.split("->"))
    return [source.index(axis) for axis in result]


def _turn_operands(model: onnx.ModelProto, pool: ConstantPool) -> None:
    """Write transposes for the Einsums that turn operands, as far as ONNX infers their ranks."""
    turning = [node for node in model.graph.node if _is_turn(node)]
    if not turning:
        return
    try:
        inferred = onnx.shape_inference.infer_shapes(with_constants(model, pool)).graph
    except Exception:  # what is wrong with the model shows later
        return
    types = {v.name: tensor_type(v.type.tensor_type)[1] for v in (*inferred.value_info, *inferred.input)}
    for node in turning:
        shape = types.get(node.input[0])
        if shape is not None:
            perm = _turned(node.attribute[0].s.decode(), len(shape))
            node.op_type = "Transpose"
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("perm", perm))


def _is_turn(node: onnx.NodeProto) -> bool:
    return node.op_type == "Einsum" and any(a.s.decode() in _TURNS.values() for a in node.attribute)


EXPANSIONS: dict[tuple[str, str], Callable[[Body], None]] = {
    (DOMAIN, "SkipLayerNormalization"): lambda b: _skip_norm(b, centered=True),
    (DOMAIN, "SkipSimplifiedLayerNormalization"): lambda b: _skip_norm(b, centered=False),
    (DOMAIN, "EmbedLayerNormalization"): _embed_norm,
    (DOMAIN, "QEmbedLayerNormalization"): _quantized_embed_norm,
    (DOMAIN, "Gelu"): _gelu,
    (DOMAIN, "BiasGelu"): _gelu,
    (DOMAIN, "FastGelu"): _fast_gelu,
    (DOMAIN, "QuickGelu"): _quick_gelu,
    (DOMAIN, "FusedMatMul"): _fused_matmul,
    (DOMAIN, "TransposeMatMul"): _fused_matmul,
    (DOMAIN, "FusedConv"): layers.fused_layer,
    (DOMAIN, "FusedGemm"): layers.fused_layer,
    **{(layers.BLOCKED_DOMAIN, name): expansion for name, expansion in layers.BLOCKED.items()},
    **{(DOMAIN, name): expansion for name, expansion in quantized.EXPANSIONS.items()},
    **{(DOMAIN, name): expansion for name, expansion in experts.EXPANSIONS.items()},
    **{(DOMAIN, name): expansion for name, expansion in device_layers.EXPANSIONS.items()},
    **{(DOMAIN, name): expansion for name, expansion in streams.EXPANSIONS.items()},
    **{(DOMAIN, name): expansion for name, expansion in regions.EXPANSIONS.items()},
    **{(learning.DOMAIN, name): expansion for name, expansion in learning.EXPANSIONS.items()},
    **{("", name): expansion for name, expansion in retired.EXPANSIONS.items()},
    # ONNX Runtime keeps this one in the default domain, where the standard does not know it.
    ("", "SimplifiedLayerNormalization"): _simplified_norm,
    (DOMAIN, "SimplifiedLayerNormalization"): _simplified_norm,
    ("", "GroupNormalization"): _group_norm,
    ("", "LayerNormalization"): _layer_norm,
    ("", "MaxUnpool"): _max_unpool,
    (DOMAIN, "Attention"): attention.attention,
    (DOMAIN, "MultiHeadAttention"): attention.multi_head_attention,
    (DOMAIN, "GroupQueryAttention"): attention.group_query_attention,
    (DOMAIN, "DecoderMaskedMultiHeadAttention"): attention.masked_attention,
    (DOMAIN, "LinearAttention"): linear_attention,
    (DOMAIN, "RotaryEmbedding"): attention.rotary_embedding,
    (DOMAIN, "MRotaryEmbedding"): attention.several_rotary_embedding,
}
"""(domain, operator) -> function that writes it out."""


def _known_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int | None, ...]]:
    """Shapes that the file states, also behind casts, and those of masks that are lengths of sequences.

    ONNX Runtime's optimiser for transformers states no shapes of what it writes.
    """
    known: dict[str, tuple[int | None, ...]] = {}
    for value in (*graph.value_info, *graph.input):
        shape = tensor_type(value.type.tensor_type)[1]
        if shape is not None:
            known[value.name] = shape
    for node in graph.node:
        if node.op_type in ("Cast", "Identity") and node.input[0] in known:
            known.setdefault(node.output[0], known[node.input[0]])
        elif (
            node.domain == DOMAIN
            and node.op_type.endswith("EmbedLayerNormalization")
            and len(node.output) > 1
        ):
            known.setdefault(node.output[1], (None,))
        elif node.op_type == "ReduceSum" and len(known.get(node.input[0], ())) == 2 and _drops_one_axis(node):
            known.setdefault(node.output[0], (None,))
    return known


def _drops_one_axis(reduction: onnx.NodeProto) -> bool:
    """Whether a reduction of a matrix, by the sort of its axes, leaves a row: not all axes, and not kept."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in reduction.attribute}
    return not attributes.get("keepdims", 1) and (
        len(attributes.get("axes", ())) == 1 or len(reduction.input) > 1
    )


def expand_contrib(model: onnx.ModelProto, opset: int, pool: ConstantPool) -> None:
    """Replace every node that has an entry in ``EXPANSIONS`` by plain ones, in place.

    ``pool`` holds the constants, whose shapes some expansions need.

    Raises
    ------
    UnsupportedOperatorError : a node uses an option that its expansion does not cover; names the node.
    """
    if not any((node.domain, node.op_type) in EXPANSIONS for node in all_nodes(model.graph)):
        return
    arrays = {name: partial(pool.array, name) for name in pool}
    shapes = {name: pool.type_of(name)[1] for name in pool}
    for name, array in _expand(model.graph, opset, shapes, arrays, {}).items():
        pool.add_array(name, array)
    _turn_operands(model, pool)
    if not any(node.domain == DOMAIN for node in all_nodes(model.graph)):
        others = [o for o in model.opset_import if o.domain != DOMAIN]
        kept = [onnx.OperatorSetIdProto.FromString(o.SerializeToString()) for o in others]
        del model.opset_import[:]
        model.opset_import.extend(kept)


def _expand(
    graph: onnx.GraphProto,
    opset: int,
    shapes: Mapping[str, tuple[int | None, ...]],
    arrays: Mapping[str, Callable[[], np.ndarray]],
    declared: Mapping[str, tuple[int | str | None, ...]],
) -> dict[str, np.ndarray]:
    """Write out the nodes of a graph and of its subgraphs; returns the large constants of its own nodes.

    ``shapes``, ``arrays`` and ``declared`` say what is known around it.
    """
    shapes = {**_known_shapes(graph), **{t.name: tuple(t.dims) for t in graph.initializer}, **shapes}
    arrays = {**arrays, **{t.name: partial(to_array, t) for t in graph.initializer}}
    declared = {**declared, **_declared(graph)}
    certain = {name: shapes.get(name) for name in (*arrays, *(value.name for value in graph.input))}
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, np.ndarray] = {}
    for node in graph.node:
        for inner in (g for attribute in node.attribute for g in subgraphs(attribute)):
            made = _expand(inner, opset, shapes, arrays, declared)
            inner.initializer.extend(numpy_helper.from_array(array, name) for name, array in made.items())
        expansion = EXPANSIONS.get((node.domain, node.op_type))
        if expansion is None:
            nodes.append(node)
            continue
        body = Body(node, opset, shapes.get, lambda name: arrays[name]() if name in arrays else None)
        body.declared, body.certain = declared.get, certain.get
        with named(node):
            refuse_unknown(node)
            expansion(body)
            if node.domain == DOMAIN or node.op_type == "SimplifiedLayerNormalization":
                refuse_other_shapes(body)
        nodes += body.nodes
        constants |= body.constants
    set_nodes(graph, nodes)
    return constants


def _declared(graph: onnx.GraphProto) -> dict[str, tuple[int | str | None, ...]]:
    """Dimensions that a graph states of its tensors, also by symbol."""
    return {
        value.name: tuple(dim.dim_param or dim.dim_value or None for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.value_info, *graph.input, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }
