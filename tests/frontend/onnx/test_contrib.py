"""ONNX Runtime's own operators: imported, fused under the names of the plain ones, equal to its numbers."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import HeteroTVMError, UnsupportedOperatorError
from hetero_tvm.frontend.onnx.contrib import EXPANSIONS
from tests.frontend.onnx.helpers import run_onnxruntime
from tests.selection import named, thorough

N = 24
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


class Model:
    """Collects nodes; every result becomes an output."""

    def __init__(self, opset=17):
        self.opset, self.nodes, self.weights, self.inputs, self.outputs = opset, [], [], {}, []

    def weight(self, *shape):
        name, generator = f"w{len(self.weights)}", np.random.default_rng([len(self.weights), *shape])
        self.weights.append(numpy_helper.from_array(generator.standard_normal(shape, np.float32), name))
        return name

    def input(self, *shape, name=None, values=None):
        name = name or f"x{len(self.inputs)}"
        generator = np.random.default_rng([7, len(self.inputs)])
        self.inputs[name] = generator.standard_normal(shape, np.float32) if values is None else values
        return name

    def node(self, kind, *inputs, domain="com.microsoft", outputs=(FLOAT,), **attributes):
        names = [f"y{len(self.nodes)}_{i}" if dtype else "" for i, dtype in enumerate(outputs)]
        self.nodes.append(
            helper.make_node(kind, inputs, names, f"node{len(self.nodes)}", domain=domain, **attributes)
        )
        self.outputs += [(n, dtype) for n, dtype in zip(names, outputs, strict=True) if dtype]
        return names[0]

    def proto(self):
        ranks = {FLOAT: 3, INT32: 1}
        ends = [helper.make_tensor_value_info(n, t, [None] * ranks[t]) for n, t in self.outputs]
        starts = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in self.inputs.items()
        ]
        graph = helper.make_graph(self.nodes, "contrib", starts, ends, self.weights)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def check(self, tolerance=2e-6):
        """Run here and in ONNX Runtime; returns the report and the plan."""
        proto = self.proto()
        plan = optimize_model(import_model(proto))
        ours = build_model(plan).run(self.inputs)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        theirs = session.run([name for name, _ in self.outputs], self.inputs)
        for (name, _), one, two in zip(self.outputs, ours, theirs, strict=True):
            assert one.shape == two.shape and one.dtype == two.dtype, name
            # Both round differently: float32 with a polynomial GELU of absolute error 1.5e-6.
            np.testing.assert_allclose(
                one, two, rtol=0, atol=tolerance * max(1, np.abs(two).max()), err_msg=name
            )
        return plan


@pytest.mark.parametrize("opset", [12, *thorough([17]), 20])
def test_norms_and_activations(opset):
    m = Model(opset)
    x, skip, row = m.input(2, 3, N), m.input(2, 3, N), m.input(N)
    gamma, beta, bias = m.weight(N), m.weight(N), m.weight(N)
    m.node("SkipLayerNormalization", x, skip, gamma, beta, bias, epsilon=1e-3)
    m.node("SkipLayerNormalization", skip, x, gamma, beta, outputs=(FLOAT, 0, 0, FLOAT))
    m.node("SkipLayerNormalization", x, skip, gamma, epsilon=1e-5)
    m.node(
        "SkipSimplifiedLayerNormalization", x, skip, gamma, bias, outputs=(FLOAT, 0, 0, FLOAT), epsilon=0.1
    )
    m.node("SkipSimplifiedLayerNormalization", x, skip, gamma)
    m.node("SimplifiedLayerNormalization", x, gamma, domain="", axis=-1, epsilon=1e-5)
    m.node("Gelu", x)
    m.node("BiasGelu", x, bias)
    m.node("FastGelu", x)
    m.node("FastGelu", x, row)
    m.node("QuickGelu", x)
    plan = m.check(tolerance=5e-6)
    counts = {"layer_norm": 3, "rms_norm": 3, "gelu": 4, "quick_gelu": 1}
    assert plan.report.fusions == counts and not plan.report.misses
    assert {node for names in plan.sources.values() for node in names if node.startswith("node0/")}


def test_quick_gelu_of_another_slope():
    m = Model()
    m.node("QuickGelu", m.input(1, 2, N), alpha=1.3)
    assert m.check().report.fusions == {}


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("places", [True, False])
@pytest.mark.parametrize("mask", [True, False])
def test_embeddings(segments, places, mask):
    m = Model()
    generator = np.random.default_rng(1)
    index = lambda most: generator.integers(0, most, (2, 5)).astype("int32")  # noqa: E731
    ids = m.input(values=index(11), name="ids")
    types = m.input(values=index(2), name="types") if segments else ""
    tables = m.weight(11, N), m.weight(9, N), m.weight(2, N) if segments else ""
    unmasked = m.input(values=np.int32([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]), name="mask") if mask else ""
    at = [m.input(values=index(9), name="places")] if places else []
    outputs = (FLOAT, INT32, FLOAT) if mask and segments else (FLOAT, INT32)
    m.node(
        "EmbedLayerNormalization",
        ids,
        types,
        *tables,
        m.weight(N),
        m.weight(N),
        unmasked,
        *at,
        outputs=outputs,
        epsilon=1e-6,
    )
    plan = m.check()
    fused = {"layer_norm": 1} if len(outputs) == 3 else {"layer_norm": 1, "embedding_norm": 1}
    assert plan.report.fusions == fused


@pytest.mark.parametrize("summed", [*thorough([True]), False])
def test_lengths_of_sequences_of_no_stated_shape(summed):
    """The optimiser for transformers states no shapes; masks of lengths are vectors all the same."""
    m = Model()
    ids = m.input(values=np.int32([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]), name="ids")
    mask = m.input(values=np.int32([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]), name="mask")
    tables = m.weight(11, N), m.weight(9, N), ""
    norm = ids, "", *tables, m.weight(N), m.weight(N), mask
    x = m.node("EmbedLayerNormalization", *norm, outputs=(FLOAT, INT32))
    lengths = "y0_1"
    if summed:
        m.weights.append(numpy_helper.from_array(np.array([1]), "axis"))
        lengths = m.node("ReduceSum", mask, "axis", domain="", keepdims=0, outputs=(INT32,))
    m.outputs = []  # they would have shapes
    m.node("Attention", x, m.weight(N, 3 * N), m.weight(3 * N), lengths, num_heads=4)
    m.check(5e-6)


@pytest.mark.parametrize("index", [-1, 11, -12])
@pytest.mark.parametrize("operator", ["EmbedLayerNormalization", "RotaryEmbedding"])
def test_rows_are_not_counted_from_the_end(operator, index):
    """ONNX Runtime refuses an index below 0; a lookup of ONNX's own takes it for a row at the end."""
    m = Model()
    if operator == "RotaryEmbedding":
        x = m.input(1, 3, 16)
        m.node(
            operator, x, m.input(values=np.array([[0, 1, 10]]), name="i"), m.weight(11, 4), m.weight(11, 4)
        )
    else:
        ids = m.input(values=np.int32([[0, 1, 10]]), name="i")
        tables = m.weight(11, N), m.weight(9, N), ""
        m.node(operator, ids, "", *tables, m.weight(N), m.weight(N), outputs=(FLOAT, INT32))
    built = build_model(optimize_model(import_model(m.proto())), use_shipped=False)
    built.run(m.inputs)
    with pytest.raises(HeteroTVMError, match=r"an index lies outside \[0, 11\)"):
        built.run({**m.inputs, "i": np.full_like(m.inputs["i"], index)})


def test_the_sum_of_a_skip_norm_joins_the_product_before_it():
    m = Model()
    x, skip = m.input(2, 3, 8), m.input(2, 3, N)
    product = m.node("MatMul", x, m.weight(8, N), domain="")
    m.node("SkipLayerNormalization", product, skip, m.weight(N), m.weight(N), m.weight(N))
    m.outputs = m.outputs[1:]
    plan = m.check()
    assert [task.op.label for task in plan.tasks if task.op.kind == "matmul"] == [
        "matmul_6x8x24_residual_bias"
    ]
    assert plan.report.fusions == {"layer_norm": 1, "matmul_epilogue": 1}


@pytest.mark.parametrize(
    ("kind", "count", "outputs", "words"),
    [
        ("SkipLayerNormalization", 4, (FLOAT, FLOAT), "statistics"),
        ("SkipSimplifiedLayerNormalization", 3, (FLOAT, 0, FLOAT), "statistics"),
    ],
)
def test_refused(kind, count, outputs, words):
    m = Model()
    x = m.input(1, 2, N)
    m.node(kind, x, x, *(m.weight(N) for _ in range(count - 2)), outputs=outputs)
    with pytest.raises(UnsupportedOperatorError, match=f"node0.*{words}"):
        import_model(m.proto())


def test_another_axis_is_refused():
    m = Model()
    m.node("SimplifiedLayerNormalization", m.input(2, 3, N), m.weight(3, N), domain="", axis=1)
    with pytest.raises(UnsupportedOperatorError, match="from axis 1 on"):
        import_model(m.proto())


def test_the_source_is_left_alone_and_other_operators_are_refused():
    m = Model()
    m.node("Gelu", m.input(1, 2, N))
    proto = m.proto()
    before = proto.SerializeToString()
    import_model(proto)
    assert proto.SerializeToString() == before
    m.node("Inverse", "y0_0")
    with pytest.raises(UnsupportedOperatorError, match="Inverse"):
        import_model(m.proto())


def test_of_onnx_itself_only_norms_and_unpooling_are_expanded():
    plain = {kind for domain, kind in EXPANSIONS if domain == "" and onnx.defs.has(kind, 21, "")}
    retired = {"MeanVarianceNormalization", "ThresholdedRelu"}  # from before ONNX had them again
    assert sorted(plain - retired) == ["GroupNormalization", "LayerNormalization", "MaxUnpool"]


C = 8


def optimized(opset, *nodes, shape=(2, C, 3, 4)):
    """A chain of (operator, shapes of its constants, attributes)."""
    made, weights, value = [], [], "x"
    for i, (kind, constants, attributes) in enumerate(nodes):
        names = []
        for j, extents in enumerate(constants):
            names.append(f"w{i}_{j}")
            array = np.random.default_rng([i, j]).standard_normal(extents).astype("float32")
            weights.append(numpy_helper.from_array(array, names[-1]))
        outputs = attributes.pop("outputs", [f"y{i}"])
        made.append(helper.make_node(kind, [value, *names], outputs, f"n{i}", **attributes))
        value = outputs[0]
    ends = [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)]
    starts = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(made, "norms", starts, ends, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    plan = optimize_model(import_model(model))
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    # The model as given: importing it has written some operators out.
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    (found,) = build_model(plan).run({"x": x})
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    return plan.report


def test_layer_norms():
    report = optimized(
        17,
        ("LayerNormalization", [(4,), (4,)], {"epsilon": 1e-3}),
        ("LayerNormalization", [(4,)], {"axis": 3}),
        ("LayerNormalization", [(3, 4), (3, 4)], {"axis": 2}),
        ("LayerNormalization", [(4,), (4,)], {"outputs": ["a", "mean", "deviation"]}),
    )
    assert report.fusions == {"layer_norm": 4} and not report.misses


def test_statistics_of_a_layer_norm():
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 3, 4)) for n in "xy")
    statistics = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 3, 1)) for n in ("mean", "rstd")]
    gamma = numpy_helper.from_array(np.arange(4, dtype="float32"), "gamma")
    node = helper.make_node("LayerNormalization", ["x", "gamma"], ["y", "mean", "rstd"], "n")
    graph = helper.make_graph([node], "g", [x], [y, *statistics], [gamma])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    plan = optimize_model(import_model(model))
    assert plan.report.fusions == {"layer_norm": 1}
    assert build_model(plan).check().ok


def test_rms_norms():
    report = optimized(
        23,
        ("RMSNormalization", [(4,)], {"epsilon": 1e-3}),
        ("RMSNormalization", [(3, 4)], {"axis": 2}),
    )
    assert report.fusions == {"rms_norm": 2} and not report.misses


def test_group_norms():
    report = optimized(
        21,
        ("GroupNormalization", [(C,), (C,)], {"num_groups": 4, "epsilon": 1e-3}),
        ("InstanceNormalization", [(C,), (C,)], {}),
    )
    assert report.fusions == {"group_norm": 2} and not report.misses


@pytest.mark.parametrize("opset, length", [(18, 4), (18, C), (20, 4), (21, C)])
def test_scales_of_group_norms_are_those_of_groups_before_opset_21(opset, length):
    """Some exporters write one scale per channel before, too."""
    scale, bias = (np.linspace(low, 2, length, dtype="float32") for low in (-1, 0.5))
    node = helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["y"], "n", num_groups=4)
    ends = [helper.make_tensor_value_info(name, FLOAT, (2, C, 3, 4)) for name in "xy"]
    stored = [numpy_helper.from_array(scale, "scale"), numpy_helper.from_array(bias, "bias")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    x = np.random.default_rng(0).standard_normal((2, C, 3, 4), np.float32)
    rows = x.reshape(2, 4, -1).astype("float64")
    rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    along = [1, C, 1, 1]
    wide = (np.repeat(values, C // length).reshape(along) for values in (scale, bias))
    expected = rows.reshape(x.shape) * next(wide) + next(wide)
    (y,) = run_onnxruntime(import_model(model).onnx_model, {"x": x})
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_activations():
    report = optimized(20, ("Gelu", [], {}), ("Gelu", [], {"approximate": "tanh"}))
    assert report.fusions == {"gelu": 2} and not report.misses


@pytest.mark.thorough
def test_products_with_turned_operands():
    m = Model()
    x = m.input(2, 3, N)
    m.node("FusedMatMul", x, m.weight(5, N), transB=1, alpha=0.25)
    m.node("FusedMatMul", x, m.input(2, 3, 5), transA=1)
    m.node("FusedMatMul", x, m.weight(3, N, 5), transBatchA=1)
    m.node(
        "FusedMatMul", m.input(4, 3, 6), m.weight(5, 3, 4), transBatchA=1, transA=1, transBatchB=1, transB=1
    )
    curve = m.node("Relu", x, domain="")  # the file does not say its rank
    m.node("FusedMatMul", curve, m.weight(3, N, 5), transBatchA=1)
    m.node("FusedMatMul", m.weight(2, 3, 6), curve, transA=1)
    m.node("FusedMatMul", m.weight(N, 3, 4), curve, transA=1, transBatchA=1, transBatchB=1, transB=1)
    m.check(5e-6)


ACTIVATED = {
    "none": {},
    "relu": {"activation": "Relu"},
    "leaky": {"activation": "LeakyRelu", "activation_params": [0.3]},
    "clip": {"activation": "Clip", "activation_params": [-0.5, 0.75]},
    "hard": {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    "swish": {"activation": "HardSwish"},
    "swish with parameters": {"activation": "HardSwish", "activation_params": [0.3, 0.4]},
}


@pytest.mark.parametrize("attributes", named(ACTIVATED, {"none", "relu", "clip", "swish with parameters"}))
def test_convolutions_with_addition_and_activation(attributes):
    m = Model()
    x = m.input(1, 2, N)
    operands = [m.weight(2, 2, 3), m.weight(2)]
    same = {"pads": [1, 1], "kernel_shape": [3]}
    m.node("FusedConv", x, *operands, **same, **attributes)
    m.node("FusedConv", x, *operands, x, **same, **attributes)
    if attributes.get("activation") in ("Relu", "LeakyRelu"):
        flat = m.input(4, 6)
        m.nodes.append(
            helper.make_node(
                "FusedGemm", [flat, m.weight(6, 5), m.weight(5)], ["g"], "g", domain="com.microsoft",
                alpha=0.5, **{k: v for k, v in attributes.items() if k == "activation"},
                **({"activation_alpha": 0.3} if "activation_params" in attributes else {}),
            )
        )  # fmt: skip
        m.nodes.append(helper.make_node("Unsqueeze", ["g", "axis"], ["g3"], "g3"))
        m.weights.append(numpy_helper.from_array(np.array([0]), "axis"))
        m.outputs.append(("g3", FLOAT))
    m.check(5e-6)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("Relu", {}), *thorough([("Tanh", {}), ("Sigmoid", {}), ("Softplus", {}), ("Softsign", {})]),
        ("LeakyRelu", {"alpha": 0.3}), *thorough([("Elu", {"alpha": 0.3})]),
        ("ThresholdedRelu", {"alpha": 0.3}),
        *thorough([("Selu", {"alpha": 1.3, "gamma": 0.7}), ("HardSigmoid", {"alpha": 0.3, "beta": 0.4})]),
        ("ScaledTanh", {"alpha": 1.3, "beta": 0.7}), ("ParametricSoftplus", {"alpha": 1.3, "beta": 0.7}),
    ],
)  # fmt: skip
def test_products_with_activation(kind, given):
    m = Model()
    given = {f"activation_{name}": value for name, value in given.items()}
    names = [m.input(4, 6), m.weight(6, 5), m.weight(5)]
    m.nodes.append(
        helper.make_node("FusedGemm", names, ["g"], "g", domain="com.microsoft", activation=kind, **given)
    )
    m.nodes.append(helper.make_node("Unsqueeze", ["g", "axis"], ["g3"], "g3"))
    m.weights.append(numpy_helper.from_array(np.array([0]), "axis"))
    m.outputs.append(("g3", FLOAT))
    m.check(5e-6)


def test_a_convolution_with_silu_is_its_product_with_a_sigmoid():
    """Versions of ONNX Runtime that know the activation are not installed with the tests."""
    m, plain = Model(), Model()
    m.node("FusedConv", m.input(1, 2, N), m.weight(2, 2, 3), activation="Silu")
    y = plain.node("Conv", plain.input(1, 2, N), plain.weight(2, 2, 3), domain="")
    plain.node("Mul", y, plain.node("Sigmoid", y, domain=""), domain="")
    ours, theirs = (build_model(optimize_model(import_model(p.proto()))).run(p.inputs) for p in (m, plain))
    np.testing.assert_allclose(ours[0], theirs[-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [({"activation": "Swirl"}, "Swirl, which"), ({"activation": "Clip"}, "Clip without its parameters")],
)
def test_an_unknown_activation_is_refused(attributes, words):
    m = Model()
    m.node("FusedConv", m.input(1, 2, N), m.weight(2, 2, 3), **attributes)
    with pytest.raises(UnsupportedOperatorError, match=f"node0.*{words}"):
        import_model(m.proto())


@pytest.mark.parametrize("segments", [*thorough([True]), False], ids=["segments", "no segments"])
def test_embedding_of_bytes(segments):
    random = np.random.default_rng(0)
    table = [
        random.integers(0, 255, shape).astype(np.uint8) for shape in ((9, N), (8, N), (2, N), (N,), (N,))
    ]
    scales = [np.float32(value) for value in (0.01, 0.02, 0.015, 0.01, 0.03)]
    zeros = [np.uint8(value) for value in (120, 130, 127, 3, 128)]
    ids, mask = random.integers(0, 9, (2, 5)).astype(np.int32), np.ones((2, 5), np.int32)
    mask[1, 3:] = 0
    kinds = random.integers(0, 2, (2, 5)).astype(np.int32)
    parts = [kinds if segments else None, *table, mask, *scales, *zeros]
    if not segments:
        parts[3] = parts[9] = parts[14] = None
    weights = {f"v{n}": value for n, value in enumerate(parts[1:], 2) if value is not None and n != 7}
    inputs = {"ids": ids, "v7": mask} | ({"v1": kinds} if segments else {})
    names = ["ids", *("" if value is None else f"v{n}" for n, value in enumerate(parts, 1))]
    node = helper.make_node("QEmbedLayerNormalization", names, ["y", "count"], "node", domain="com.microsoft")
    ends = [helper.make_tensor_value_info(n, INT32, a.shape) for n, a in inputs.items()]
    results = [
        helper.make_tensor_value_info("y", FLOAT, [2, 5, N]),
        helper.make_tensor_value_info("count", INT32, [2]),
    ]
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "bytes", ends, results, stored)
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    ours = build_model(optimize_model(import_model(proto)), use_shipped=False).run(inputs)
    for have, want in zip(ours, run_onnxruntime(proto, inputs), strict=True):
        assert have.shape == want.shape and have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["BeamSearch", "GreedySearch", "Sampling"])
def test_loops_over_tokens_are_refused_with_what_runs_them(kind):
    m = Model()
    m.node(kind, m.input(2, 3, N), outputs=(INT32,))
    with pytest.raises(UnsupportedOperatorError, match=rf"{kind}: 1 node[\s\S]*hetero_tvm\.generate"):
        import_model(m.proto())
