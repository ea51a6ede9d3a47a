"""Small ONNX models and a plain TVM run of an imported one."""

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ.setdefault("TVM_BIND_THREADS", "0")

import numpy as np
import onnx
from onnx import parser

from hetero_tvm.host.tvm import relax, tvm

FLOAT = onnx.TensorProto.FLOAT


def text_model(body: str, *names: str, opset: int = 17, ir: int = 8, extra: str = "") -> onnx.ModelProto:
    """A model from ONNX's text syntax, without the header; ``names`` are for its nodes in order."""
    model = parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}{extra}]>\n{body}')
    for node, name in zip(model.graph.node, names, strict=False):
        node.name = name
    return model


def add_weight(model: onnx.ModelProto, name: str, array: np.ndarray) -> onnx.ModelProto:
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def bindings(model) -> list:
    return [b for block in model.module["main"].body.blocks for b in block.bindings]


def run_tvm(model, inputs) -> list[np.ndarray]:
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    machine = relax.VirtualMachine(tvm.compile(model.module, target=target), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(inputs[s.name]) for s in model.signature.inputs))
    return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]
