"""A few generated graphs, and the parts of their campaign: judge, workers and shrinker."""

import os
import signal
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.campaign.graphs.command import judge_seed, run
from tests.campaign.graphs.generate import generate
from tests.campaign.graphs.judge import (
    BROKEN,
    PASSED,
    REFUSED,
    UNJUDGED,
    WRONG,
    Verdict,
    by_onnxruntime,
    compared,
    difference,
)
from tests.campaign.graphs.opened import judge_opened
from tests.campaign.graphs.settings import CPU, Setting
from tests.campaign.graphs.shrink import shrunk
from tests.campaign.graphs.values import numpy_type, onnx_type
from tests.campaign.graphs.workers import Worker
from tests.frontend.onnx.helpers import text_model

SMALL = 12
"""Most nodes of a graph here: twice as fast as the campaign's."""


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, 30, 10))
def test_graphs(first):
    verdicts = {seed: judge_seed(CPU, SMALL, seed) for seed in range(first, first + 10)}
    assert {seed: v.reason for seed, v in verdicts.items() if v.kind in (WRONG, BROKEN)} == {}
    assert sum(v.kind == PASSED for v in verdicts.values()) >= 7


@pytest.mark.thorough
def test_graphs_with_an_open_axis():
    verdicts = {seed: judge_opened(CPU, SMALL, seed) for seed in range(8)}
    assert {seed: v.reason for seed, v in verdicts.items() if v.kind in (WRONG, BROKEN)} == {}
    assert sum(v.kind == PASSED for v in verdicts.values()) >= 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    "setting",
    [Setting(precision="bf16"), Setting(precision="int8"), Setting("cpu:haswell"), Setting(threads=1)],
    ids=str,
)
def test_graphs_at_other_settings(setting):
    verdicts = {seed: judge_seed(setting, SMALL, seed) for seed in range(6)}
    assert {seed: v.reason for seed, v in verdicts.items() if v.kind in (WRONG, BROKEN)} == {}
    assert sum(v.kind == PASSED for v in verdicts.values()) >= 3


def test_floats_of_types_that_are_named():
    seen = {
        source.dtype for seed in (0, 1) for source in generate(seed, SMALL, ("bfloat16", "float16")).sources
    }
    assert {"bfloat16", "float16"} <= seen


def test_onnxruntime_computes_graphs_with_bfloat16_among_their_inputs():
    """Its Python package takes no such arrays: nodes run one by one, sequences of float32 in between."""
    given = {"x": np.zeros(2, numpy_type("bfloat16")), "y": np.arange(3, dtype="float32")}
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("SequenceConstruct", ["y", "y"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["b"], axis=0),
    ]
    values = [helper.make_tensor_value_info(n, onnx_type(v.dtype.name), v.shape) for n, v in given.items()]
    ends = [helper.make_tensor_value_info("a", TensorProto.BFLOAT16, [2])]
    ends.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [6]))
    imports = [helper.make_opsetid("", 21)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", values, ends), opset_imports=imports, ir_version=10
    )
    np.testing.assert_array_equal(by_onnxruntime(model, given)[1], [0, 1, 2, 0, 1, 2])


def test_a_seed_gives_one_graph():
    one, other = generate(5), generate(5)
    assert one.model.SerializeToString() == other.model.SerializeToString()
    assert generate(6).model.SerializeToString() != one.model.SerializeToString()
    for name, array in one.draw(0).items():
        np.testing.assert_array_equal(array, other.draw(0)[name])


@pytest.mark.parametrize("seed", range(40))
def test_graphs_are_valid(seed):
    case = generate(seed)
    assert 1 <= len(case.model.graph.node) <= 46
    onnx.checker.check_model(case.model)


DIFFERENT = {
    "value": (np.float32([1, 2]), np.float32([1, 2.01])),
    "nan": (np.float32([1, 2]), np.float32([1, np.nan])),
    "other nan": (np.float32([1, np.nan]), np.float32([1, 2])),
    "infinity": (np.float32([np.inf]), np.float32([-np.inf])),
    "dtype": (np.float32([1]), np.float64([1])),
    "shape": (np.float32([1]), np.float32([[1]])),
    "integer": (np.int8([1]), np.int8([2])),
    "large integer": (np.int64([2**62]), np.int64([2**62 + 1])),
}


@pytest.mark.parametrize("ours, theirs", DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs(ours, theirs):
    assert difference(ours, theirs)
    assert difference(theirs, theirs) is None


def test_a_wrong_result_is_wrong_and_a_badly_conditioned_one_is_not():
    # One operand of the difference has a relative error of 1e-7, which the difference magnifies.
    model = text_model(
        "g (float[2] x) => (float[2] y) { a = Exp(x)\n b = Exp(x)\n c = Log(a)\n y = Sub(c, x) }"
    )
    x = {"x": np.float32([3, 5])}
    (exact,) = (np.zeros(2, np.float32),)
    assert compared(model, x, [exact])[0] is None
    assert compared(model, x, [exact + np.float32(1e-6)])[0] is None
    assert "values" in compared(model, x, [exact + np.float32(1)])[0]


def test_the_references_may_disagree():
    """Opset 11's Upsample is gone: neither runs it, and the graph is not judged."""
    model = text_model("g (float[2] x) => (float[2] y) { y = Foo(x) }")
    fault, note = compared(model, {"x": np.zeros(2, np.float32)}, [np.zeros(2, np.float32)])
    assert fault == UNJUDGED and "onnxruntime" in note and "reference" in note


def test_rows_of_no_rounds_have_sizes_that_onnxruntime_does_not_know():
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        loops (float[b,4] x) => (float[n,b,4] rows) <int64 no = {0}, bool begin = {1}> {
          [loop] last, rows = Loop (no, begin, x) <body: graph = body (int64 i, bool c, float[b,4] s)
            => (bool again, float[b,4] next, float[b,4] row) {
              again = Identity (c)
              next = Tanh (s)
              row = Add (next, s) }> }
    """)
    x = {"x": np.zeros((3, 4), np.float32)}
    assert compared(model, x, [np.zeros((0, 3, 4), np.float32)])[0] is None
    assert "shape" in compared(model, x, [np.zeros((0, 3, 5), np.float32)])[0]
    assert "shape" in compared(model, x, [np.zeros((1, 3, 4), np.float32)])[0]


def _fate(task):
    if task == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    return Verdict(PASSED, task)


@pytest.mark.exhaustive
def test_a_worker_that_dies_costs_one_task():
    worker = Worker(_fate)
    try:
        worker.start("first")
        assert worker.verdict() == Verdict(PASSED, "first")
        worker.start("die")
        found = worker.verdict()
        assert found.kind == BROKEN and "-11" in found.reason
        worker.start("next")
        assert worker.verdict().reason == "next"
    finally:
        worker.stop()


@pytest.mark.exhaustive
def test_graphs_in_other_processes():
    found = dict(run(range(3), jobs=2, setting=CPU, most=5, seconds=600))
    assert sorted(found) == [0, 1, 2]
    assert {v.kind for v in found.values()} <= {PASSED, REFUSED}


def test_a_graph_is_shrunk_to_the_node_that_is_at_fault():
    model = text_model(
        "g (float[2,6] x) => (float[6,2] y, float[2,6] z) <float[6] w = {1, 2, 3, 4, 5, 6}> "
        "{ a = Mul(x, w)\n b = Tanh(a)\n c = Erf(b)\n y = Transpose(c)\n d = Relu(a)\n z = Neg(d) }"
    )
    draw = {"x": np.ones((2, 6), np.float32)}

    def fails(candidate, inputs):
        onnx.checker.check_model(candidate)
        assert set(inputs) == {value.name for value in candidate.graph.input}
        return any(node.op_type == "Erf" for node in candidate.graph.node)

    small, inputs = shrunk(model, draw, fails)
    assert [node.op_type for node in small.graph.node] == ["Erf"]
    assert [array.shape for array in inputs.values()] == [(1, 1)]
    assert not [numpy_helper.to_array(t) for t in small.graph.initializer]


@pytest.mark.thorough
def test_a_campaign_worker_judges_a_seed():
    worker = Worker(partial(judge_seed, CPU, 5))
    try:
        worker.start(1)
        assert worker.verdict().kind in (PASSED, REFUSED)
    finally:
        worker.stop()
