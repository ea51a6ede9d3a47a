"""Loops, branches, scans and sequences, with odd numbers of rounds."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from tests.campaign.blocks.block import BOOL, F32, I64, Block, below, kind


def _value(name: str, dtype: int, shape: list | None):
    return helper.make_tensor_value_info(name, dtype, shape)


@kind
def loops(b: Block) -> None:
    """A loop with a state, a condition, results by round, and values from outside."""
    b.size("b", 1, 3)
    x = b.feed("x", F32, ("b", 4))
    trips = b.pick("given", "none", "constant", "size")
    if trips == "given":
        most = b.feed("most", I64, b.pick((), (1,)), below(7))
    elif trips == "constant":
        most = b.constant(np.array(b.pick(0, 1, 3, 5), np.int64))
    elif trips == "size":
        most = b.node("Squeeze", b.extent(x, 0), b.ints(0))
    else:
        most = b.constant(np.array(9, np.int64))
    whole = b.weight(4, 4)
    stop = b.chance()
    rows = b.chance(0.6)
    nodes = [
        helper.make_node("MatMul", ["s", whole], ["m"]),
        helper.make_node("Tanh", ["m"], ["t"]),
        helper.make_node("Cast", ["i"], ["f"], to=F32),
        helper.make_node("Mul", ["f", "tenth"], ["g"]),
        helper.make_node("Add", ["t", "g"], ["s_out"]),
    ]
    inner = [numpy_helper.from_array(np.float32(v), n) for v, n in ((0.1, "tenth"), (2.5, "bound"))]
    if stop:
        nodes += [
            helper.make_node("ReduceSum", ["s_out"], ["total"], keepdims=0),
            helper.make_node("Less", ["total", "bound"], ["c_out"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["c"], ["c_out"]))
    outs = [_value("c_out", BOOL, []), _value("s_out", F32, ["b", 4])]
    if rows:
        nodes.append(helper.make_node("Add", ["s_out", "x"], ["row"]))
        outs.append(_value("row", F32, ["b", 4]))
    body = helper.make_graph(
        nodes, "body", [_value("i", I64, []), _value("c", BOOL, []), _value("s", F32, ["b", 4])], outs, inner
    )
    condition = b.pick("", b.constant(np.array(True)), b.constant(np.array(True)))
    out = b.node("Loop", most, condition, x, body=body, results=2 if rows else 1)
    b.result(b.node("Mul", out, b.scalar(2.0)))
    if rows:
        b.result(f"{out}_1")


@kind
def scans(b: Block) -> None:
    """A scan over rows: states, several inputs, directions and axes."""
    b.size("s", 1, 8)
    b.size("b", 1, 3)
    axis = b.pick(0, 1)
    x = b.feed("x", F32, ("s", "b", 3) if axis == 0 else ("b", "s", 3))
    y = b.feed("y", F32, ("s", "b", 3))
    state = b.feed("state", F32, ("b", 3))
    weight = b.weight(3, 3)
    form = b.pick("sum", "gate", "max")
    if form == "sum":
        nodes = [
            helper.make_node("MatMul", ["h", weight], ["m"]),
            helper.make_node("Add", ["m", "u"], ["n"]),
            helper.make_node("Tanh", ["n"], ["h_out"]),
            helper.make_node("Mul", ["h_out", "v"], ["o"]),
        ]
    elif form == "gate":
        nodes = [
            helper.make_node("Sigmoid", ["u"], ["g"]),
            helper.make_node("Mul", ["g", "h"], ["k"]),
            helper.make_node("Add", ["k", "v"], ["h_out"]),
            helper.make_node("Sub", ["h_out", "h"], ["o"]),
        ]
    else:
        nodes = [
            helper.make_node("Max", ["u", "h"], ["h_out"]),
            helper.make_node("Add", ["h", "v"], ["o"]),
        ]
    row = ["b", 3]
    body = helper.make_graph(
        nodes,
        "body",
        [_value("h", F32, row), _value("u", F32, row), _value("v", F32, row)],
        [_value("h_out", F32, row), _value("o", F32, row)],
    )
    out = b.node(
        "Scan",
        *(state, x, y),
        body=body,
        num_scan_inputs=2,
        results=2,
        scan_input_axes=[axis, 0],
        scan_input_directions=[b.pick(0, 1), b.pick(0, 1)],
        scan_output_axes=[b.pick(0, 1)],
        scan_output_directions=[b.pick(0, 1)],
    )
    b.result(out)
    b.result(f"{out}_1")


@kind
def branches(b: Block) -> None:
    """Branches by an input, by a size, by a value; of layers that read from outside; one in another."""
    b.size("b", 1, 5)
    x = b.feed("x", F32, ("b", 6))
    by = b.pick("input", "size", "value")
    if by == "input":
        condition = b.feed("which", BOOL, b.pick((), (1,)), lambda rng, shape, sizes: rng.random(shape) < 0.5)
    elif by == "size":
        rows = b.node("Squeeze", b.extent(x, 0), b.ints(0))
        condition = b.node("Greater", rows, b.constant(np.int64(2)))
    else:
        condition = b.node("Greater", b.node("ReduceSum", x, keepdims=0), b.scalar(0.0))
    w, v, y = b.weight(6, 6), b.weight(6), b.node("Relu", x)
    other = b.node("Less", b.node("ReduceMax", x, keepdims=0), b.scalar(1.5))

    def branch(tag: str, deep: bool):
        form = b.pick("product", "linear", "pass", "constant", "deep" if deep else "pass")
        nodes, extra = [], []
        if form == "product":
            nodes.append(helper.make_node("MatMul", [y, w], [f"{tag}m"]))
            nodes.append(helper.make_node("Sigmoid", [f"{tag}m"], [f"{tag}o"]))
        elif form == "linear":
            nodes.append(helper.make_node("Mul", [y, v], [f"{tag}o"]))
        elif form == "constant":
            extra.append(numpy_helper.from_array(np.float32([3]), f"{tag}k"))
            nodes.append(helper.make_node("Shape", [x], [f"{tag}s"]))
            nodes.append(helper.make_node("Expand", [f"{tag}k", f"{tag}s"], [f"{tag}o"]))
        elif form == "deep":
            then, otherwise = branch(f"{tag}t", False), branch(f"{tag}e", False)
            ways = dict(then_branch=then, else_branch=otherwise)
            nodes.append(helper.make_node("If", [other], [f"{tag}o"], **ways))
        else:
            nodes.append(helper.make_node("Identity", [b.pick(x, y)], [f"{tag}o"]))
        return helper.make_graph(nodes, tag, [], [_value(f"{tag}o", F32, ["b", 6])], extra)

    out = b.node("If", condition, then_branch=branch("T", True), else_branch=branch("E", True))
    b.result(b.node("Add", out, y))


@kind
def sequences(b: Block) -> None:
    """Sequences that are split, read, changed and joined."""
    b.size("b", 1, 3)
    number = b.pick(1, 2, 3, 5)
    form = b.pick("split", "construct", "parts")
    if form == "parts":
        x = b.feed("x", F32, ("b", 7, 3))
        s = b.node("SplitToSequence", x, b.ints(2, 1, 4), axis=1)
        number = 3
    elif form == "split":
        x = b.feed("x", F32, ("b", 2 * number, 3))
        s = b.node("SplitToSequence", x, b.constant(np.int64(2)), axis=1)
    else:
        x = b.feed("x", F32, ("b", 2, 3))
        parts = [b.node("Mul", x, b.scalar(float(n + 1))) for n in range(number)]
        s = b.node("SequenceConstruct", *parts)
    for _ in range(b.pick(0, 1, 2)):
        step = b.pick("insert", "erase", "append")
        if step == "erase" and number > 1:
            at = b.constant(np.int64(int(b.rng.integers(-number, number))))
            s, number = b.node("SequenceErase", s, at), number - 1
        elif step != "erase":
            extra = b.node("Neg", b.node("SequenceAt", s, b.constant(np.int64(0))))
            at = [] if step == "append" else [b.constant(np.int64(int(b.rng.integers(-number, number + 1))))]
            s, number = b.node("SequenceInsert", s, extra, *at), number + 1
    end = b.pick("concat", "at", "length", "stack")
    if end == "length":
        b.result(b.node("SequenceLength", s), I64)
    if end == "stack" and form == "construct":
        b.result(b.node("ConcatFromSequence", s, axis=b.pick(0, 1, -1), new_axis=1))
    elif end == "at":
        b.result(b.node("Relu", b.node("SequenceAt", s, b.constant(np.int64(-1)))))
    else:
        b.result(b.node("ConcatFromSequence", s, axis=1))
