"""Norms and activations that are operators of ONNX itself: each fused under its name, right numbers."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.api import build_model, import_model, optimize_model

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


def test_activations():
    report = optimized(20, ("Gelu", [], {}), ("Gelu", [], {"approximate": "tanh"}))
    assert report.fusions == {"gelu": 2} and not report.misses
