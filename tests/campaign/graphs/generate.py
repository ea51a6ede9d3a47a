"""A graph from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

# Each enters its steps into the tables.
from tests.campaign.graphs import (  # noqa: F401
    attention,
    elementwise,
    images,
    indexing,
    layers,
    patterns,
    products,
    quantised,
    shaping,
)
from tests.campaign.graphs.builder import Builder
from tests.campaign.graphs.registry import OPERATORS, PATTERNS
from tests.campaign.graphs.values import CONTRIB, Rejected, Source, Value, onnx_type

OPSETS = (*range(7, 23), 13, 13, 14, 15, 16, 17, 17, 17, 18, 18, 19, 20, 21, 22, 23, 24)
_ATTEMPTS = 12


@dataclass(frozen=True)
class Case:
    """A generated model and what its inputs are drawn from."""

    seed: int
    model: onnx.ModelProto
    sources: tuple[Source, ...]
    shapes: dict[str, tuple[int, ...]]

    def draw(self, number: int) -> dict[str, np.ndarray]:
        """Fresh inputs; the first draw is another one than that of the generator."""
        rng = np.random.default_rng([self.seed, 77, number])
        return {source.name: source.draw(rng) for source in self.sources}


def generate(seed: int, most: int = 40, floats: Sequence[str] = ()) -> Case:
    """The graph of a seed: 5 to ``most`` nodes; its floats are of the types ``floats`` in turn."""
    rng = np.random.default_rng([seed, 1])
    drawn = str(rng.choice(["float32", "float16", "float64", "bfloat16"], p=[0.82, 0.08, 0.07, 0.03]))
    dtype = floats[seed % len(floats)] if floats else drawn
    b = Builder(rng, int(rng.choice(OPSETS)), dtype, special=bool(rng.random() < 0.12))
    target = b.number(5, most)
    share = b.one([0.15, 0.35, 0.6])
    tables = [_table(OPERATORS), _table(PATTERNS)]
    tries = 0
    while len(b.nodes) < target and tries < _ATTEMPTS * target:
        tries += 1
        steps, weights = tables[b.chance(share) if dtype == "float32" else b.chance(share / 2)]
        step = steps[int(rng.choice(len(steps), p=weights))]
        mark = b.mark()
        try:
            step(b)
            if len(b.nodes) > most + 5:
                raise Rejected("too many nodes")
        except Rejected:
            b.back(mark)
    return _finished(b, seed)


def _table(entries):
    weights = np.array([weight for weight, _ in entries])
    return [step for _, step in entries], weights / weights.sum()


def _finished(b: Builder, seed: int) -> Case:
    """The model: results are what nobody reads, and some of the rest; a few leaves stay unused."""
    read = {name for node in b.nodes for name in node.input}
    read |= {
        name
        for node in b.nodes
        for a in node.attribute
        if a.HasField("g")
        for n in a.g.node
        for name in n.input
    }
    made = {name for node in b.nodes if node.op_type != "Constant" for name in node.output}
    values = {v.name: v for v in b.values}
    leaves = [v for v in b.values if v.name in made and v.name not in read]
    chosen: list[Value] = [v for v in leaves if len(leaves) == 1 or b.chance(0.93)] or leaves[:1]
    chosen += [v for v in b.outputs if v.name in made]
    chosen += [v for v in b.values if v.name in made and b.chance(0.04)]
    unique = list(dict.fromkeys(v.name for v in chosen if v.name in made))
    order = [values[name] for name in unique]
    b.rng.shuffle(order)
    needed = read | {v.name for v in order}
    sources = [s for s in b.sources if s.name in needed or b.chance(0.3)]
    weights = [w for w in b.weights if w.name in needed or b.chance(0.3)]
    shapes: dict[str, tuple[int, ...]] = {}
    inputs = []
    for source in sources:
        dims: list = list(source.shape)
        if dims and b.chance(0.1) and 0 not in dims:
            dims[0] = f"n_{source.name}"
            shapes[source.name] = source.shape
        inputs.append(helper.make_tensor_value_info(source.name, onnx_type(source.dtype), dims))
    if b.chance(0.1):  # as IR 3 wanted it
        inputs += [helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in weights]
    outputs = [helper.make_tensor_value_info(v.name, onnx_type(v.dtype), v.shape) for v in order]
    graph = helper.make_graph(b.nodes, f"graph{seed}", inputs, outputs, weights)
    if b.chance(0.3):
        inner = [v for v in b.values if v.name in made and v.name not in unique]
        graph.value_info.extend(
            helper.make_tensor_value_info(v.name, onnx_type(v.dtype), v.shape) for v in inner
        )
    imports = [helper.make_opsetid("", b.opset)]
    if any(node.domain for node in b.nodes):
        imports.append(helper.make_opsetid(CONTRIB, 1))
    model = helper.make_model(graph, opset_imports=imports, ir_version=8 if b.opset < 19 else 10)
    return Case(seed, model, tuple(sources), shapes)
