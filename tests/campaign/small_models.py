"""Small models that campaigns tune, build, damage and call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def network(
    rows: int = 24, width: int = 96, layers: int = 2, seed: int = 0, name: str = "network"
) -> onnx.ModelProto:
    """Products with bias and GELU, a softmax behind them: a few kernels, each with a space of tuples."""
    rng = np.random.default_rng(seed)
    nodes, weights, x = [], [], "x"
    for layer in range(layers):
        wide = width * (2 if layer % 2 == 0 else 1)
        narrow = width * (1 if layer % 2 == 0 else 2)
        weight = (rng.standard_normal((narrow, wide)) / narrow**0.5).astype(np.float32)
        bias = rng.standard_normal(wide).astype(np.float32)
        weights += [numpy_helper.from_array(weight, f"w{layer}"), numpy_helper.from_array(bias, f"b{layer}")]
        nodes.append(helper.make_node("MatMul", [x, f"w{layer}"], [f"m{layer}"], f"matmul{layer}"))
        nodes.append(helper.make_node("Add", [f"m{layer}", f"b{layer}"], [f"a{layer}"], f"add{layer}"))
        nodes.append(helper.make_node("Relu", [f"a{layer}"], [f"r{layer}"], f"relu{layer}"))
        x = f"r{layer}"
    nodes.append(helper.make_node("Softmax", [x], ["y"], "softmax", axis=-1))
    wide = width * (2 if layers % 2 == 1 else 1)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, width])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, wide])]
    graph = helper.make_graph(nodes, name, inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(path: Path, **options: int) -> Path:
    onnx.save(network(**options), str(path))
    return path
