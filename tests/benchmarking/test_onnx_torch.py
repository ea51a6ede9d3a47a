import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")

from hetero_tvm import zoo
from hetero_tvm.benchmarking.onnx_torch import to_torch
from hetero_tvm.errors import UnsupportedOperatorError
from tests.selection import thorough


def both(model, inputs):
    module = to_torch(model).eval()
    with torch.inference_mode():
        ours = [value.numpy() for value in module(*(torch.from_numpy(inputs[n]) for n in module.input_names))]
    return ours, onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)


@pytest.mark.parametrize("name", [name for name in zoo.names() if name.endswith("-tiny")])
def test_zoo(name):
    from hetero_tvm.frontend import import_model
    from hetero_tvm.reference import sample_inputs

    model = import_model(f"zoo:{name}").onnx_model
    for ours, theirs in zip(*both(model, sample_inputs(model)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize(
    "name", ["minilm-l6-tiny", *thorough(["gpt2-small-tiny"]), "llama-160m-tiny", "resnet50-tiny"]
)
def test_half_precision_is_half_throughout(name):
    from hetero_tvm.frontend import import_model
    from hetero_tvm.reference import sample_inputs

    model = import_model(f"zoo:{name}").onnx_model
    inputs = {key: torch.from_numpy(value) for key, value in sample_inputs(model).items()}
    exact = to_torch(model).eval()
    module = to_torch(model, half=True).eval()
    seen = set()

    class Watch(torch.fx.Interpreter):
        def run_node(self, node):
            result = super().run_node(node)
            seen.update({result.dtype} if isinstance(result, torch.Tensor) else ())
            return result

    given = [inputs[name] for name in module.input_names]
    with torch.inference_mode():
        truth = exact(*given)
        found = Watch(module).run(*(x.half() if x.dtype == torch.float32 else x for x in given))
    assert torch.float16 in seen and torch.float32 not in seen
    for ours, theirs in zip(found, truth, strict=True):
        assert (ours.float() - theirs).abs().max() <= 2e-2 * theirs.abs().max()


TWO_BY_TWO = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}
SAME = {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}
CASES = [
    ("Softmax", {"axis": 1}, [(2, 3, 4)], [], 12),
    ("Softmax", {"axis": 1}, [(2, 3, 4)], [], 13),
    (
        "MaxPool",
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        [(1, 2, 7, 8)],
        [],
        13,
    ),
    (
        "AveragePool",
        {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        [(1, 2, 6, 6)],
        [],
        13,
    ),
    ("Conv", {"pads": [0, 1, 2, 3], "strides": [2, 1]}, [(1, 2, 7, 8), (4, 2, 3, 3)], [], 13),
    ("Conv", {"auto_pad": "SAME_LOWER"}, [(1, 2, 7, 8), (4, 2, 2, 2)], [], 13),
    ("Gemm", {"transA": 1, "alpha": 0.5, "beta": 2.0}, [(3, 2), (3, 4), (4,)], [], 13),
    ("Reshape", {}, [(2, 3, 4)], [[0, -1]], 13),
    ("Slice", {}, [(4, 5)], [[1, 0], [9, -1], [0, 1], [2, 1]], 13),
    ("Split", {"axis": 1}, [(2, 6)], [[2, 4]], 13),
    ("Unsqueeze", {}, [(2, 3)], [[-1, 0]], 13),
    ("ReduceMean", {"axes": [-1], "keepdims": 0}, [(2, 3)], [], 13),
    ("Transpose", {"perm": [0, 2, 3, 1]}, [(2, 3, 4, 5)], [], 13),
    ("Div", {}, [(2, 3), ()], [], 13),
    ("ArgMax", {"axis": 1, "keepdims": 0}, [(2, 5)], [], 13),
    ("CumSum", {"exclusive": 1, "reverse": 1}, [(2, 5)], [1], 14),
    ("DepthToSpace", {"blocksize": 2}, [(1, 8, 2, 3)], [], 13),
    ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}, [(1, 8, 2, 3)], [], 13),
    ("GatherElements", {"axis": 1}, [(2, 3)], [[[2, 0], [1, -1]]], 13),
    ("GatherND", {}, [(2, 3, 4)], [[[1, 0], [-1, 2]]], 13),
    ("GlobalMaxPool", {}, [(2, 3, 4, 5)], [], 13),
    ("InstanceNormalization", {"epsilon": 1e-3}, [(2, 3, 4, 5), (3,), (3,)], [], 13),
    ("PRelu", {}, [(2, 3), (3,)], [], 16),
    ("Pad", {}, [(1, 2, 3, 4)], [[0, 1, 0, 2, 0, 0, 3, 1]], 13),
    ("Pad", {}, [(2, 3)], [[1, 0, 0, 2], 7.5], 13),
    ("Pad", {"mode": "reflect"}, [(2, 3, 4, 5)], [[0, 0, 1, 2, 0, 0, 2, 1]], 13),
    ("Pad", {"mode": "edge"}, [(3, 4)], [[0, 1, 0, 2]], 13),
    ("ReduceL2", {"axes": [1], "keepdims": 0}, [(2, 3)], [], 13),
    ("ReduceMin", {}, [(2, 3)], [], 13),
    ("Softplus", {}, [(2, 3)], [], 13),
    ("Sum", {}, [(2, 3), (3,), (2, 1)], [], 13),
    ("Tile", {}, [(2, 3)], [[2, 1]], 13),
]


@pytest.mark.parametrize(("name", "attributes", "shapes", "constants", "opset"), CASES)
def test_operator(name, attributes, shapes, constants, opset):
    generator = np.random.default_rng(0)
    inputs = {
        f"x{i}": np.asarray(generator.uniform(1, 2, shape), "float32") for i, shape in enumerate(shapes)
    }
    arrays = [np.array(value) for value in constants]
    arrays = [array.astype("float32") if array.dtype.kind == "f" else array for array in arrays]
    weights = [numpy_helper.from_array(array, f"c{i}") for i, array in enumerate(arrays)]
    names = [f"y{i}" for i in range(2 if name == "Split" else 1)]
    kind = TensorProto.INT64 if name == "ArgMax" else TensorProto.FLOAT
    node = helper.make_node(name, [*inputs, *(weight.name for weight in weights)], names, **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(key, TensorProto.FLOAT, value.shape) for key, value in inputs.items()],
        [helper.make_tensor_value_info(key, kind, None) for key in names],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    for ours, theirs in zip(*both(model, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_every_missing_operator_is_listed():
    nodes = [helper.make_node("Det", ["x"], ["d"]), helper.make_node("NonZero", ["x"], ["n"])]
    graph = helper.make_graph(
        nodes, "odd", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])], []
    )
    with pytest.raises(UnsupportedOperatorError, match=r"Det \(1 nodes\)[\s\S]*NonZero"):
        to_torch(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
