"""Shapes that the operands of ONNX's own operators must have, where its inference of shapes does not look.

What replaces such an operator broadcasts: an operand of another extent would give numbers that nobody meant.
"""

from __future__ import annotations

import onnx
from onnx import helper

from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool, Types
from hetero_tvm.frontend.onnx.operands.patterns import Known, Shape, refuse_unfit, unfit

_STATES = {1: "D G I", 2: "D G A", 3: "D 2*G", 4: "B"}
_STEPS_FIRST = {**_STATES, 0: "T B I", 5: "D B A", 6: "D B A", 7: "D 3*A"}
_BATCH_FIRST = {**_STATES, 0: "B T I", 5: "B D A", 6: "B D A", 7: "D 3*A"}

PATTERNS: dict[str, dict[int, str]] = {
    "Conv": {2: "O"},
    "ConvTranspose": {2: "O"},
    "DeformConv": {3: "O"},
    "QLinearConv": {8: "O"},
    "InstanceNormalization": {0: "N C ...", 1: "C", 2: "C"},
    "NonMaxSuppression": {0: "N S 4", 1: "N C S"},
    "ReverseSequence": {0: "...", 1: "N"},
    "Attention": {
        0: "B N S D | B S q_num_heads*D",
        1: "B G T D | B T kv_num_heads*D",
        2: "B G T E | B T kv_num_heads*E",
        4: "B G P D | B kv_num_heads P D",
        5: "B G P E | B kv_num_heads P E",
        6: "B",
    },
    "RotaryEmbedding": {0: "B N S D | B S num_heads*D", 1: "M R | B S R", 2: "M R | B S R", 3: "B S"},
    "LSTM": _STEPS_FIRST,
    "GRU": _STEPS_FIRST,
    "RNN": _STEPS_FIRST,
}
"""Operator -> pattern of the shape of each of its inputs by number."""

_INTO = {"LayerNormalization": (1, 2), "RMSNormalization": (1,)}
"""Operator -> inputs that may spread over the first one, and not the other way."""

_WEIGHTS = {"Conv": 1, "ConvTranspose": 1, "DeformConv": 1, "QLinearConv": 3}
"""Convolution -> input that is its weights, which say what O is."""


def refuse_other_operands(graph: onnx.GraphProto, types: Types, pool: ConstantPool) -> None:
    """Refuse a node of ONNX's own whose operands, as far as their shapes are known, do not fit each other.

    Raises
    ------
    ModelError : they do not; names the node, its operands and their shapes.
    """

    def shape_of(name: str) -> Shape | None:
        return pool.type_of(name)[1] if name in pool else types.get(name, (0, None))[1]

    for node in graph.node:
        kind = node.op_type
        if node.domain not in ONNX_DOMAINS or kind not in PATTERNS and kind not in _INTO:
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        shapes = [shape_of(name) if name else None for name in node.input]
        patterns = PATTERNS.get(kind, {})
        if attributes.get("layout", 0):
            patterns = _BATCH_FIRST
        refuse_unfit(node, patterns, shape_of, _known(node, attributes, shapes))
        named = dict(zip(node.input, shapes, strict=True))
        known = {name: shape for name, shape in named.items() if shape is not None}
        for index in _INTO.get(kind, ()):
            if index < len(shapes) and not _spreads(shapes[index], shapes[0]):
                raise unfit(node, known)
        if kind == "Attention" and not _masks(shapes):
            raise unfit(node, known)


def _known(node: onnx.NodeProto, attributes: dict, shapes: list[Shape | None]) -> Known:
    """Extents that attributes say, or shapes of other operands."""
    kind = node.op_type
    known = {name: value for name, value in attributes.items() if isinstance(value, int) and value > 0}
    weights = shapes[_WEIGHTS[kind]] if kind in _WEIGHTS else None
    if weights is not None and len(weights) > 1:
        outer = weights[1] if kind == "ConvTranspose" else weights[0]
        groups = known.get("group", 1) if kind == "ConvTranspose" else 1
        known = {} if outer is None else {"O": outer * groups}
    if "hidden_size" in known:
        known["A"] = known["hidden_size"]
    x = shapes[0]
    if kind == "RotaryEmbedding":
        width = x[-1] if x is not None and len(x) else None
        heads = known.get("num_heads", 1) if x is not None and len(x) == 3 else 1
        whole = 0 if width is None else width // heads
        if rotated := known.get("rotary_embedding_dim", whole):
            known["R"] = rotated // 2
    axis = int(attributes.get("batch_axis", 1))
    if kind == "ReverseSequence" and x is not None and axis < len(x) and (count := x[axis]) is not None:
        known["N"] = count
    return known


def _spreads(small: Shape | None, whole: Shape | None) -> bool:
    """Whether a tensor broadcasts over another one without changing its shape, as far as is known."""
    if small is None or whole is None:
        return True
    pairs = zip(reversed(small), reversed(whole), strict=False)
    return len(small) <= len(whole) and all(s in (1, w, None) or w is None for s, w in pairs)


def _masks(shapes: list[Shape | None]) -> bool:
    """Whether the mask of ONNX's Attention broadcasts over the scores, as far as is known."""
    query, mask = shapes[0], shapes[3] if len(shapes) > 3 else None
    if query is None or mask is None or len(mask) < 2:
        return True
    rows = query[2] if len(query) == 4 else query[1]
    heads = query[1] if len(query) == 4 else None
    return _spreads(mask[:-1], (query[0], heads, rows))
