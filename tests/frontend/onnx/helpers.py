"""Small ONNX models, and plain runs of imported ones."""

import os
from collections import Counter

os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ.setdefault("TVM_BIND_THREADS", "0")

import numpy as np
import onnx
from onnx import parser

from hetero_tvm.frontend import import_onnx
from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.reference import sample_inputs
from tests.plain import PLAIN

FLOAT = onnx.TensorProto.FLOAT


def text_model(body: str, *names: str, opset: int = 17, ir: int = 8, extra: str = "") -> onnx.ModelProto:
    """A model from ONNX's text syntax, without the header; ``names`` are for its nodes in order."""
    model = parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}{extra}]>\n{body}')
    for node, name in zip(model.graph.node, names, strict=False):
        node.name = name
    return model


def loop_of_shared_constants(width: int) -> onnx.ModelProto:
    """A Loop [width, width] with two constants in its body, of which one is that of a node in front of it."""
    model = text_model(f"""
        g (float[{width},{width}] x) => (float[{width},{width}] y)
          <int64 rounds = {{1000}}, bool yes = {{1}}, float limit = {{9}}> {{
            start = Add(x, shared) y = Loop(rounds, yes, start) <body = b (int64 i, bool c,
                float[{width},{width}] s) => (bool d, float[{width},{width}] t) {{
                p = Mul(s, shared) q = Add(p, own) t = Add(q, s)
                m = ReduceMax<keepdims = 0>(t) d = Less(m, limit) }}>
        }}""")
    rng = np.random.default_rng(0)
    for name in ("shared", "own"):
        add_weight(model, name, rng.standard_normal((width, width)).astype(np.float32) / 16)
    return model


def add_weight(model: onnx.ModelProto, name: str, array: np.ndarray) -> onnx.ModelProto:
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def bindings(model) -> list:
    return [b for block in model.module["main"].body.blocks for b in block.bindings]


def run_tvm(model, inputs) -> list[np.ndarray]:
    machine = relax.VirtualMachine(tvm.compile(model.module, target=PLAIN), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(inputs[s.name]) for s in model.signature.inputs))
    return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]


def operators(model) -> Counter:
    """How many nodes of each operator cleaning has left."""
    return Counter(node.op_type for node in model.onnx_model.graph.node)


def against_original(source, **options):
    """Compare TVM on the imported model with onnxruntime on the file as it came; returns the import."""
    import onnxruntime

    model = import_onnx(source, **options)
    inputs = sample_inputs(model)
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, theirs in zip(run_tvm(model, inputs), session.run(None, inputs), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return model


def against_reference(source, inputs, atol=1e-6, *, judge="onnx", **options):
    """Compare what cleaning wrote, run by ONNX Runtime, with the file as it came; returns the import.

    The ``judge`` that runs the file is ONNX's own evaluator, or "onnxruntime".
    """
    from onnx.reference import ReferenceEvaluator

    model = import_onnx(source, **options)
    inputs = {name: np.asarray(value) for name, value in inputs.items()}
    if judge == "onnx":
        expected = ReferenceEvaluator(source).run(None, inputs)
    else:
        expected = run_onnxruntime(source, inputs)
    results = run_onnxruntime(model.onnx_model, inputs)
    for value, ours, theirs in zip(source.graph.output, results, expected, strict=True):
        assert (ours.shape, ours.dtype) == (np.shape(theirs), np.asarray(theirs).dtype), value.name
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=atol, err_msg=value.name)
    return model


def contrib_model(kind, values, attributes, *, given, results=1, domain="com.microsoft"):
    """A node of ONNX Runtime's, and its inputs: the values at ``given``; the others are weights."""
    names = ["" if value is None else f"v{n}" for n, value in enumerate(values)]
    inputs = {f"v{n}": np.asarray(values[n]) for n in given}
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
    ]
    weights = [
        onnx.numpy_helper.from_array(np.asarray(value), f"v{n}")
        for n, value in enumerate(values)
        if value is not None and n not in given
    ]
    outputs = [f"y{n}" for n in range(results)]
    node = onnx.helper.make_node(kind, names, outputs, "node", domain=domain, **attributes)
    element = ends[0].type.tensor_type.elem_type
    found = [onnx.helper.make_tensor_value_info(name, element, None) for name in outputs]
    graph = onnx.helper.make_graph([node], "contrib", ends, found, weights)
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=8), inputs


def run_onnxruntime(model, inputs) -> list[np.ndarray]:
    """Results of ONNX Runtime; it gets the inputs that the model has."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {value.name: inputs[value.name] for value in session.get_inputs()})
