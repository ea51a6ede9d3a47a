"""Steps that follow a convolution between quantisers, and move with it."""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.tvm import Var
from hetero_tvm.relax_passes.fusions.integers.quantized import constant_of
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of


def following(graph: Graph, var: Var) -> tuple[list[Var], np.ndarray | None]:
    """The convolution ``var``, the sum with its bias, relu and quantiser, as far as they follow; and that
    bias, one number for each channel."""
    chain, bias = [var], None
    user = graph.only_user(var)
    if user is not None and graph.op_name(user) == "relax.add":
        arrays = [constant_of(graph, arg) for arg in graph.value(user).args]
        wanted = (1, shape_of(var)[1], *[1] * (len(shape_of(var)) - 2))
        bias = next((array for array in arrays if array is not None and array.shape == wanted), None)
        if bias is not None:
            chain.append(user)
    for name in ("relax.nn.relu", "relax.quantize"):
        user = graph.only_user(chain[-1])
        if user is None or graph.op_name(user) != name:
            continue
        if name == "relax.quantize" and any(shape_of(arg) for arg in graph.value(user).args[1:]):
            break  # by channel
        chain.append(user)
    return chain, bias
