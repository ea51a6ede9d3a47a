"""Models taken apart: large weights become arrays, wherever in the model they are.

Weights of subgraphs (``If``, ``Loop``, ``Scan``) become initializers of the whole model, which subgraphs
may read.  Functions may read nothing from outside: their weights become further inputs, which every call
gives them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from hetero_tvm.frontend.onnx.graph.constants import rename_inputs, subgraphs
from hetero_tvm.frontend.stored import StoredModel, is_stub, stored_array, stub
from hetero_tvm.host import mapped

_FREE_INITIALIZERS = 4
"""Version of ONNX's format since which initializers need not be inputs."""

_Key = tuple[str, str, str]
"""Domain, name and overload of a function, as its calls have them."""


def detached(model: onnx.ModelProto) -> StoredModel:
    """The model with its large weights apart; ``model`` stays as it is.

    A node that holds a large constant becomes an initializer, which has the same meaning.
    """
    return _Detaching(model).result()


@dataclass
class _Scope:
    """Graph or function that the large weights of its subgraphs go to.

    Parameters
    ----------
    names : how often each name is defined in it, its subgraphs included.
    function : the function; None for the graph of the model.
    weights : further inputs of the function, by the name of the weight in the model.
    """

    names: Counter[str]
    function: onnx.FunctionProto | None = None
    weights: dict[str, str] = field(default_factory=dict)

    def fresh(self, name: str, defined: int = 0) -> str:
        """A name that nothing else has, where ``name`` itself is defined ``defined`` times by its owner."""
        result, number = name, 0
        while self.names[result] > (defined if result == name else 0):
            number += 1
            result = f"{name}/{number}"
        self.names[result] = max(1, self.names[result])
        return result

    def input_for(self, weight: str, name: str, defined: int = 0) -> str:
        """Name in here of a weight of the model."""
        if self.function is None:
            return weight
        if weight not in self.weights:
            self.weights[weight] = self.fresh(name, defined)
            self.function.input.append(self.weights[weight])
        return self.weights[weight]


class _Detaching:
    """One model on its way."""

    def __init__(self, model: onnx.ModelProto):
        self.model, self.light = model, onnx.ModelProto()
        self.arrays: dict[str, np.ndarray] = {}
        self.free = model.ir_version >= _FREE_INITIALIZERS
        self.nested = self.free and any(_is_large(tensor) for tensor in _inner_tensors(model))
        self.main = _Scope(Counter(_names(model.graph)) if self.nested else Counter())
        self.functions = {_key(function): function for function in model.functions} if self.nested else {}
        self.done: dict[_Key, _Scope] = {}

    def result(self) -> StoredModel:
        for descriptor, value in self.model.ListFields():
            if descriptor.name not in ("graph", "functions"):
                _copy_field(self.light, descriptor.name, value)
        for function in self.model.functions:
            if self.functions.get(_key(function)) is function:
                self._function(function, ())
                self.light.functions.append(self.done[_key(function)].function)
            else:
                self.light.functions.append(function)
        if self.model.HasField("graph"):
            self._graph(self.model.graph, self.light.graph)
        return StoredModel(self.light, self.arrays)

    def _graph(self, graph: onnx.GraphProto, light: onnx.GraphProto) -> None:
        light.SetInParent()
        _copy_fields(graph, light, but=("initializer", "node"))
        names = _definitions(graph)
        for tensor in graph.initializer:
            if names[tensor.name] > 1 or not self._detach(tensor, tensor.name):
                light.initializer.add().CopyFrom(tensor)
        for node in graph.node:
            value = _constant(node) if self.free else None
            if value is None or names[node.output[0]] > 1 or not self._detach(value, node.output[0]):
                self._node(node, light.node.add(), self.main)

    def _function(self, function: onnx.FunctionProto, callers: tuple[_Key, ...]) -> None:
        """Take a function apart, after those that it calls."""
        key = _key(function)
        light = onnx.FunctionProto()
        if key in self.done:
            return
        scope = self.done[key] = _Scope(Counter(_names(function)), light)
        _copy_fields(function, light, but=("node",))
        for node in function.node:
            value = _constant(node)
            name = self._take(value, node.output[0], function.output, scope) if value is not None else None
            if name is None:
                self._node(node, light.node.add(), scope, (*callers, key))

    def _node(
        self, node: onnx.NodeProto, light: onnx.NodeProto, scope: _Scope, callers: tuple[_Key, ...] = ()
    ) -> None:
        """Copy a node without the large weights of its subgraphs, and give it those of what it calls."""
        if not self.nested:
            light.CopyFrom(node)
            return
        _copy_fields(node, light, but=("attribute",))
        for attribute in node.attribute:
            copy = light.attribute.add()
            if not subgraphs(attribute):
                copy.CopyFrom(attribute)
                continue
            _copy_fields(attribute, copy, but=("g", "graphs"))
            if attribute.HasField("g"):
                self._subgraph(attribute.g, copy.g, scope, callers)
            for graph in attribute.graphs:
                self._subgraph(graph, copy.graphs.add(), scope, callers)
        key = node.domain, node.op_type, node.overload
        called = self.functions.get(key)
        if called is None or key in callers:  # a recursion, which the check refuses
            return
        self._function(called, callers)
        weights = self.done[key].weights
        if weights:
            light.input.extend([""] * (len(called.input) - len(light.input)))
            light.input.extend(scope.input_for(weight, name) for weight, name in weights.items())

    def _subgraph(
        self, graph: onnx.GraphProto, light: onnx.GraphProto, scope: _Scope, callers: tuple[_Key, ...]
    ) -> None:
        """Copy a subgraph; its large weights go to the scope around it."""
        light.SetInParent()
        _copy_fields(graph, light, but=("initializer", "node", "value_info"))
        names, results = _definitions(graph), {value.name for value in graph.output}
        results |= {value.name for value in graph.input}
        alias: dict[str, str] = {}
        for tensor in graph.initializer:
            name = self._take(tensor, tensor.name, results, scope) if names[tensor.name] == 1 else None
            if name is None:
                light.initializer.add().CopyFrom(tensor)
            else:
                alias[tensor.name] = name
        for node in graph.node:
            value = _constant(node)
            single = value is not None and names[node.output[0]] == 1
            name = self._take(value, node.output[0], results, scope) if single else None
            if name is None:
                self._node(node, light.node.add(), scope, callers)
            else:
                alias[node.output[0]] = name
        light.value_info.extend(value for value in graph.value_info if value.name not in alias)
        renamed = {name: new for name, new in alias.items() if name != new}
        for node in light.node:
            rename_inputs(node, renamed)

    def _take(self, tensor: TensorProto, name: str, results: Any, scope: _Scope) -> str | None:
        """Name that a weight of a subgraph or function has in ``scope`` from now on; None where it stays."""
        if name in results or not _is_large(tensor):
            return None
        inside = scope.function is None
        hint = name if inside else f"{scope.function.name}/{name}"
        weight = self.main.fresh(hint, defined=int(inside))
        return scope.input_for(weight, name, defined=1) if self._detach(tensor, weight) else None

    def _detach(self, tensor: TensorProto, name: str) -> bool:
        """Put the values of a large tensor into ``arrays``, and a stub into the graph; whether it is one.

        A tensor in an external file becomes an initializer as it is.
        """
        if not name or not _is_large(tensor):
            return False
        if tensor.data_location == TensorProto.EXTERNAL:
            self.light.graph.initializer.add().CopyFrom(tensor)
            self.light.graph.initializer[-1].name = name
            return True
        dtype = stored_array(tensor, len(tensor.raw_data))
        dims = tuple(tensor.dims)
        self.arrays[name] = mapped.mapped(np.frombuffer(tensor.raw_data, dtype).reshape(dims))
        self.light.graph.initializer.append(stub(name, tensor.data_type, dims))
        return True


def _is_large(tensor: TensorProto) -> bool:
    """Whether a tensor is worth an array of its own, here or in its file."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return tensor.HasField("raw_data") and stored_array(tensor, len(tensor.raw_data)) is not None
    try:
        item = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError:  # an unknown type, which the import will refuse
        return False
    return (
        not is_stub(tensor) and bool(tensor.name) and np.prod(tensor.dims, dtype=float) * item >= mapped.LARGE
    )


def _constant(node: onnx.NodeProto) -> TensorProto | None:
    """Tensor that a node gives, where it does nothing else."""
    if node.op_type != "Constant" or node.domain or len(node.attribute) != 1 or len(node.output) != 1:
        return None
    return node.attribute[0].t if node.attribute[0].HasField("t") and node.output[0] else None


def _key(function: onnx.FunctionProto) -> _Key:
    return function.domain, function.name, function.overload


def _definitions(graph: onnx.GraphProto) -> Counter[str]:
    """Number of times that a graph itself defines each name, by an initializer or a node."""
    names = Counter(tensor.name for tensor in graph.initializer)
    names.update(name for node in graph.node for name in node.output)
    return names


def _names(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[str]:
    """Names that a graph or function defines, with those of its subgraphs."""
    if isinstance(graph, onnx.FunctionProto):
        yield from graph.input
    else:
        yield from (value.name for value in graph.input)
        yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from _names(inner)


def _inner_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Tensors in subgraphs and functions."""
    graphs = [*model.functions]
    graphs += [g for node in model.graph.node for a in node.attribute for g in subgraphs(a)]
    while graphs:
        graph = graphs.pop()
        yield from getattr(graph, "initializer", ())
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                graphs += subgraphs(attribute)


def _copy_fields(message: Any, light: Any, but: tuple[str, ...]) -> None:
    for descriptor, value in message.ListFields():
        if descriptor.name not in but:
            _copy_field(light, descriptor.name, value)


def _copy_field(light: Any, name: str, value: object) -> None:
    """Copy a field of any kind, as ``ListFields`` gives it."""
    target = getattr(light, name)
    if hasattr(target, "MergeFrom"):  # messages, and repeated fields of any kind
        target.MergeFrom(value)
    else:
        setattr(light, name, value)
