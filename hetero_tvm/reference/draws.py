"""Random numbers in an ONNX file, as it came, that is run to judge: those that its library draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hetero_tvm.frontend.onnx.graph.draws import LIKE, drawn, draws
from hetero_tvm.frontend.onnx.graph.nodes import inner_nodes

Run = Callable[[onnx.ModelProto, list[str]], "tuple[np.ndarray, ...] | None"]
"""Results of a model by their names; None where it cannot be run."""

_DRAWS_OTHERWISE = frozenset({"Bernoulli", "Multinomial"})


def with_draws(proto: onnx.ModelProto, run: Run) -> onnx.ModelProto | None:
    """The model with constants for the nodes that draw numbers; itself without such nodes.

    ``run`` tells their shapes.  None where it cannot, or numbers are drawn in loops, branches or functions,
    or by operators whose numbers are others.
    """
    if any(node.op_type in _DRAWS_OTHERWISE for node in _all_nodes(proto)):
        return None
    nodes = [node for node in proto.graph.node if draws(node)]
    if len(nodes) < sum(map(draws, _all_nodes(proto))):
        return None
    if not nodes:
        return proto
    asked = onnx.ModelProto()
    asked.CopyFrom(proto)
    known = {value.name for value in proto.graph.output}
    wanted = [node.output[0] for node in nodes]
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in known)
    values = run(asked, wanted)
    if values is None:
        return None
    settled = onnx.ModelProto()
    settled.CopyFrom(proto)
    found = dict(zip(wanted, values, strict=True))
    for node in settled.graph.node:
        if draws(node):
            value = found[node.output[0]]
            like = (helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            numbers = drawn(node, like if node.op_type in LIKE else None)
            if numbers is None:
                return None
            constant = numpy_helper.from_array(numbers)
            node.CopyFrom(helper.make_node("Constant", [], list(node.output), node.name, value=constant))
    return settled


def _all_nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Nodes of a model, of its functions and of the graphs in them."""
    for part in (proto.graph, *proto.functions):
        yield from part.node
        yield from inner_nodes(part)
