"""Generated networks over signals, images and volumes whose batch, length, height or depth may be open.

Convolutions of all kinds, norms, pools, pads and concatenations in a chain with a branch now and then: such
kernels look beyond the ends of an axis and know nowhere how long it is.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hetero_tvm import Span

Task = tuple[onnx.ModelProto, Mapping[str, Any], list[Mapping[str, np.ndarray]]]
"""A model, shapes of its inputs, and draws of them."""

_CHANNELS = (1, 2, 3, 4, 8, 12, 16, 17, 32)
_EXTENTS = {1: (5, 17, 33, 100), 2: (3, 5, 9, 17), 3: (1, 3, 5, 7)}
_MOST_TERMS = 20_000_000
"""Products of a convolution."""
_STEPS = (
    *("conv", "conv", "conv", "depthwise", "groups", "pool", "pad", "branch", "transposed", "activation"),
    *("norm", "norm", "rows"),
)


@dataclass(frozen=True)
class _Volume:
    """A tensor of a network: its name, channels, and extents at the least and the largest sizes."""

    name: str
    channels: int
    least: tuple[int, ...]
    most: tuple[int, ...]


@dataclass
class _Network:
    """What has been generated of a network."""

    choose: random.Random
    numbers: np.random.Generator
    batch: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, *shape: int, terms: int = 1) -> str:
        array = self.numbers.standard_normal(shape).astype("float32") / np.float32(np.sqrt(terms))
        return self.kept(array)

    def kept(self, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def windows(self, x: _Volume, taps: Sequence[int], pools: bool = False) -> _Windows | None:
        """Windows of ``taps`` that fit the least sizes; None where they do not."""
        choose, rank = self.choose, len(x.least)
        strides = [choose.choice([1, 1, 1, 2, 3]) for _ in range(rank)]
        dilations = [1 if pools else choose.choice([1, 1, 1, 2]) for _ in range(rank)]
        before, after = [], []
        for extent, tap, dilation in zip(x.least, taps, dilations, strict=True):
            reach = (tap - 1) * dilation
            most = tap // 2 if pools else reach
            sides = [(reach // 2, reach - reach // 2), (0, 0), (most, 0), (0, most)]
            one, other = min(sides[0], (most, most)) if pools else choose.choice(sides)
            if extent + one + other < reach + 1:
                one = other = most
            if extent + one + other < reach + 1:
                return None
            before.append(one)
            after.append(other)
        return _Windows(list(taps), strides, dilations, before, after)

    def convolution(self, x: _Volume, kind: str) -> _Volume | None:
        choose, rank = self.choose, len(x.least)
        taps = [choose.choice([1, 2, 3, 3, 3, 5] if rank < 3 else [1, 2, 3]) for _ in range(rank)]
        divisors = [n for n in range(2, x.channels + 1) if x.channels % n == 0]
        groups = {"depthwise": x.channels, "groups": choose.choice(divisors or [1])}.get(kind, 1)
        results = groups * choose.choice([1, 2]) if groups > 1 else choose.choice(_CHANNELS)
        windows = self.windows(x, taps)
        if windows is None:
            return None
        most, terms = windows.results(x.most), x.channels // groups * int(np.prod(taps))
        if self.batch * results * terms * int(np.prod(most)) > _MOST_TERMS:
            return None
        weight = self.constant(results, x.channels // groups, *taps, terms=terms)
        bias = [self.constant(results)] if choose.random() < 0.7 else []
        name = self.node("Conv", [x.name, weight, *bias], group=groups, **windows.attributes())
        return _Volume(name, results, windows.results(x.least), most)

    def transposed(self, x: _Volume) -> _Volume | None:
        choose, rank = self.choose, len(x.least)
        taps, strides = [choose.choice([2, 3, 4]) for _ in range(rank)], [choose.choice([1, 2])] * rank
        results = choose.choice([1, 4, 8, 17])
        ends = [(m - 1) * s + t for m, s, t in zip(x.most, strides, taps, strict=True)]
        if self.batch * results * x.channels * int(np.prod(ends)) * int(np.prod(taps)) > _MOST_TERMS:
            return None
        weight = self.constant(x.channels, results, *taps, terms=x.channels * int(np.prod(taps)))
        name = self.node("ConvTranspose", [x.name, weight], kernel_shape=taps, strides=strides)
        least = tuple((m - 1) * s + t for m, s, t in zip(x.least, strides, taps, strict=True))
        return _Volume(name, results, least, tuple(ends))

    def pool(self, x: _Volume) -> _Volume | None:
        taps = [self.choose.choice([1, 2, 3]) for _ in x.least]
        windows = self.windows(x, taps, pools=True)
        if windows is None:
            return None
        kind = self.choose.choice(["MaxPool", "AveragePool"])
        counted = {"count_include_pad": self.choose.choice([0, 1])} if kind == "AveragePool" else {}
        given = {k: v for k, v in windows.attributes().items() if k != "dilations"}
        name = self.node(kind, [x.name], **given, **counted)
        return _Volume(name, x.channels, windows.results(x.least), windows.results(x.most))

    def pad(self, x: _Volume) -> _Volume:
        mode = self.choose.choice(["constant", "edge", "reflect"])
        room = [2 if mode != "reflect" else min(2, extent - 1) for extent in x.least]
        before = [self.choose.randint(0, most) for most in room]
        after = [self.choose.randint(0, most) for most in room]
        pads = self.kept(np.array([0, 0, *before, 0, 0, *after]))
        name = self.node("Pad", [x.name, pads], mode=mode)
        more = [sum(pair) for pair in zip(before, after, strict=True)]
        least, most = (tuple(map(sum, zip(ends, more, strict=True))) for ends in (x.least, x.most))
        return _Volume(name, x.channels, least, most)

    def branch(self, x: _Volume) -> _Volume:
        """What a convolution of 3 taps makes of a tensor, joined with it or a function of it."""
        rank, results = len(x.least), self.choose.choice([x.channels, 4, 5])
        weight = self.constant(results, x.channels, *[3] * rank, terms=x.channels * 3**rank)
        one = self.node("Conv", [x.name, weight], kernel_shape=[3] * rank, pads=[1] * 2 * rank)
        other = self.node("Relu", [x.name]) if self.choose.random() < 0.5 else x.name
        if results == x.channels and self.choose.random() < 0.5:
            return _Volume(self.node("Add", [one, other]), results, x.least, x.most)
        name = self.node("Concat", [one, other], axis=1)
        return _Volume(name, results + x.channels, x.least, x.most)

    def norm(self, x: _Volume) -> _Volume:
        """A norm over groups of channels, over each of them, or of each pixel over all."""
        kind = self.choose.choice(["groups", "instances", "pixels"])
        scale, shift = self.constant(x.channels), self.constant(x.channels)
        if kind == "pixels":
            back = [0, len(x.least) + 1, *range(1, len(x.least) + 1)]
            rows = self.node("Transpose", [x.name], perm=[0, *range(2, len(back)), 1])
            rows = self.node("LayerNormalization", [rows, scale, shift], axis=-1)
            name = self.node("Transpose", [rows], perm=back)
        elif kind == "instances":
            name = self.node("InstanceNormalization", [x.name, scale, shift])
        else:  # as PyTorch writes it
            groups = self.choose.choice([n for n in range(1, x.channels + 1) if x.channels % n == 0])
            whole = self.kept(np.array([0, groups, -1]))
            ones, zeros = self.kept(np.ones(groups, "float32")), self.kept(np.zeros(groups, "float32"))
            flat = self.node("Reshape", [x.name, whole])
            flat = self.node("InstanceNormalization", [flat, ones, zeros])
            plain = self.node("Reshape", [flat, self.node("Shape", [x.name])])
            each = self.kept(np.array([x.channels, *[1] * len(x.least)]))
            scaled = self.node("Mul", [plain, self.node("Reshape", [scale, each])])
            name = self.node("Add", [scaled, self.node("Reshape", [shift, each])])
        return _Volume(name, x.channels, x.least, x.most)

    def rows(self, x: _Volume) -> _Volume:
        """A tensor and what a product makes of its pixels' channels, twice: the blocks of a ConvNeXt."""
        rank, last = len(x.least), x.name
        for _ in range(2):
            rows = self.node("Transpose", [last], perm=[0, *range(2, rank + 2), 1])
            weight = self.constant(x.channels, x.channels, terms=x.channels)
            rows = self.node("MatMul", [rows, weight])
            image = self.node("Transpose", [rows], perm=[0, rank + 1, *range(1, rank + 1)])
            last = self.node("Add", [last, image])
        return _Volume(last, x.channels, x.least, x.most)

    def step(self, x: _Volume) -> _Volume | None:
        """The network with one step more; None where the step does not fit."""
        kind = self.choose.choice(_STEPS)
        if kind in ("conv", "depthwise", "groups"):
            return self.convolution(x, kind)
        if kind == "activation":
            name = self.node(self.choose.choice(["Relu", "Sigmoid", "HardSwish", "Tanh"]), [x.name])
            return _Volume(name, x.channels, x.least, x.most)
        return getattr(self, kind)(x)


@dataclass(frozen=True)
class _Windows:
    taps: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]

    def attributes(self) -> dict[str, list[int]]:
        return {
            "kernel_shape": self.taps,
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": [*self.before, *self.after],
        }

    def results(self, extents: Sequence[int]) -> tuple[int, ...]:
        axes = zip(extents, self.taps, self.strides, self.dilations, self.before, self.after, strict=True)
        return tuple((e + a + b - (t - 1) * d - 1) // s + 1 for e, t, s, d, a, b in axes)


def network(seed: int, most: int) -> Task:
    """A network of at most about so many nodes, with draws at its least, its largest and a size between."""
    choose = random.Random(seed)
    rank = choose.choice([1, 1, 2, 2, 2, 3, 3])
    ends = [choose.choice(_EXTENTS[rank]) for _ in range(rank)]
    opened = [choose.random() < 0.6 for _ in range(rank)]
    least = [choose.randint(1, extent) if free else extent for extent, free in zip(ends, opened, strict=True)]
    batch = choose.choice([1, 1, 2, 3])
    free_batch = batch > 1 and choose.random() < 0.6
    made = _Network(choose, np.random.default_rng(seed), batch)
    x = _Volume("x", choose.choice(_CHANNELS), tuple(least), tuple(ends))
    now = x
    for _ in range(4 * most):
        if len(made.nodes) >= most // 2:
            break
        now = made.step(now) or now
    names = [f"s{axis}" if free else end for axis, (end, free) in enumerate(zip(ends, opened, strict=True))]
    kept = helper.make_tensor_value_info(
        "x", onnx.TensorProto.FLOAT, ["n" if free_batch else batch, x.channels, *names]
    )
    name = now.name if made.nodes else made.node("Relu", ["x"])
    result = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(made.nodes, f"images{seed}", [kept], [result], made.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    spans = [
        Span(low, high) if free and low < high else high
        for low, high, free in zip(least, ends, opened, strict=True)
    ]
    between = [choose.randint(low, high) for low, high in zip(least, ends, strict=True)]
    draws = [
        {"x": made.numbers.standard_normal((images, x.channels, *extents)).astype("float32")}
        for images, extents in (
            (1 if free_batch else batch, least),
            (batch, between),
            (batch, ends),
        )
    ]
    return model, {"x": [Span(1, batch) if free_batch else batch, x.channels, *spans]}, draws
