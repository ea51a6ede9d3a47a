"""Loops that stay loops: those whose rounds are too many to write out, or known only when they have run.

The body is cleaned as a model of its own, and put back into the node.  States that no round changes are no
states: what they are is taken from around the loop, so that weights among them are constants.  All other
states keep their shapes through all rounds.  What rounds give as rows needs a known number of rounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from hetero_tvm.errors import UnsupportedOperatorError, shortened
from hetero_tvm.frontend.onnx.bodies.loops import rounds_of
from hetero_tvm.frontend.onnx.bodies.promised import PromisedBody
from hetero_tvm.frontend.onnx.graph.constants import (
    ONNX_DOMAINS,
    ConstantPool,
    Types,
    node_inputs,
    rename_inputs,
    tensor_type,
)
from hetero_tvm.frontend.onnx.graph.draws import draws
from hetero_tvm.frontend.onnx.graph.nodes import all_nodes, copy_nodes, copy_values, give_results, set_nodes
from hetero_tvm.frontend.onnx.graph.rounds import OPEN, WRITTEN_OUT
from hetero_tvm.frontend.stored import StoredModel, stub
from hetero_tvm.host import mapped

_KEPT = "cleaned, rounds: "
"""Note at a node whose body is cleaned, before the number of rounds of its rows."""

Clean = Callable[[StoredModel], StoredModel]
"""Cleans a model of fixed shapes."""


def keep_loops(model: onnx.ModelProto, types: Types, pool: ConstantPool, opset: int, cleaned: Clean) -> bool:
    """Clean the bodies of the loops that nothing has written out; returns whether there were any.

    Raises
    ------
    UnsupportedOperatorError : loops that cannot stay loops; lists all, with the reasons.
    """
    nodes: list[onnx.NodeProto] = []
    problems, found = [], False
    for node in model.graph.node:
        if node.op_type != "Loop" or node.domain not in ONNX_DOMAINS or node.doc_string.startswith(_KEPT):
            nodes.append(node)
            continue
        body = PromisedBody(node, opset, types, pool, {})
        try:
            nodes += _Kept(body, model, types, pool).write(cleaned)
            found = True
        except _Unfit as error:
            if node.doc_string == OPEN:
                node.doc_string, found = WRITTEN_OUT, True
                nodes.append(node)
                continue
            problems.append(f"node {node.name!r} (Loop): {error}")
            nodes.append(node)
    if problems and not found:  # else more may be known of them when types are inferred anew
        raise UnsupportedOperatorError(
            "Loops of this model have no form that can be compiled.",
            problems=shortened(problems),
            hint="Give states one shape for all rounds (a tensor of the largest length, and how much of it "
            "counts), and a loop that gives rows a constant number of rounds (where an input that never "
            "changes says how many: --value NAME=NUMBER, values= in Python).  A PyTorch model: "
            "torch.export.save(program, 'net.pt2'), and build that file.",
        )
    if found:
        set_nodes(model.graph, nodes)
    return found


def rounds_of_rows(node: onnx.NodeProto) -> int:
    """Number of rows that a loop gives; 0 for one without rows."""
    return int(node.doc_string.removeprefix(_KEPT))


def with_scalar_ends(graph: onnx.GraphProto) -> None:
    """Let loops count and decide in scalars, where a file has vectors of one, as ONNX Runtime allows."""
    for node in graph.node:
        if node.op_type != "Loop" or node.domain not in ONNX_DOMAINS:
            continue
        body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
        first, last = [], []
        for value in body.input[:2]:
            if _is_vector(value):
                shape, scalar = f"{value.name}/shape", f"{value.name}/scalar"
                one = helper.make_tensor(shape, TensorProto.INT64, [1], [1])
                first.append(helper.make_node("Constant", [], [shape], name=shape, value=one))
                first.append(helper.make_node("Reshape", [scalar, shape], [value.name], name=scalar))
                _make_scalar(value)
        if _is_vector(body.output[0]):
            name = body.output[0].name
            last.append(helper.make_node("Squeeze", [name], [f"{name}/scalar"], name=f"{name}/scalar"))
            _make_scalar(body.output[0])
        if first or last:
            set_nodes(body, [*first, *body.node, *last])


def _is_vector(value: onnx.ValueInfoProto) -> bool:
    return len(value.type.tensor_type.shape.dim) == 1


def _make_scalar(value: onnx.ValueInfoProto) -> None:
    value.name = f"{value.name}/scalar"
    del value.type.tensor_type.shape.dim[:]


class _Unfit(Exception):
    """Reason why a loop cannot stay one."""


class _Kept:
    """One loop."""

    def __init__(self, b: PromisedBody, model: onnx.ModelProto, types: Types, pool: ConstantPool):
        self.b, self.model, self.types, self.pool = b, model, types, pool
        self.body = onnx.GraphProto()
        self.body.CopyFrom(b.attributes["body"])
        self.count = len(b.node.input) - 2
        self.makers = {name: node for node in self.body.node for name in node.output}

    def write(self, cleaned: Clean) -> list[onnx.NodeProto]:
        """Write the node with its cleaned body, and what gives its results."""
        b, body, count = self.b, self.body, self.count
        random = next((n for n in all_nodes(body) if draws(n)), None)
        if random is not None:
            raise _Unfit(f"node {random.name!r} ({random.op_type}) draws other numbers in each round")
        rounds = rounds_of(b) if len(body.output) > count + 1 else None
        if len(body.output) > count + 1 and (rounds is None or rounds < 1):
            raise _Unfit("it gives rows, and how many of them depends on values")
        changing = [n for n in range(count) if not self._stays(n)]
        outer = {body.input[2 + n].name: b.node.input[2 + n] for n in range(count) if n not in changing}
        for node in body.node:
            rename_inputs(node, outer)
        results = [value.name for value in body.output]
        results = [results[0], *(results[1 + n] for n in changing), *results[1 + count :]]
        results = [outer.get(name, name) for name in results]
        part = self._as_model(changing, results)
        clean = cleaned(part)
        self._check(clean.proto.graph, changing)
        inner = self._renamed(clean)
        return self._nodes(inner, changing, rounds)

    def _stays(self, n: int) -> bool:
        """Whether state ``n`` is after a round what it was before."""
        name = self.body.output[1 + n].name
        while name in self.makers and self.makers[name].op_type == "Identity":
            name = self.makers[name].input[0]
        return name == self.body.input[2 + n].name

    def _as_model(self, changing: list[int], results: list[str]) -> StoredModel:
        """The body as a model, whose inputs are the round, the condition, states, and what lies around."""
        body, graph = self.body, onnx.GraphProto(name=self.b.node.name)
        for value, kind in zip(body.input, (TensorProto.INT64, TensorProto.BOOL), strict=False):
            graph.input.append(helper.make_tensor_value_info(value.name, kind, []))
        for n in changing:
            graph.input.append(self._typed(body.input[2 + n].name, self.b.node.input[2 + n]))
        graph.node.extend(body.node)
        graph.initializer.extend(body.initializer)
        known = {value.name for value in graph.input} | set(self.makers) | {t.name for t in body.initializer}
        read = {name for node in body.node for name in node_inputs(node)} | set(results)
        arrays = {}
        for name in sorted(read - known):
            if name in self.pool:
                arrays[name] = self.pool.array(name)
            else:
                graph.input.append(self._typed(name, name))
        give_results(graph, results, self.b.node.name)
        large = {name: array for name, array in arrays.items() if array.nbytes >= mapped.LARGE}
        for name, array in arrays.items():
            if name in large:
                graph.initializer.append(stub(name, *self.pool.type_of(name)))
            else:
                graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        part = onnx.ModelProto(ir_version=self.model.ir_version, graph=graph)
        part.opset_import.extend(self.model.opset_import)
        return StoredModel(part, large)

    def _typed(self, name: str, like: str) -> onnx.ValueInfoProto:
        shape = self.pool.shape(like, self.types)
        if shape is None:
            raise _Unfit(f"the shape of {like!r} depends on values")
        known = self.pool.type_of(like) if like in self.pool else self.types[like]
        return helper.make_tensor_value_info(name, known[0], shape)

    def _check(self, graph: onnx.GraphProto, changing: list[int]) -> None:
        """Refuse states that change their type or shape."""
        given = {value.name: tensor_type(value.type.tensor_type) for value in graph.input}
        for n, value in zip(changing, graph.output[1:], strict=False):
            name = self.body.input[2 + n].name
            before, after = given[name], tensor_type(value.type.tensor_type)
            if before != after:
                shapes = (list(kind[1] or ()) for kind in (before, after))
                raise _Unfit("state {!r} is {} before a round and {} after it".format(name, *shapes))

    def _renamed(self, clean: StoredModel) -> onnx.GraphProto:
        """The cleaned body, with names that are nobody else's; its constants are the model's."""
        graph, prefix = clean.proto.graph, f"{self.b.node.name}/round"
        inner = onnx.GraphProto(name=prefix)
        own = 2 + sum(1 for v in graph.input if v.name in {i.name for i in self.body.input[2:]})
        alias = {value.name: f"{prefix}/{value.name}" for value in graph.input[:own]}
        for tensor in graph.initializer:
            name = f"{prefix}/{tensor.name}"
            if tensor.name not in self.pool:
                self.pool.add_array(name, clean.array(tensor))
                alias[tensor.name] = name
        copy_values(graph.input[:own], inner.input, alias)
        copy_nodes(graph, inner, alias, prefix)
        return inner

    def _nodes(self, inner: onnx.GraphProto, changing: list[int], rounds: int | None) -> list[onnx.NodeProto]:
        b, node = self.b, self.b.node
        states = [node.input[2 + n] for n in changing]
        outputs = [node.output[n] if n < len(node.output) else "" for n in range(len(self.body.output) - 1)]
        names = [f"{node.name}/state_{n}" for n in changing]
        rows = [f"{node.name}/rows_{n}" for n in range(len(outputs) - self.count)]
        loop = helper.make_node(
            "Loop", [b.input(0), b.input(1), *states], [*names, *rows], name=node.name, body=inner
        )
        loop.doc_string = f"{_KEPT}{rounds or 0}"
        b.nodes.append(loop)
        # ONNX finds no shapes of what loops give.
        shapes = [tensor_type(value.type.tensor_type)[1] or () for value in inner.output[1:]]
        wanted = [*(outputs[n] for n in changing), *outputs[self.count :]]
        for place, (name, shape, output) in enumerate(zip([*names, *rows], shapes, wanted, strict=True)):
            if output:
                whole = shape if place < len(names) else (rounds, *shape)
                b.op("Reshape", name, b.ints(np.array(whole, np.int64)), output=output)
        for n in range(self.count):
            if n not in changing and outputs[n]:
                b.op("Identity", node.input[2 + n], output=outputs[n])
        return b.nodes
