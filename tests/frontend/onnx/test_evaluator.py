"""Our operators in onnx's evaluator: in double precision, any window, any axis."""

import math

import numpy as np
import onnx.reference
import pytest
import torch

from hetero_tvm.frontend import import_onnx
from hetero_tvm.frontend.onnx.evaluator import (
    LRN,
    REFERENCE_OPS,
    AveragePool,
    DeformConv,
    GlobalMaxPool,
    LpNormalization,
)
from hetero_tvm.frontend.onnx.graph.detach import detached
from hetero_tvm.reference import run_reference
from hetero_tvm.reference.running import run_double
from tests.frontend.onnx.helpers import add_weight, run_tvm, text_model
from tests.selection import thorough


def test_erf_is_computed_in_double():
    model = import_onnx(text_model("g (float[50] x) => (float[50] y) { y = Erf(x) }"))
    x = np.linspace(-3, 3, 50, dtype=np.float32)
    exact = [math.erf(float(v)) for v in x]
    assert np.abs(run_reference(model, {"x": x}).float64[0] - exact).max() == 0


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("values", [[2, 5], *thorough([[-np.inf, 0]]), [0, np.inf]])
def test_hot_places(axis, values):
    """Depths are vectors of one element in files of most exporters; indices beyond them are nowhere."""
    import onnxruntime

    source = text_model(
        "g (int64[2,3] i, float[2] v) => (float[a,b,c] y) "
        f"{{ d = Constant<value_ints = [4]>() y = OneHot<axis = {axis}>(i, d, v) }}"
    )
    fed = {"i": np.array([[0, 3, -1], [-4, 99, -99]]), "v": np.array(values, np.float32)}
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, fed)
    np.testing.assert_array_equal(run_double(detached(source), fed, ["y"])["y"], expected)
    (result,) = run_tvm(import_onnx(source), fed)
    np.testing.assert_array_equal(result, expected)


def test_elements_of_a_long_axis_are_gathered():
    model = import_onnx(
        text_model("g (float[2,100] x, int64[1,3] i) => (float[1,3] y) {y = GatherElements<axis = 1>(x, i)}")
    )
    x = np.arange(200, dtype=np.float32).reshape(2, 100)
    (y,) = run_reference(model, {"x": x, "i": np.array([[99, -100, 7]])}).float64
    assert y.tolist() == [[99, 0, 7]]


@pytest.mark.parametrize(
    ("op", "attributes", "weight"),
    [
        ("Conv", {"pads": [1, 1, 1, 1], "strides": [2, 2]}, (6, 4, 3, 3)),
        ("Conv", {"pads": [0, 1, 2, 1], "dilations": [2, 1], "group": 2}, (6, 2, 3, 3)),
        ("Conv", {"pads": [1, 1, 1, 1], "group": 4}, (8, 1, 3, 3)),
        ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (6, 4, 2, 2)),
        ("Conv", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, (6, 4, 2, 2)),
        ("Conv", {"auto_pad": "VALID"}, (6, 4, 3, 3)),
        ("MaxPool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}, None),
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}, None),
        ("MaxPool", {"kernel_shape": [3, 4], "pads": [1, 1, 1, 1], "strides": [2, 3], "ceil_mode": 1}, None),
        ("MaxPool", {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1], "strides": [3, 3], "ceil_mode": 1}, None),
        ("MaxPool", {"kernel_shape": [3, 3], "dilations": [2, 3], "ceil_mode": 1, "strides": [2, 2]}, None),
        ("MaxPool", {"kernel_shape": [3, 4], "pads": [1, 1, 1, 1], "ceil_mode": 1}, None),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 2]}, None),
        ("AveragePool", {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "count_include_pad": 1}, None),
        ("AveragePool", {"kernel_shape": [3, 2], "strides": [3, 2], "ceil_mode": 1}, None),
        ("AveragePool", {"kernel_shape": [2, 4], "strides": [2, 3], "ceil_mode": 1}, None),
    ],
)
def test_convolutions_and_pools(op, attributes, weight):
    runtime = pytest.importorskip("onnxruntime")
    generator = np.random.default_rng(0)
    inputs = ["x"] if weight is None else ["x", "w", "b"]
    node = onnx.helper.make_node(op, inputs, ["y"], **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [2, 4, 9, 8])],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
    )
    source = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    if weight is not None:
        add_weight(source, "w", generator.standard_normal(weight).astype(np.float32))
        add_weight(source, "b", generator.standard_normal(weight[0]).astype(np.float32))
    x = generator.standard_normal((2, 4, 9, 8)).astype(np.float32)
    double = run_double(detached(source), {"x": x}, ["y"])["y"]
    single = runtime.InferenceSession(source.SerializeToString()).run(None, {"x": x})[0]
    assert double.dtype == np.float64 and double.shape == single.shape
    np.testing.assert_allclose(double, single, rtol=1e-4, atol=1e-5)


def test_normalization_with_running_statistics_in_every_opset():
    """Opsets 9 to 13 have no mark for training in the node; the statistics are those that it is given."""
    generator = np.random.default_rng(0)
    x, *vectors = (generator.random(shape) + 0.5 for shape in ((2, 3, 4), *[(3,)] * 4))
    scale, bias, mean, variance = (v.reshape(3, 1) for v in vectors)
    wanted = (x - mean) / np.sqrt(variance + 1e-3) * scale + bias
    for opset in (9, 15):
        source = text_model(
            "g (float[2,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3,4] y) "
            "{ y = BatchNormalization<epsilon = 0.001>(x, s, b, m, v) }",
            opset=opset,
        )
        fed = dict(zip(("x", "s", "b", "m", "v"), (x, *vectors), strict=True))
        np.testing.assert_allclose(run_double(detached(source), fed, ["y"])["y"], wanted, rtol=1e-7)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_neighbouring_channels(size):
    """Two images of five channels: onnx's own stops after as many channels as there are images."""
    x = np.random.default_rng(0).normal(size=(2, 5, 3, 1))
    node = onnx.helper.make_node("LRN", ["x"], ["y"], size=size, alpha=0.5, beta=1.0, bias=2.0)
    expected = np.empty_like(x)
    for channel in range(5):
        seen = x[:, max(0, channel - (size - 1) // 2) : channel + size // 2 + 1]
        expected[:, channel] = x[:, channel] / (2.0 + 0.5 / size * np.square(seen).sum(1))
    evaluator = onnx.reference.ReferenceEvaluator(node, new_ops=[LRN])
    np.testing.assert_allclose(evaluator.run(None, {"x": x})[0], expected, rtol=1e-12)


@pytest.mark.parametrize("attributes", [
    {"kernel_shape": [9, 9], "strides": [9, 9], "ceil_mode": 1},
    {"kernel_shape": [9, 9], "strides": [9, 9], "ceil_mode": 1, "count_include_pad": 1},
    {"kernel_shape": [5, 6]},
])  # fmt: skip
def test_means_of_whole_images(attributes):
    """onnx's own evaluator takes the mean of another part of the image where the window reaches beyond it."""
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 6)).astype(np.float32)
    node = onnx.helper.make_node("AveragePool", ["x"], ["y"], **attributes)
    (y,) = onnx.reference.ReferenceEvaluator(node, new_ops=[AveragePool]).run(None, {"x": x})
    np.testing.assert_allclose(y, x.mean((2, 3), keepdims=True), rtol=1e-6, atol=1e-7)  # sums of 30


@pytest.mark.parametrize("attributes", [
    {"kernel_shape": [5, 4], "strides": [1, 2]},
    {"kernel_shape": [7, 7], "pads": [1, 1, 1, 1], "count_include_pad": 1},
])  # fmt: skip
def test_other_means_are_those_of_onnx(attributes):
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 6)).astype(np.float32)
    node = onnx.helper.make_node("AveragePool", ["x"], ["y"], **attributes)
    (ours,) = onnx.reference.ReferenceEvaluator(node, new_ops=[AveragePool]).run(None, {"x": x})
    (theirs,) = onnx.reference.ReferenceEvaluator(node).run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)  # sums of 49 in another order


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_global_maxima(rank):
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5, 6)[:rank])
    node = onnx.helper.make_node("GlobalMaxPool", ["x"], ["y"])
    (y,) = onnx.reference.ReferenceEvaluator(node, new_ops=[GlobalMaxPool]).run(None, {"x": x})
    np.testing.assert_array_equal(y, x.reshape(2, 3, -1).max(2).reshape(2, 3, *[1] * (rank - 2)))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_norms_are_of_magnitudes(p, axis):
    x = np.random.default_rng(0).normal(size=(3, 4))
    x[:, 0] = x[0] = 0
    node = onnx.helper.make_node("LpNormalization", ["x"], ["y"], p=p, axis=axis)
    (y,) = onnx.reference.ReferenceEvaluator(node, new_ops=[LpNormalization]).run(None, {"x": x})
    norm = np.linalg.norm(x, p, axis, keepdims=True)
    np.testing.assert_allclose(y, np.divide(x, norm, out=np.zeros_like(x), where=norm > 0), rtol=1e-12)


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", ["", "<axis = 0>", "<axis = 1>", "<axis = -1>"])
def test_softmaxes_before_and_since_opset_13(operator, opset, axis):
    runtime = pytest.importorskip("onnxruntime")
    source = text_model(
        f"g (float[2,3,4] x) => (float[2,3,4] y) {{ y = {operator} {axis} (x) }}", opset=opset
    )
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    expected = runtime.InferenceSession(source.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(run_double(detached(source), {"x": x}, ["y"])["y"], expected, atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 6), "kernel_shape = [2]"),
        ((2, 3, 4, 4), "kernel_shape = [2, 2], storage_order = 1"),
        ((2, 2, 5, 6), "kernel_shape = [2, 2], pads = [1, 0, 1, 0], dilations = [2, 1]"),
    ],
)
def test_places_of_maxima_count_all_planes(shape, attributes):
    runtime = pytest.importorskip("onnxruntime")
    dims = ",".join(map(str, shape))
    free = ",".join("nchw"[: len(shape)])
    source = text_model(
        f"g (float[{dims}] x) => (float[{free}] y, int64[{free}] i) {{ y, i = MaxPool <{attributes}> (x) }}"
    )
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = runtime.InferenceSession(source.SerializeToString()).run(None, {"x": x})
    found = run_double(detached(source), {"x": x}, ["y", "i"])
    np.testing.assert_array_equal(found["y"], expected[0])
    np.testing.assert_array_equal(found["i"], expected[1])


def test_transposed_convolution_of_groups_has_a_bias_of_each():
    generator = np.random.default_rng(0)
    x, w = (generator.standard_normal(shape, np.float32) for shape in ((1, 4, 3, 3), (4, 2, 2, 2)))
    b = np.array([1, -2, 3, -4], np.float32)
    node = onnx.helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], group=2)
    values = [onnx.helper.make_tensor_value_info(n, 1, None) for n in "xwby"]
    graph = onnx.helper.make_graph([node], "g", values[:3], values[3:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    evaluator = onnx.reference.ReferenceEvaluator(model, new_ops=list(REFERENCE_OPS))
    (y,) = evaluator.run(None, {"x": x, "w": w, "b": b})
    wanted = torch.nn.functional.conv_transpose2d(*map(torch.from_numpy, (x, w, b)), groups=2)
    np.testing.assert_allclose(y, wanted.numpy(), rtol=1e-5, atol=1e-5)  # sums of eight products


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((1, 2, 7), "strides = [3], pads = [1, 0], output_padding = [2]"),
        ((2, 2, 3, 4), "strides = [2, 1], dilations = [2, 3], pads = [0, 1, 2, 1]"),
        ((1, 2, 4, 3), "strides = [2, 2], output_shape = [8, 6]"),
        ((1, 2, 4, 3), 'strides = [2, 2], output_shape = [8, 6], auto_pad = "SAME_UPPER"'),
        ((1, 2, 4, 3), 'strides = [1, 2], auto_pad = "SAME_LOWER"'),
        ((1, 2, 2, 3, 2), "strides = [2, 1, 2], group = 2"),
    ],
)
def test_transposed_convolution(shape, attributes):
    """As ONNX Runtime cuts borders; sums of eight products."""
    runtime = pytest.importorskip("onnxruntime")
    spatial = len(shape) - 2
    dims, free = ",".join(map(str, shape)), ",".join("NCDHW"[: spatial + 2])
    kernel = ",".join("3" * spatial)
    source = text_model(
        f"g (float[{dims}] x, float[2,3,{kernel}] w) => (float[{free}] y)"
        f" {{ y = ConvTranspose <{attributes}> (x, w) }}"
    )
    generator = np.random.default_rng(0)
    feeds = {"x": generator.standard_normal(shape, np.float32)}
    feeds["w"] = generator.standard_normal((2, 3, *[3] * spatial), np.float32)
    (expected,) = runtime.InferenceSession(source.SerializeToString()).run(None, feeds)
    found = run_double(detached(source), feeds, ["y"])
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("opset", "mode"),
    [
        (16, "bilinear"),
        (16, "bicubic"),
        (16, "nearest"),
        (20, "linear"),
        (20, "cubic"),
        (16, None),
        (20, None),
    ],
)
def test_pixels_of_a_grid(opset, mode, padding, corners):
    """By the names that modes have had, in double precision, inside and beyond the image."""
    chosen = f'mode = "{mode}", ' if mode else ""
    source = text_model(
        "g (float[2,3,5,4] x, float[2,3,7,2] grid) => (float[2,3,3,7] y) "
        f'{{ y = GridSample<{chosen}padding_mode = "{padding}", align_corners = {corners}>(x, grid) }}',
        opset=opset,
    )
    rng = np.random.default_rng(corners)
    x = rng.normal(size=(2, 3, 5, 4)).astype(np.float32)
    grid = rng.uniform(-2.5, 2.5, (2, 3, 7, 2)).astype(np.float32)
    method = {"linear": "bilinear", "cubic": "bicubic", None: "bilinear"}.get(mode, mode)
    expected = torch.nn.functional.grid_sample(
        torch.from_numpy(x).double(), torch.from_numpy(grid).double(), method, padding, bool(corners)
    )
    found = run_double(import_onnx(source).clean, {"x": x, "grid": grid}, ["y"])
    np.testing.assert_allclose(found["y"], expected.numpy(), rtol=0, atol=1e-12)


def test_volumes_of_a_grid():
    source = text_model(
        "g (float[1,2,3,4,5] x, float[1,2,2,3,3] grid) => (float[1,2,2,2,3] y) { y = GridSample(x, grid) }",
        opset=20,
    )
    rng = np.random.default_rng(0)
    x, grid = rng.normal(size=(1, 2, 3, 4, 5)), rng.uniform(-1.5, 1.5, (1, 2, 2, 3, 3))
    evaluator = onnx.reference.ReferenceEvaluator(source, new_ops=list(REFERENCE_OPS))
    (found,) = evaluator.run(None, {"x": x, "grid": grid})
    expected = torch.nn.functional.grid_sample(
        torch.from_numpy(x), torch.from_numpy(grid), align_corners=False
    )
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "shape, filters, group", [((2, 4, 9), (6, 2, 3), 2), ((1, 3, 5, 6), (2, 3, 2, 2), 1)]
)
def test_quantised_convolutions_of_any_rank(shape, filters, group):
    import onnxruntime

    kernel = ",".join(map(str, filters[2:]))
    source = text_model(
        f"g (uint8[{','.join(map(str, shape))}] x) => (uint8[{','.join('abcd'[: len(shape)])}] y) "
        f"{{ y = QLinearConv<group = {group}, kernel_shape = [{kernel}]>(x, xs, xz, w, ws, wz, ys, yz, b) }}"
    )
    rng = np.random.default_rng(0)
    add_weight(source, "w", rng.integers(-127, 128, filters).astype(np.int8))
    add_weight(source, "ws", rng.uniform(0.01, 0.02, filters[0]).astype(np.float32))
    add_weight(source, "wz", np.zeros(filters[0], np.int8))
    add_weight(source, "b", rng.integers(-500, 500, filters[0]).astype(np.int32))
    for name, scale, zero in (("x", 0.02, 120), ("y", 0.05, 130)):
        add_weight(source, f"{name}s", np.float32(scale))
        add_weight(source, f"{name}z", np.uint8(zero))
    x = rng.integers(0, 256, shape).astype(np.uint8)
    (found,) = onnx.reference.ReferenceEvaluator(source, new_ops=list(REFERENCE_OPS)).run(None, {"x": x})
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(found, session.run(None, {"x": x})[0])


@pytest.mark.parametrize(
    ("node", "shapes", "zeros"),
    [
        ("MatMulInteger(x, w, xz, wz)", ((3, 5), (5, 4)), (1, 4)),
        (
            "ConvInteger<group = 2, pads = [1, 0, 2, 1], strides = [2, 1]>(x, w, xz, wz)",
            ((1, 4, 6, 5), (6, 2, 3, 3)),
            (1, 1),
        ),
        ("QLinearMatMul(x, xs, xz, w, ws, wz, ys, yz)", ((2, 3, 5), (5, 4)), (1, 1)),
    ],
)
def test_products_of_integers_are_exact(node, shapes, zeros):
    import onnxruntime

    given, found = (",".join("abcd"[: len(shapes[0])]) for _ in range(2))
    result = "uint8" if node.startswith("QLinear") else "int32"
    source = text_model(f"g (uint8[{given}] x) => ({result}[{found}] y) {{ y = {node} }}")
    rng = np.random.default_rng(0)
    add_weight(source, "w", rng.integers(-127, 128, shapes[1]).astype(np.int8))
    add_weight(source, "xz", np.uint8(120))
    add_weight(source, "wz", np.zeros(zeros[1], np.int8) if zeros[1] > 1 else np.int8(0))
    if "xs" in node:
        for name, value in (("xs", 0.02), ("ws", 0.01), ("ys", 0.3)):
            add_weight(source, name, np.float32(value))
        add_weight(source, "yz", np.uint8(100))
    x = rng.integers(0, 256, shapes[0]).astype(np.uint8)
    (ours,) = onnx.reference.ReferenceEvaluator(source, new_ops=list(REFERENCE_OPS)).run(None, {"x": x})
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(ours, session.run(None, {"x": x})[0])


@pytest.mark.parametrize("opset", [10, 19])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_negative_pads_cut(mode, opset):
    import onnxruntime

    pads = [0, -1, 2, 0, 2, -3]
    body = f'y = Pad<mode = "{mode}", pads = {pads}, value = 2.0>(x)'
    if opset > 10:
        body = f"p = Constant<value_ints = {pads}>() v = Constant<value_float = 2.0>() "
        body += f'y = Pad<mode = "{mode}">(x, p, v)'
    source = text_model(f"g (float[2,7,9] x) => (float[a,b,c] y) {{ {body} }}", opset=opset)
    x = np.random.default_rng(0).standard_normal((2, 7, 9)).astype(np.float32)
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(run_double(detached(source), {"x": x}, ["y"])["y"], wanted)


@pytest.mark.parametrize(
    ("groups", "moved", "attributes"),
    [(1, 1, {"pads": [1, 1, 1, 1]}), (2, 2, {"pads": [0, 1, 2, 1], "strides": [2, 1], "dilations": [1, 2]})],
)
def test_deformable_convolutions(groups, moved, attributes):
    """onnx's own takes places in float32."""
    random = np.random.default_rng(0)
    given = {
        "x": random.standard_normal((2, 4, 6, 5)),
        "w": random.standard_normal((6, 4 // groups, 3, 2)),
        "b": random.standard_normal(6),
    }
    names = ["x", "w", "o", "b", "m"]
    node = onnx.helper.make_node("DeformConv", names, ["y"], group=groups, offset_group=moved, **attributes)
    pads, strides, dilations = (attributes.get(n, [1, 1]) for n in ("pads", "strides", "dilations"))
    sizes = [
        (extent + before + after - (k - 1) * d - 1) // s + 1
        for extent, before, after, k, d, s in zip(
            (6, 5), pads[:2], pads[2:], (3, 2), dilations, strides, strict=True
        )
    ]
    given["o"] = 2 * random.standard_normal((2, moved * 12, *sizes))
    given["m"] = random.random((2, moved * 6, *sizes))
    (ours,) = onnx.reference.ReferenceEvaluator(node, new_ops=[DeformConv]).run(None, given)
    (theirs,) = onnx.reference.ReferenceEvaluator(node).run(None, given)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_recurrent_layers_with_relu(direction, tmp_path):
    """RNNs of PyTorch may have it instead of tanh."""
    layer = torch.nn.RNN(3, 4, nonlinearity="relu", bidirectional=direction != "forward").eval()
    x = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0))
    torch.onnx.export(layer, (x,), tmp_path / "model.onnx", input_names=["x"], dynamo=False)
    found = run_reference(import_onnx(tmp_path / "model.onnx"), {"x": x.numpy()})
    for one, exact in zip(found.float64, layer.double()(x.double()), strict=True):
        np.testing.assert_allclose(one, exact.detach(), rtol=1e-12)
