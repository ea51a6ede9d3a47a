"""Ensembles of trees end at the leaves that ONNX Runtime ends at."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.importer import import_onnx
from hetero_tvm.reference.running import run_double

ort = pytest.importorskip("onnxruntime")
ML = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]


def forest(seed, kind, count, *, trees=4, features=5, lone=False, modes=("BRANCH_LEQ",), missing=False):
    """Attributes of random trees, not all equally deep."""
    random = np.random.default_rng(seed)
    nodes = {key: [] for key in "treeids nodeids featureids values modes truenodeids falsenodeids".split()}
    tracks, leaves = [], {key: [] for key in "treeids nodeids ids weights".split()}
    for tree in range(trees):
        waiting, made = [(0, 0)], 1
        while waiting:
            node, depth = waiting.pop(0)
            leaf = depth == 4 or (depth and random.random() < 0.3) or (tree == 0)
            row = [tree, node, int(random.integers(features)), float(np.round(random.normal(), 1))]
            row += [
                "LEAF" if leaf else str(random.choice(modes)),
                0 if leaf else made,
                0 if leaf else made + 1,
            ]
            for key, value in zip(nodes, row, strict=True):
                nodes[key].append(value)
            tracks.append(int(random.random() < 0.5))
            if leaf:
                for target in [0] if lone else range(count):
                    for key, value in zip(leaves, [tree, node, target, float(random.normal())], strict=True):
                        leaves[key].append(value)
            else:
                waiting += [(made, depth + 1), (made + 1, depth + 1)]
                made += 2
    more = {"nodes_missing_value_tracks_true": tracks} if missing else {}
    more |= {f"nodes_{key}": value for key, value in nodes.items()}
    return more | {f"{kind}_{key}": value for key, value in leaves.items()}


def compared(node, results, rows=None):
    """ONNX Runtime's results and ours, for rows [n, 5]."""
    x = np.random.default_rng(9).normal(size=(33, 5)).astype("float32").round(1) if rows is None else rows
    graph = helper.make_graph(
        [node],
        "trees",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in results],
    )
    model = helper.make_model(graph, opset_imports=ML, ir_version=10)
    theirs = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    imported = import_onnx(model)
    ours = run_double(imported.clean, {"x": x}, [name for name, _, _ in results])
    for (name, _, _), their in zip(results, theirs, strict=True):
        assert ours[name].shape == their.shape
        np.testing.assert_allclose(ours[name], their, rtol=1e-5, atol=1e-6)


def regressor(**attributes):
    return helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], "t", domain="ai.onnx.ml", **attributes)


MANY = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regressors(how):
    base = {"base_values": [0.5, -1.0]} if how == "SUM" else {}
    node = regressor(n_targets=2, aggregate_function=how, **base, **forest(1, "target", 2))
    compared(node, [("y", TensorProto.FLOAT, [33, 2])])


def test_every_mode_of_a_node_and_missing_values():
    rows = np.random.default_rng(3).normal(size=(64, 5)).astype("float32").round(1)
    rows[::3, 1], rows[::5, 4] = np.nan, np.nan
    result = [("y", TensorProto.FLOAT, [64, 1])]
    compared(regressor(n_targets=1, **forest(2, "target", 1, modes=MANY)), result, np.nan_to_num(rows))
    compared(regressor(n_targets=1, **forest(3, "target", 1, missing=True)), result, rows)


@pytest.mark.parametrize("mode", [*MANY[:4], MANY[:4]], ids=str)
def test_what_lies_on_a_bound_and_what_is_missing(mode):
    """Comparisons are all written as one, which must not move what equals a bound, or is infinite or NaN."""
    rows = np.random.default_rng(3).normal(size=(64, 5)).astype("float32").round(1)
    rows[::3, 1], rows[::5, 4], rows[1::7, 2], rows[2::7, 2] = np.nan, np.nan, np.inf, -np.inf
    modes = (mode,) if isinstance(mode, str) else mode
    for missing in (False, True):
        attributes = forest(6, "target", 1, trees=9, modes=modes, missing=missing)
        inner = [n for n, kind in enumerate(attributes["nodes_modes"]) if kind != "LEAF"]
        for place, bound in zip(inner[::4], (np.inf, -np.inf, 0.0, -0.0), strict=False):
            attributes["nodes_values"][place] = float(bound)
        compared(regressor(n_targets=1, **attributes), [("y", TensorProto.FLOAT, [64, 1])], rows)


CLASSIFIERS = [(3, False, "NONE"), (3, False, "SOFTMAX"), (2, True, "LOGISTIC"), (2, True, "NONE")]


@pytest.mark.parametrize("classes, lone, post", CLASSIFIERS)
def test_classifiers(classes, lone, post):
    attributes = forest(4, "class", classes, lone=lone)
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "scores"], "t", domain="ai.onnx.ml",
        classlabels_int64s=[7, 3, 5][:classes], post_transform=post, **attributes,
    )  # fmt: skip
    results = [("label", TensorProto.INT64, [33]), ("scores", TensorProto.FLOAT, [33, classes])]
    compared(node, results)


def test_a_tree_without_end_is_refused():
    attributes = forest(1, "target", 1, trees=2)
    attributes["nodes_truenodeids"] = [0] * len(attributes["nodes_truenodeids"])
    node = regressor(n_targets=1, **attributes)
    graph = helper.make_graph(
        [node],
        "t",
        [helper.make_tensor_value_info("x", 1, [3, 5])],
        [helper.make_tensor_value_info("y", 1, [3, 1])],
    )
    with pytest.raises(UnsupportedOperatorError, match="more than 256 levels"):
        import_onnx(onnx.helper.make_model(graph, opset_imports=ML, ir_version=10))


def test_files_of_old_opsets():
    """What skl2onnx wrote years ago: the trees are written out in operators that came later."""
    node = regressor(n_targets=2, **forest(1, "target", 2))
    graph = helper.make_graph(
        [node],
        "t",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [33, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [33, 2])],
    )
    old = [helper.make_opsetid("", 9), helper.make_opsetid("ai.onnx.ml", 1)]
    x = np.random.default_rng(9).normal(size=(33, 5)).astype("float32")
    imported = import_onnx(helper.make_model(graph, opset_imports=old, ir_version=5))
    new = import_onnx(helper.make_model(graph, opset_imports=ML, ir_version=10))
    ours, same = (run_double(model.clean, {"x": x}, ["y"])["y"] for model in (imported, new))
    np.testing.assert_array_equal(ours, same)
