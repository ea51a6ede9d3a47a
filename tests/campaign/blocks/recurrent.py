"""Recurrent layers of all directions, lengths, states and layouts."""

from __future__ import annotations

import numpy as np

from tests.campaign.blocks.block import F32, I32, Block, kind

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _layer(
    b: Block, op: str, x: str, inside: int, tag: str, batch_major: bool, lengths: str
) -> tuple[str, int]:
    """One layer; its rows of results, flat, and how wide they are."""
    hidden = b.pick(1, 3, 5, 8, 12)
    way = b.pick("forward", "reverse", "bidirectional")
    ways = 2 if way == "bidirectional" else 1
    gates = _GATES[op]
    args = [x, b.weight(ways, gates * hidden, inside), b.weight(ways, gates * hidden, hidden)]
    args.append(b.weight(ways, 2 * gates * hidden) if b.chance(0.8) else "")
    args.append(lengths)
    attributes: dict = dict(hidden_size=hidden, direction=way, layout=int(batch_major))
    states = ["b", ways, hidden] if batch_major else [ways, "b", hidden]
    if b.chance(0.4):
        args.append(b.feed(f"h{tag}", F32, states))
    else:
        args.append("")
    if op == "LSTM":
        if args[-1] or b.chance(0.2):
            args.append(b.feed(f"c{tag}", F32, states))
        else:
            args.append("")
        args.append(b.weight(ways, 3 * hidden) if b.chance(0.3) else "")
        attributes["input_forget"] = int(b.chance(0.1))
    if op == "GRU":
        attributes["linear_before_reset"] = int(b.chance(0.5))
    if b.chance(0.2):
        attributes["clip"] = 0.7
    if b.chance(0.3):
        one = {"LSTM": ["HardSigmoid", "Relu", "Tanh"], "GRU": ["Sigmoid", "Softsign"], "RNN": ["Relu"]}[op]
        attributes["activations"] = one * ways
    while args and not args[-1]:
        args.pop()
    out = b.node(op, *args, results=3 if op == "LSTM" else 2, **attributes)
    if b.chance(0.5):
        b.result(f"{out}_1")
    if op == "LSTM" and b.chance(0.3):
        b.result(f"{out}_2")
    if batch_major:  # (batch, rows, ways, hidden)
        return b.reshape(out, 0, 0, ways * hidden), ways * hidden
    return b.reshape(b.node("Transpose", out, perm=[0, 2, 1, 3]), 0, 0, ways * hidden), ways * hidden


@kind
def recurrent(b: Block) -> None:
    """One to three layers, behind a convolution or a table at times."""
    b.size("b", 1, 3)
    b.size("s", 1, 9)
    op = b.pick("LSTM", "GRU", "RNN")
    batch_major = b.chance(0.4)
    inside = b.pick(1, 3, 6)
    x = b.feed("x", F32, ("b", "s", inside) if batch_major else ("s", "b", inside))
    lengths = ""
    if b.chance(0.4):

        def some(rng, shape, sizes):
            return rng.integers(0, sizes["s"] + 1, shape)

        lengths = b.feed("lengths", I32, ("b",), some)
    for n in range(b.pick(1, 2, 2, 3)):
        x, inside = _layer(b, op, x, inside, str(n), batch_major, lengths)
    form = b.pick("plain", "head", "last", "norm", "attend")
    if form == "head":
        x = b.node("Softmax", b.node("Add", b.node("MatMul", x, b.weight(inside, 7)), b.weight(7)), axis=-1)
    elif form == "last":
        x = b.node("Gather", x, b.constant(np.int64(-1)), axis=1 if batch_major else 0)
    elif form == "norm":
        x = b.node("LayerNormalization", x, b.weight(inside), b.weight(inside))
    elif form == "attend":
        rows = 1 if batch_major else 0
        weights = b.node("Softmax", b.node("MatMul", x, b.weight(inside, 1)), axis=rows)
        x = b.node("ReduceSum", b.node("Mul", x, weights), b.ints(rows), keepdims=0)
    b.result(x)
