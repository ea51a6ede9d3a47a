"""Ensembles of trees as one operator: as they are imported, with what rows lack, and what stays as it is."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hetero_tvm.frontend.onnx.importer import import_onnx
from hetero_tvm.ops.loops.forest import BOUND, CHILD, FEATURE, Forest
from hetero_tvm.reference.running import run_double
from hetero_tvm.relax_passes.fusions.forest import FuseForest
from hetero_tvm.relax_passes.rewriting.fused import contract
from hetero_tvm.relax_passes.rewriting.graph import array_of
from tests.frontend.onnx.bodies.test_trees import ML, forest, regressor
from tests.relax_passes.graphs import bindings, constant, contracts, fuse, names_of, op
from tests.relax_passes.rewrite import Rewrite, bind, kernel

RULE = FuseForest(lambda op: True)
ORDERED = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT")


def imported(node, targets=1, rows=9, features=5):
    graph = helper.make_graph(
        [node],
        "trees",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, targets])],
    )
    return import_onnx(onnx.helper.make_model(graph, opset_imports=ML, ir_version=10))


def before(*args, **kwargs):
    return imported(*args, **kwargs).module


@pytest.mark.parametrize(
    ("attributes", "targets", "missing"),
    [
        (forest(1, "target", 1), 1, False),
        (forest(2, "target", 3, trees=9, modes=ORDERED), 3, True),
        (forest(3, "target", 1, modes=ORDERED, missing=True), 1, True),
        (forest(4, "target", 2, trees=2), 2, False),
    ],
)
@pytest.mark.parametrize("how", ["SUM", "AVERAGE"])
def test_ensembles(attributes, targets, missing, how):
    model = imported(regressor(n_targets=targets, aggregate_function=how, **attributes), targets)
    after, names, report = fuse(model.module, RULE)
    assert report.fusions == {"forest": 1} and not report.misses
    assert names_of(model.module) <= set().union(*names.values())
    (found,) = contracts(after, "forest")
    assert (found.rows, found.features, found.targets) == (9, 5, targets)
    assert found.missing == missing
    x = np.random.default_rng(9).normal(size=(9, 5)).astype("float32").round(1)
    x[0], x[1], x[2, ::2] = np.inf, -np.inf, np.nan
    (call,) = [b.value for b in bindings(after) if contract(after, b.value) is not None]
    y = found.reference(x, *(array_of(operand) for operand in call.args[1].fields[1:]))
    scale = found.trees if how == "AVERAGE" else 1
    np.testing.assert_allclose(y / scale, run_double(model.clean, {"x": x}, ["y"])["y"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("how", ["MIN", "MAX"])
def test_other_sums_stay_as_they_are(how):
    module = before(regressor(n_targets=1, aggregate_function=how, **forest(1, "target", 1)))
    assert fuse(module, RULE)[2].fusions == {}


def test_questions_without_an_order_stay_as_they_are():
    module = before(regressor(n_targets=1, **forest(1, "target", 1, modes=("BRANCH_LEQ", "BRANCH_EQ"))))
    assert fuse(module, RULE)[2].fusions == {}


def test_a_feature_that_rows_do_not_have_is_left_to_the_lookup():
    module = before(regressor(n_targets=1, **forest(2, "target", 1, trees=9)), features=9)
    assert fuse(module, RULE)[2].fusions == {"forest": 1}
    attributes = forest(2, "target", 1, trees=9)
    deep = attributes["nodes_truenodeids"][attributes["nodes_truenodeids"].index(1, 1)]
    place = attributes["nodes_nodeids"].index(deep, 1)
    attributes["nodes_featureids"][place] = 5
    module = before(regressor(n_targets=1, **attributes))
    assert fuse(module, RULE)[2].fusions == {}


def test_a_target_without_trees_keeps_the_lookups():
    module = before(regressor(n_targets=1, **forest(1, "target", 1)))
    assert fuse(module, FuseForest(lambda op: False))[2].fusions == {}


class TestFuseForest(Rewrite):
    """A root that asks for feature 2, and behind it a node that asks for feature 0, and leaves."""

    rule = RULE
    inputs = {"x": (3, 4)}

    def before(self, x):
        root = op.less_equal(bind(op.take(x, constant([2], "int64"), 1, mode="wrap")), constant([0.5]))
        at = bind(op.where(bind(root), constant([1], "int64"), constant([2], "int64")))

        def column(values, dtype="int64"):
            return bind(op.take(constant(values, dtype), at, 0, mode="wrap"))

        feature, bound = column([0, 0, 0, 0, 0]), column([0, 0, -1.5, 0, 0], "float32")
        yes, no = column([0, 1, 3, 3, 4]), column([0, 1, 4, 3, 4])
        seen = bind(op.gather_elements(x, feature, 1))
        at = bind(op.where(bind(op.less_equal(seen, bound)), yes, no))
        weights = constant([[0.0], [1.0], [2.0], [3.0], [4.0]])
        return op.sum(bind(op.take(weights, at, 0, mode="wrap")), axis=[1])

    def expected(self, x):
        nodes = np.zeros((5, 4), np.int32)
        nodes[0, FEATURE], nodes[:, CHILD] = 2, [1, 3, 2, 3, 4]
        nodes[:, BOUND] = np.array([0.5, -1.5, np.nan, np.nan, np.nan], np.float32).view(np.int32)
        weights = constant([[0.0], [2.0], [1.0], [4.0], [3.0]])
        return kernel(Forest(3, 4, 1, 5, 1, 2), x, constant(nodes, "int32"), constant([2], "int32"), weights)
