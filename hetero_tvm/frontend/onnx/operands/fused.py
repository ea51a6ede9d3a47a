"""Shapes that the operands of ONNX Runtime's operators must have, as its own kernels check them.

ONNX's shape inference knows none of these operators, and the plain nodes that replace them broadcast: an
operand of another extent would give numbers that nobody meant.  Semantics: ONNX Runtime, contrib_ops/cpu.
"""

from __future__ import annotations

import math

from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.operands.patterns import refuse_unfit

_SAME_ROWS = "S H | 1 S H | B S H"
_EMBEDDED = {0: "B S", 1: "B S", 2: "V H", 3: "P H", 4: "Q H", 5: "H", 6: "H"}
_ATTENTION = {0: "B S I", 1: "I W", 2: "W"}
_ROTARY = {2: "M R", 3: "M R", 0: "B S num_heads*D | B N S D"}
_MIXTURE = {0: "... H", 1: "rows E"}

PATTERNS: dict[str, dict[int, str]] = {
    "Attention": {
        **_ATTENTION,
        3: "B | 2*B | 3*B+2 | B 1 | B P+S | B S P+S | B 1 M M",
        4: "2 B num_heads P D",
        5: "B num_heads S P+S | 1 num_heads S P+S | B 1 S P+S | 1 1 S P+S",
    },
    "QAttention": {**_ATTENTION, 5: "B | 2*B | B 1 | B P+S | B S P+S | B 1 M M", 8: "2 B num_heads P D"},
    "MultiHeadAttention": {
        0: "B S num_heads*D | B S num_heads 3 D",
        1: "B L num_heads*D | B L num_heads 2 D | B num_heads L D",
        2: "B L num_heads*E | B num_heads L E",
        3: "2*num_heads*D+num_heads*E",
        4: "B | 3*B+2 | B P+L | B S P+L",
        5: "B num_heads S P+L | 1 num_heads S P+L | B 1 S P+L | 1 1 S P+L",
        6: "B num_heads P D",
        7: "B num_heads P E",
    },
    "GroupQueryAttention": {
        0: "B S W",
        1: "B S kv_num_heads*D",
        2: "B S kv_num_heads*D",
        3: "B kv_num_heads P C",
        4: "B kv_num_heads P C",
        5: "B | B 1 | 1 B",
        6: " | 1 | 1 1",
        7: "M R",
        8: "M R",
        9: "B S",
        10: "B num_heads S T | 1 num_heads S T | B 1 S T | 1 1 S T",
        11: "num_heads",
    },
    "DecoderMaskedMultiHeadAttention": {0: "B 1 H"},
    "LinearAttention": {0: "B S X", 1: "B S Y", 2: "B S Z"},
    "RotaryEmbedding": {**_ROTARY, 1: " | 1 | B S"},
    "MRotaryEmbedding": {**_ROTARY, 1: "3 B S"},
    "SkipLayerNormalization": {0: "S H | B S H", 1: _SAME_ROWS, 2: "H", 3: "H", 4: "H"},
    "SkipSimplifiedLayerNormalization": {0: "S H | B S H", 1: _SAME_ROWS, 2: "H", 3: "H"},
    "SimplifiedLayerNormalization": {0: "... H", 1: "H | 1 H | 1 | 1 1 | "},
    "EmbedLayerNormalization": {**_EMBEDDED, 7: "B S", 8: "B S | 1 S"},
    "QEmbedLayerNormalization": {**_EMBEDDED, 7: "B S"},
    "GatedRMSNorm": {1: "C", 0: "A N*C | A B N*C | A B L N*C", 2: "A N*C | A B N*C | A B L N*C"},
    "BiasGelu": {0: "... H", 1: "H"},
    "FastGelu": {0: "... H", 1: "H"},
    "BiasSplitGelu": {0: "B S H", 1: "H"},
    "BiasAdd": {0: "B S H", 1: "H", 2: "B S H"},
    "GemmFastGelu": {2: "H"},
    "FusedConv": {2: "O"},
    "QLinearConv": {8: "O"},
    "GroupNorm": {1: "C", 2: "C"},
    "SkipGroupNorm": {1: "C", 2: "C", 4: "C"},
    "CDist": {0: "M K", 1: "N K"},
    "MatMulIntegerToFloat": {1: "... K N", 6: "N | 1 N"},
    "DynamicQuantizeMatMul": {1: "... K N", 4: "N | 1 N"},
    "MatMulNBits": {0: "... K", 5: "N"},
    "MatMulBnb4": {0: "... K"},
    "MoE": {
        **_MIXTURE,
        **{2: "E U H", 3: "E U", 4: "E H I", 5: "E H", 6: "E U H", 7: "E U"},
    },
    "QMoE": {
        **_MIXTURE,
        **{2: "E U J", 3: "E U | E U G", 4: "E U"},
        **{5: "E H L", 6: "E H | E H F", 7: "E H"},
        **{8: "E U J", 9: "E U | E U G", 10: "E U"},
    },
    "DynamicQuantizeLSTM": {
        0: "T B I",
        1: "D I G",
        2: "D A G",
        3: "D 2*G",
        4: "B",
        5: "D B A",
        6: "D B A",
        7: "D 3*A",
    },
    "CausalConvWithState": {0: "B C L", 1: "C 1 K", 2: "C", 3: "B C past"},
    "CropAndResize": {1: "R 4", 2: "R"},
    "Inverse": {0: "... N N"},
    "Unique": {0: "N"},
    "ComplexMul": {0: "... 2", 1: "... 2"},
    "ComplexMulConj": {0: "... 2", 1: "... 2"},
}
"""Operator -> pattern of the shape of each of its inputs by number."""

_WEIGHTS = {"FusedConv": 1, "QLinearConv": 3}
"""Convolution -> input that is its weights, whose first extent is O."""

_PAST = {"GroupQueryAttention": 3, "MultiHeadAttention": 6, "Attention": 4, "QAttention": 8}
"""Attention -> input that holds past keys, of which there are P."""


def _known(b: Body) -> dict[str, int]:
    """Extents that attributes say, or shapes of other operands."""
    kind, known = b.node.op_type, {k: v for k, v in b.attributes.items() if isinstance(v, int) and v > 0}
    shape = b.certain(b.input(0))
    if kind in _WEIGHTS:
        weights = b.certain(b.input(_WEIGHTS[kind]))
        known = {"O": weights[0]} if weights and weights[0] is not None else {}
    if kind in _PAST and not b.input(_PAST[kind]):
        known["P"] = 0
    if kind == "GroupQueryAttention":  # as many keys as a constant says, or as there are steps
        total, steps = (b.array(b.input(6)) if b.input(6) else None), b.certain(b.input(0))
        if total is not None and total.size == 1:
            known["T"] = int(total.reshape(-1)[0])
        elif not b.input(3) and steps and steps[1] is not None:
            known["T"] = steps[1]
    if kind.endswith("MoE") and shape and None not in shape[:-1]:
        known["rows"] = math.prod(extent or 0 for extent in shape[:-1])
    if kind.endswith("RotaryEmbedding"):  # of whole heads, where no attribute says of how much
        table, part = b.certain(b.input(2)), known.get("rotary_embedding_dim")
        if not part and table and len(table) == 2 and table[1] is not None:
            known["D"] = 2 * table[1]
        elif part:
            known["R"] = part // 2
    if kind == "CausalConvWithState":
        weights = b.certain(b.input(1))
        if weights and weights[-1] is not None:
            known["past"] = (weights[-1] - 1) * known.get("dilation", 1)
    return known


def refuse_other_shapes(b: Body) -> None:
    """Refuse a node whose operands, as far as their shapes are known, do not fit each other.

    Raises
    ------
    ModelError : they do not; names the node, its operands and their shapes.
    """
    refuse_unfit(b.node, PATTERNS.get(b.node.op_type, {}), b.certain, _known(b))
