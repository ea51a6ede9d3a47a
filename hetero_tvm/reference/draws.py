"""Random numbers in an ONNX file, as it came, that is run to judge: those that its library draws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hetero_tvm.frontend.onnx.graph.draws import LIKE, drawn, draws
from hetero_tvm.frontend.onnx.graph.nodes import nodes_of_model, with_results

Run = Callable[[onnx.ModelProto, list[str]], "tuple[np.ndarray, ...] | None"]
"""Results of a model by their names; None where it cannot be run."""

_DRAWS_OTHERWISE = frozenset({"Bernoulli", "Multinomial"})


def with_draws(proto: onnx.ModelProto, run: Run) -> onnx.ModelProto | None:
    """The model with constants for the nodes that draw numbers; itself without such nodes.

    ``run`` tells their shapes.  None where it cannot, or numbers are drawn in loops, branches or functions,
    or by operators whose numbers are others.
    """
    everywhere = nodes_of_model(proto)
    wanted = [node.output[0] for node in proto.graph.node if draws(node)]
    others = any(node.op_type in _DRAWS_OTHERWISE for node in everywhere)
    if others or len(wanted) < sum(map(draws, everywhere)):
        return None
    if not wanted:
        return proto
    values = run(with_results(proto, wanted), wanted)
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
