"""ONNX Runtime's LinearAttention, written out as a Scan over the steps, with a state for each head.

ONNX has the operator from opset 27 on, with a definition; onnxruntime-genai's builder writes it into files of
older ones (Qwen3-Next and Qwen3.5).  Semantics: ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.body import Body, as_text

_RULES = ("linear", "gated", "delta", "gated_delta")


def linear_attention(b: Body) -> None:
    """Write out LinearAttention, of each of its update rules."""
    # query, key, value, past_state, decay, beta -> output, present_state
    rule = as_text(b.attributes.get("update_rule", "gated_delta"))
    heads, kv_heads = int(b.attributes["q_num_heads"]), int(b.attributes["kv_num_heads"])
    gated, delta = rule.startswith("gated"), rule.endswith("delta")
    lacking = [
        name for name, index, has in (("decay", 4, gated), ("beta", 5, delta)) if has != bool(b.input(index))
    ]
    reason = ""
    if rule not in _RULES:
        reason = f"has the rule {rule!r}; {', '.join(_RULES)} are supported"
    elif lacking:
        reason = f"has the rule {rule!r}, to which its operand {lacking[0]} does not belong or is missing"
    elif heads % kv_heads:
        reason = f"has {heads} heads of queries for {kv_heads} of keys, which is no multiple"
    elif kept := int(b.attributes.get("state_window", 0)):
        reason = f"keeps the states of {kept} steps (state_window={kept}); the last one alone is supported"
    if reason:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} ({b.node.op_type}) {reason}.", hint="Export the model with one of these."
        )

    def by_step(x: str, *extents: int) -> str:
        """Divide [B, T, N] into ``extents``, steps first."""
        apart = b.op("Reshape", x, b.const([0, 0, *extents], "int64"))
        return b.op("Transpose", apart, perm=[1, 0, *range(2, 2 + len(extents))])

    group = heads // kv_heads
    query = by_step(b.input(0), kv_heads, group, -1)
    key, value = by_step(b.input(1), kv_heads, -1, 1), by_step(b.input(2), kv_heads, 1, -1)
    scale = float(b.attributes.get("scale", 0.0))
    if scale:
        query = b.op("Mul", query, b.const(scale))
    else:
        width = b.op("Cast", b.extent(key, 3), to=TensorProto.FLOAT)
        query = b.op("Div", query, b.op("Sqrt", width))
    operands = {"query": query, "key": key, "value": value}
    if gated:
        operands["decay"] = b.op("Exp", by_step(b.input(4), kv_heads, -1, 1))
    if delta:
        operands["beta"] = by_step(b.input(5), -1, 1, 1)
    state = b.input(3)
    if not state:
        extents = (b.extent(key, 1), b.extent(key, 2), b.extent(key, 3), b.extent(value, 4))
        state = b.op("ConstantOfShape", b.op("Concat", *extents, axis=0))
    b.op(
        "Scan",
        state,
        *operands.values(),
        body=_step(list(operands), gated, delta),
        num_scan_inputs=len(operands),
    )
    node = b.nodes[-1]
    node.output.append(f"{node.output[0]}_steps")
    b.end(1, node.output[0])
    rows = b.op("Transpose", node.output[1], perm=[1, 0, 2, 3, 4])
    b.end(0, b.op("Reshape", rows, b.const([0, 0, -1], "int64")))


def _step(operands: list[str], gated: bool, delta: bool) -> onnx.GraphProto:
    """One step: the state [B, N, K, V] fades, takes the outer product of key and value, and is read."""
    nodes = []

    def op(kind: str, *inputs: str, output: str = "", **attributes: object) -> str:
        output = output or f"{kind}_{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    state, value = "state", "value"
    if gated:
        state = op("Mul", state, "decay")
    if delta:  # what the state has for this key is replaced, by a part
        known = op("MatMul", op("Transpose", "key", perm=[0, 1, 3, 2]), state)
        value = op("Mul", op("Sub", value, known), "beta")
    op("Add", state, op("Mul", "key", value), output="next")
    op("MatMul", "query", "next", output="read")
    starts = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("state", *operands)]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("next", "read")]
    return helper.make_graph(nodes, "step", starts, ends)
