"""Sums of quantised images that round once."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import hetero_tvm
from hetero_tvm.compile.calibrating.calibration import Calibration
from hetero_tvm.frontend import import_model
from hetero_tvm.targets.registry import parse_target

SHAPE = [1, 8, 6, 6]


def network(nodes, ends=("y",)):
    """Nodes on ``x`` with filters ``f``, ``g``, ``h`` and ``last``, by (operator, operands, result)."""
    rng = np.random.default_rng(0)
    stored = {
        name: (rng.standard_normal((8, 8, 1, 1)) / 3).astype("float32") for name in ("f", "g", "h", "last")
    }
    stored["one row"] = rng.standard_normal((1, 8, 1, 6)).astype("float32")
    made = [helper.make_node(kind, list(read), [result], name=result) for kind, read, result in nodes]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ends]
    arrays = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(made, "sums", [given], results, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def written(model, once):
    rng = np.random.default_rng(1)
    samples = [{"x": rng.standard_normal(SHAPE).astype("float32")} for _ in range(3)]
    quantized = Calibration(import_model(model), samples, sums_once=once).quantized()
    onnx.checker.check_model(quantized, full_check=True)
    return quantized, samples[0]


def rounded(model):
    """Results of named nodes that are quantised."""
    return {
        node.input[0].removesuffix("_QuantizeLinear_Input")
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    }


BLOCK = [("Conv", "xf", "a"), ("Relu", "a", "b"), ("Conv", "bg", "c")]
LAST = ("Conv", ("s", "last"), "y")
ONE = {
    "a skip": ([*BLOCK, ("Add", "xc", "s"), LAST], {"c"}),
    "with a bound behind": ([*BLOCK, ("Add", "cx", "r"), ("Relu", "r", "s"), LAST], {"c"}),
    "two convolutions, of which the later runs last": (
        [("Conv", "xh", "d"), *BLOCK, ("Add", "dc", "s"), LAST],
        {"c"},
    ),
}


@pytest.mark.parametrize("nodes, once", ONE.values(), ids=ONE.keys())
def test_a_convolution_before_a_sum_is_not_rounded(nodes, once):
    model = network(nodes)
    before, _ = written(model, once=False)
    after, sample = written(model, once=True)
    assert rounded(before) - rounded(after) == once
    exact, twice, single = (
        ort.InferenceSession(m.SerializeToString()).run(None, sample)[0] for m in (model, before, after)
    )
    assert np.abs(single - exact).mean() < 1.05 * np.abs(twice - exact).mean()


STAY = {
    "a convolution that two read": [*BLOCK, ("Add", "xc", "r"), ("Add", "rc", "s"), LAST],
    "an image added to itself": [*BLOCK, ("Add", "cc", "s"), LAST],
    "no convolution": [("Relu", "x", "b"), ("Add", "xb", "s"), LAST],
}


@pytest.mark.parametrize("nodes", STAY.values(), ids=STAY.keys())
def test_other_sums_round_their_operands(nodes):
    model = network(nodes)
    before, after = (written(model, once)[0] for once in (False, True))
    assert rounded(before) == rounded(after)


def test_a_row_for_all_is_no_image():
    model = network([*BLOCK, ("Add", ("c", "one row"), "s"), LAST])
    before, after = (written(model, once)[0] for once in (False, True))
    assert rounded(before) == rounded(after)


def test_a_result_of_the_model_stays():
    model = network([*BLOCK, ("Add", "xc", "s"), LAST], ends=("y", "c"))
    assert rounded(written(model, once=False)[0]) == rounded(written(model, once=True)[0])


def test_the_sum_is_the_last_step_of_the_kernel():
    after, sample = written(network(ONE["with a bound behind"][0]), once=True)
    assert parse_target("cpu").sums_once and not parse_target("cuda:sm_80").sums_once
    optimized = hetero_tvm.optimize_model(hetero_tvm.import_model(after), target="cpu")
    assert optimized.report.fusions["quantized_add"] == 1
    got = hetero_tvm.build_model(optimized).run(sample)
    session = ort.InferenceSession(after.SerializeToString())
    wanted = session.run(None, sample)[0]
    step = np.abs(wanted).max() / 127
    assert np.abs(np.asarray(got["y"] if isinstance(got, dict) else got[0]) - wanted).max() <= 2 * step
