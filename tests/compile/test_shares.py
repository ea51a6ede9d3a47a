"""Numbers of pieces for all sizes, from choices for the largest."""

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.api import import_model, optimize_model
from hetero_tvm.compile.shares import shared_out
from hetero_tvm.frontend import Span
from hetero_tvm.records.choose import DEFAULT, Choice


@pytest.fixture(scope="module")
def optimized(tmp_path_factory):
    random = np.random.default_rng(0)
    weights = [random.standard_normal(s).astype(np.float32) for s in ((32, 32, 3, 3), (64, 32, 1, 1))]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["h"], pads=[1] * 4),
        helper.make_node("Conv", ["h", "w1"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", channels, 14, 14])
        for name, channels in (("x", 32), ("y", 64))
    ]
    constants = [numpy_helper.from_array(w, f"w{n}") for n, w in enumerate(weights)]
    graph = helper.make_graph(nodes, "images", ends[:1], ends[1:], constants)
    path = tmp_path_factory.mktemp("images") / "images.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return optimize_model(import_model(path, shapes={"x": (Span(1, 8), 32, 14, 14)}))


def test_one_image_keeps_all_threads_busy(optimized):
    """A choice that eight images keep busy with one piece each is cut for one; the rest of it stays."""
    convolutions = [task for task in optimized.tasks if "conv2d" in task.name]
    assert len(convolutions) == 2
    given = {}
    for task in optimized.tasks:
        point = task.space.default(task.op, optimized.machine) if task.space else None
        if task in convolutions:
            point = {**point, "blocks": 1, "groups": 1}
        given[task.key] = Choice(point, None, "record", 1.0)
    made = shared_out(optimized, given)
    threads = optimized.machine.threads
    for task in convolutions:
        before, after = given[task.key], made[task.key]
        if threads == 1:
            assert after == before
            continue
        assert after.point["blocks"] * after.point["groups"] >= threads
        others = {"blocks", "groups"}
        assert {k: v for k, v in after.point.items() if k not in others} == {
            k: v for k, v in before.point.items() if k not in others
        }
        assert "batch = 1..8" in after.origin and after.seconds is None
        again = shared_out(optimized, made)
        assert again[task.key] == after  # nothing better is left
    assert {key: made[key] for key in given if key not in {t.key for t in convolutions}} == {
        key: given[key] for key in given if key not in {t.key for t in convolutions}
    }


def test_kernels_that_differ_with_the_sizes_keep_their_points(optimized):
    given = {task.key: Choice(None, None, "default") for task in optimized.tasks}
    assert shared_out(optimized, given) == given
    fewer = [dataclasses.replace(other, tasks=other.tasks[1:]) for other in optimized.lengths.others]
    lengths = dataclasses.replace(optimized.lengths, others=tuple(fewer))
    assert shared_out(dataclasses.replace(optimized, lengths=lengths), given) == given


def test_a_default_is_as_good_for_one_image_as_for_eight(tmp_path):
    """No size's default has a lower geometric mean of its times; what was measured keeps its method."""
    weight = np.random.default_rng(0).standard_normal((512, 512, 3, 3)).astype(np.float32)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 512, 7, 7]) for name in "xy"]
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)]
    graph = helper.make_graph(nodes, "deep", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "deep.onnx")
    model = import_model(tmp_path / "deep.onnx", shapes={"x": (Span(1, 8), 512, 7, 7)})
    optimized = optimize_model(model, target="cpu:sapphirerapids")
    (task,) = (task for task in optimized.tasks if "conv2d" in task.name)
    space, machine = task.space, optimized.machine
    ops = [dataclasses.replace(task.op, batch=n) for n in (1, 2, 4, 8)]

    def mean(point):
        return np.exp(np.mean([np.log(space.estimate(op, point, machine)) for op in ops]))

    given = {task.key: Choice(space.default(task.op, machine), None, DEFAULT)}
    made = shared_out(optimized, given)[task.key]
    assert made.origin in ("default", "default, for batch = 1..8", "default, in pieces for batch = 1..8")
    assert all(mean(made.point) <= 1.03 * mean(space.default(op, machine)) for op in ops)
    measured = {task.key: dataclasses.replace(given[task.key], origin="record")}
    kept = shared_out(optimized, measured)[task.key]
    assert kept.point["method"] == given[task.key].point["method"]


@pytest.mark.exhaustive
def test_numbers_of_every_batch(optimized, tmp_path):
    """Against the float64 reference of the model at that batch."""
    import hetero_tvm
    from hetero_tvm.api import build_model
    from hetero_tvm.reference import run_reference

    net = hetero_tvm.load(build_model(optimized).export(tmp_path / "images.so"))
    for batch in (1, 3, 8):
        x = np.random.default_rng(batch).standard_normal((batch, 32, 14, 14)).astype(np.float32)
        (exact,) = run_reference(optimized.model.open.at({"batch": batch}), {"x": x}).float64
        # Winograd's method in float32 over 9 * 32 products.
        np.testing.assert_allclose(net(x), exact, atol=5e-5 * np.abs(exact).max())
