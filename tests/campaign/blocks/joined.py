"""Encoders whose layers come of several exporters, in one file, with shared weights and tied embeddings.

A kernel's fusion sees one spelling of a layer at a time; here what one spelling makes, another reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.campaign.blocks.block import BOOL, F32, I32, I64, Block, below, kind
from tests.campaign.blocks.near_attention import _padding

CONTRIB = "com.microsoft"


@dataclass
class Network:
    """What all layers of a network have in common."""

    b: Block
    heads: int
    depth: int
    causal: bool
    weights: dict[str, str] = field(default_factory=dict)
    masks: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    """Tensors within layers that a user may want as results."""

    @property
    def width(self) -> int:
        return self.heads * self.depth

    def weight(self, name: str, *shape: int) -> str:
        """A weight; half of them are those of an earlier layer."""
        key = f"{name}{shape}"
        if key not in self.weights or self.b.chance():
            self.weights[key] = self.b.constant((self.b.rng.standard_normal(shape) * 0.4).astype(np.float32))
        return self.weights[key]

    def mask(self, form: str) -> str:
        """The mask in a form: "add" is 0 and a low number, "bool" says what is seen; (b, 1, 1 or s, s)."""
        if form in self.masks:
            return self.masks[form]
        b = self.b
        if form == "bool":
            seen = b.node("Cast", b.node("Unsqueeze", "keep", b.ints(1, 2)), to=BOOL)
            if self.causal:
                extent = b.node("Squeeze", b.extent("keep", 1), b.ints(0))
                places = b.node("Range", b.constant(np.int64(0)), extent, b.constant(np.int64(1)))
                rows = b.node("Unsqueeze", places, b.ints(1))
                seen = b.node("And", b.node("LessOrEqual", places, rows), seen)
            self.masks[form] = seen
        else:
            low = b.pick(-np.inf, -1e4, -1e9, float(np.finfo(np.float32).min))
            if self.causal or b.chance() or low == -np.inf:
                self.masks[form] = b.node("Where", self.mask("bool"), b.scalar(0.0), b.scalar(low))
            else:
                hidden = b.node("Sub", b.scalar(1.0), b.node("Cast", "keep", to=F32))
                self.masks[form] = b.node("Unsqueeze", b.node("Mul", hidden, b.scalar(low)), b.ints(1, 2))
        return self.masks[form]


def _apart(n: Network, x: str, form: str) -> str:
    """(b, s, width) to (b, heads, s, depth)."""
    b = n.b
    if form == "sizes":
        y = b.reshape(x, b.extent(x, 0), b.extent(x, 1), n.heads, n.depth)
    else:
        y = b.reshape(x, 0, -1, n.heads, n.depth)
    return b.node("Transpose", y, perm=[0, 2, 1, 3])


def _together(n: Network, x: str, form: str) -> str:
    b = n.b
    y = b.node("Transpose", x, perm=[0, 2, 1, 3])
    return (
        b.reshape(y, b.extent(y, 0), b.extent(y, 1), n.width)
        if form == "sizes"
        else b.reshape(y, 0, -1, n.width)
    )


def _attended(n: Network, q: str, k: str, v: str, scaled: str, mask: str) -> str:
    b, root = n.b, float(np.sqrt(n.depth))
    if scaled == "both":
        q, k = (b.node("Mul", t, b.scalar(root**-0.5)) for t in (q, k))
    elif scaled == "query":
        q = b.node("Mul", q, b.scalar(1 / root))
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 1, 3, 2]))
    if scaled == "scores":
        scores = b.node("Div", scores, b.scalar(root))
    if mask == "add":
        scores = b.node("Add", scores, n.mask("add"))
    else:
        scores = b.node("Where", n.mask("bool"), scores, b.scalar(b.pick(-np.inf, -1e4)))
    weights = b.node("Softmax", scores, axis=b.pick(-1, 3))
    n.kept += [scores, weights]
    return b.node("MatMul", weights, v)


def _torchscript(n: Network, x: str) -> str:
    b, w = n.b, n.width

    def linear(t: str, name: str, rows: int, columns: int) -> str:
        return b.node(
            "Add", b.node("MatMul", t, n.weight(name, rows, columns)), n.weight(name + "b", columns)
        )

    def norm(t: str, name: str) -> str:
        centred = b.node("Sub", t, b.node("ReduceMean", t, axes=[-1]))
        mean = b.node("ReduceMean", b.node("Pow", centred, b.scalar(2.0)), axes=[-1])
        root = b.node("Sqrt", b.node("Add", mean, b.scalar(1e-5)))
        y = b.node("Mul", b.node("Div", centred, root), n.weight(name, w))
        return b.node("Add", y, n.weight(name + "b", w))

    q, k, v = (_apart(n, linear(x, name, w, w), "sizes") for name in "qkv")
    n.kept += [k, v]
    y = linear(_together(n, _attended(n, q, k, v, "scores", "add"), "sizes"), "o", w, w)
    x = norm(b.node("Add", y, x), "n1")
    y = linear(x, "up", w, 2 * w)
    erf = b.node("Add", b.node("Erf", b.node("Div", y, b.scalar(np.sqrt(2)))), b.scalar(1.0))
    y = b.node("Mul", b.node("Mul", y, erf), b.scalar(0.5))
    return norm(b.node("Add", linear(y, "down", 2 * w, w), x), "n2")


def _dynamo(n: Network, x: str) -> str:
    b, w = n.b, n.width

    def linear(t: str, name: str, rows: int, columns: int) -> str:
        turned = b.node("Transpose", n.weight(name + "t", columns, rows), perm=[1, 0])
        return b.node("Add", b.node("MatMul", t, turned), n.weight(name + "b", columns))

    def norm(t: str, name: str) -> str:
        return b.node("LayerNormalization", t, n.weight(name, w), n.weight(name + "b", w), axis=-1)

    y = norm(x, "n1")
    whole = linear(y, "qkv", w, 3 * w)
    q, k, v = (b.node("Slice", whole, b.ints(c * w), b.ints((c + 1) * w), b.ints(2)) for c in range(3))
    q, k, v = (_apart(n, t, "minus") for t in (q, k, v))
    y = _together(n, _attended(n, q, k, v, "both", b.pick("bool", "add")), "minus")
    x = b.node("Add", x, linear(y, "o", w, w))
    gate, up = (linear(norm(x, "n2"), name, w, 2 * w) for name in ("gate", "up"))
    y = b.node("Mul", b.node("Mul", gate, b.node("Sigmoid", gate)), up)
    return b.node("Add", x, linear(y, "down", 2 * w, w))


def _tensorflow(n: Network, x: str) -> str:
    b, w = n.b, n.width
    shape = b.node("Shape", x)

    def dense(t: str, name: str, rows: int, columns: int) -> str:
        """A product of two axes, as of Keras, or a convolution between transpositions."""
        if b.chance(0.3):
            kernel = b.node("Transpose", n.weight(name, rows, columns), perm=[1, 0])
            kernel = b.node("Unsqueeze", kernel, b.ints(2))
            y = b.node("Conv", b.node("Transpose", t, perm=[0, 2, 1]), kernel, kernel_shape=[1])
            y = b.node("Transpose", y, perm=[0, 2, 1])
        else:
            y = b.node("MatMul", b.reshape(t, -1, rows), n.weight(name, rows, columns))
            y = b.reshape(y, b.extent(x, 0), b.extent(x, 1), columns)
        return b.node("Add", y, n.weight(name + "b", columns))

    def norm(t: str, name: str) -> str:
        mean = b.node("ReduceMean", t, axes=[2])
        away = b.node("Sub", t, mean)
        variance = b.node("ReduceMean", b.node("Mul", away, away), axes=[2])
        scale = b.node("Reciprocal", b.node("Sqrt", b.node("Add", variance, b.scalar(1e-6))))
        scale = b.node("Mul", scale, n.weight(name, w))
        moved = b.node("Sub", n.weight(name + "b", w), b.node("Mul", mean, scale))
        return b.node("Add", b.node("Mul", t, scale), moved)

    q, k, v = (_apart(n, dense(x, name, w, w), "sizes") for name in "qkv")
    y = dense(_together(n, _attended(n, q, k, v, "query", "add"), "sizes"), "o", w, w)
    x = norm(b.node("Add", y, x), "n1")
    y = dense(x, "up", w, 2 * w)
    cube = b.node("Mul", b.node("Pow", y, b.scalar(3.0)), b.scalar(0.044715))
    tanh = b.node("Tanh", b.node("Mul", b.node("Add", y, cube), b.scalar(np.sqrt(2 / np.pi))))
    y = b.node("Mul", y, b.node("Mul", b.node("Add", tanh, b.scalar(1.0)), b.scalar(0.5)))
    return b.node("Reshape", norm(b.node("Add", dense(y, "down", 2 * w, w), x), "n2"), shape)


def _onnxruntime(n: Network, x: str) -> str:
    b, w = n.b, n.width

    def own(op: str, *operands: str, **attributes) -> str:
        return b.node(op, *operands, domain=CONTRIB, **attributes)

    whole, bias = n.weight("qkv", w, 3 * w), n.weight("qkvb", 3 * w)
    if n.causal or b.chance():
        mask = b.node("Cast", "keep", to=I32)
        y = own("Attention", x, whole, bias, mask, num_heads=n.heads, unidirectional=int(n.causal))
    else:
        lengths = b.node("Cast", b.node("ReduceSum", "keep", b.ints(1), keepdims=0), to=I32)
        y = own("Attention", x, whole, bias, lengths, num_heads=n.heads)
    y = b.node("MatMul", y, n.weight("o", w, w))
    y = own(
        "SkipLayerNormalization", y, x, n.weight("n1", w), n.weight("n1b", w), n.weight("ob", w), epsilon=1e-5
    )
    up, bias = n.weight("up", w, 2 * w), n.weight("upb", 2 * w)
    z = b.node("MatMul", y, up)
    z = own(b.pick("BiasGelu", "FastGelu"), z, bias)
    z = b.node("MatMul", z, n.weight("down", 2 * w, w))
    return own(
        "SkipLayerNormalization",
        z,
        y,
        n.weight("n2", w),
        n.weight("n2b", w),
        n.weight("downb", w),
        epsilon=1e-5,
    )


def _quantised(n: Network, x: str) -> str:
    b, w = n.b, n.width

    def rounded(t: str) -> str:
        # Scales of round numbers would put many sums on the border between two steps.
        scale, zero = b.scalar(b.rng.uniform(0.02, 0.05)), b.constant(np.uint8(b.pick(128, 120)))
        return b.node("DequantizeLinear", b.node("QuantizeLinear", t, scale, zero), scale, zero)

    def linear(t: str, name: str, rows: int, columns: int) -> str:
        key = f"{name}8{rows, columns}"
        if key not in n.weights or b.chance():
            n.weights[key] = b.constant(b.rng.integers(-127, 128, (rows, columns)).astype(np.int8))
        scale = b.constant(b.rng.uniform(0.003, 0.008, columns).astype(np.float32))
        zero = b.constant(np.zeros(columns, np.int8))
        weight = b.node("DequantizeLinear", n.weights[key], scale, zero, axis=1)
        # A bias in front of the quantiser would be rounded to the product's steps (docs/numerics.md).
        return b.node("Add", rounded(b.node("MatMul", t, weight)), n.weight(name + "b", columns))

    x = rounded(x)
    q, k, v = (_apart(n, rounded(linear(x, name, w, w)), "minus") for name in "qkv")
    y = _together(n, _attended(n, q, k, v, "scores", "add"), "minus")
    y = rounded(b.node("Add", linear(rounded(y), "o", w, w), x))
    x = rounded(b.node("LayerNormalization", y, n.weight("n1", w), n.weight("n1b", w), axis=-1))
    y = rounded(b.node("Relu", linear(x, "up", w, 2 * w)))
    y = rounded(b.node("Add", linear(y, "down", 2 * w, w), x))
    return b.node("LayerNormalization", y, n.weight("n2", w), n.weight("n2b", w), axis=-1)


def _logits(n: Network, x: str, table: str, words: int) -> str:
    b = n.b
    form = b.pick("matmul", "gemm", "einsum", "last")
    if form == "gemm":
        y = b.node("Gemm", b.reshape(x, -1, n.width), table, transB=1)
        return b.reshape(y, b.extent(x, 0), b.extent(x, 1), words)
    if form == "einsum":
        return b.node("Einsum", x, table, equation="bsd,vd->bsv")
    if form == "last":
        x = b.node("Gather", x, b.constant(np.int64(b.pick(0, -1))), axis=1)
    return b.node("MatMul", x, b.node("Transpose", table, perm=[1, 0]))


def _network(b: Block, layers: tuple[Callable[[Network, str], str], ...]) -> None:
    n = Network(b, b.pick(1, 2, 4), b.pick(4, 8, 16), b.chance(0.4))
    words = b.pick(20, 33)
    b.size("b", 1, 3), b.size("s", 1, 12)
    ids = b.feed("ids", I64, ("b", "s"), below(words))
    b.feed("keep", I64, ("b", "s"), _padding("right"))
    table = n.weight("table", words, n.width)
    x = b.node("Gather", table, ids)
    if b.chance():
        x = b.node("Mul", x, b.scalar(float(np.sqrt(n.width))))
    states = [x]
    for _ in range(b.pick(2, 2, 3)):
        layer = b.pick(*layers)
        x = layer(n, b.node("Add", x, b.pick(*states)) if b.chance(0.2) else x)
        states.append(x)
    results = {_logits(n, x, table, words): None}
    results.update(dict.fromkeys(t for t in states[1:] if b.chance(0.3)))
    results.update(dict.fromkeys(t for t in n.kept if b.chance(0.1)))
    for name in results:
        b.result(name)


@kind
def joined(b: Block) -> None:
    """Layers of float32 in the spellings of three exporters."""
    _network(b, (_torchscript, _dynamo, _tensorflow))


@kind
def joined_fused(b: Block) -> None:
    """Layers of any exporter beside those that ONNX Runtime's optimiser has fused."""
    _network(b, (_torchscript, _dynamo, _tensorflow, _onnxruntime, _onnxruntime))


@kind
def joined_quantised(b: Block) -> None:
    """Quantised layers beside those of float32."""
    _network(b, (_torchscript, _dynamo, _onnxruntime, _quantised, _quantised))
