"""Concatenations whose parts are written where they belong: right numbers, and what is copied."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.host.tvm import tirx
from hetero_tvm.memory.model_plan import MemoryPlan
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough

SIDE = 64


def convolution(name, x, channels, filters, kernel=1):
    """A node and its weights, from ``x`` of so many channels."""
    rng = np.random.default_rng(sum(map(ord, name)))
    w = rng.standard_normal((filters, channels, kernel, kernel)).astype("float32") / channels**0.5
    pads = [kernel // 2] * 4
    return helper.make_node("Conv", [x, f"w_{name}"], [name], pads=pads), numpy_helper.from_array(
        w, f"w_{name}"
    )


def concat(name, *parts, axis=1):
    return helper.make_node("Concat", list(parts), [name], axis=axis), None


def node(kind, name, *inputs, **attributes):
    return helper.make_node(kind, list(inputs), [name], **attributes), None


def built(nodes, outputs, channels, tmp_path, batch=1, disable=()):
    """The built model and the plan of its memory, after its numbers have been compared."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, channels, SIDE, SIDE])
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    weights = [w for _, w in nodes if w is not None]
    graph = helper.make_graph([n for n, _ in nodes], "joined", [x], results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    made = build_model(
        optimize_model(import_model(path), target="cpu", disable=disable), logs=tmp_path, use_shipped=False
    )
    made.memory.verify()
    value = np.random.default_rng(0).standard_normal((batch, channels, SIDE, SIDE)).astype("float32")
    expected = onnxruntime.InferenceSession(path).run(None, {"x": value})
    for _ in range(2):  # the second call finds the arena as the first one left it
        for one, other in zip(made.run({"x": value}), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)  # sums of 3x3x48
    return made


def test_parts_lie_in_the_whole(tmp_path):
    nodes = [
        convolution("a", "x", 16, 16),
        convolution("b", "x", 16, 32),
        concat("joined", "a", "b"),
        convolution("y", "joined", 48, 16),
    ]
    made = built(nodes, ["y"], 16, tmp_path)
    (name,) = made.memory.joined
    offsets = {t["name"]: t["offset"] for t in made.memory.to_json()["arenas"][0]["tensors"]}
    part = next(t for t in made.memory.arenas[0].tensors if t.begin)
    whole = offsets[name]
    assert part.begin == 4 * 16 * SIDE * SIDE and offsets[part.name] == whole + part.begin
    assert MemoryPlan.from_json(made.memory.to_json()).joined == made.memory.joined
    assert "concatenate" not in [kernel["kernel"] for kernel in made.kernels]
    assert built(nodes, ["y"], 16, tmp_path, disable=("concatenation_in_place",)).memory.joined == {}


@pytest.mark.thorough
def test_parts_between_zeros_lie_in_the_whole(tmp_path):
    nodes = [
        convolution("a", "x", 16, 16),
        convolution("b", "a", 16, 16, 3),
        convolution("c", "b", 16, 16, 3),
        concat("joined", "a", "b", "c"),
        convolution("y", "joined", 48, 16),
    ]
    made = built(nodes, ["y"], 16, tmp_path)
    assert len(made.memory.joined) == 1 and "concatenate" not in [k["kernel"] for k in made.kernels]


@pytest.mark.thorough
def test_a_part_may_be_a_whole_itself(tmp_path):
    nodes = [convolution("first", "x", 16, 16)]
    before = "first"
    for n in range(1, 4):
        nodes += [convolution(f"c{n}", before, 16 * n, 16), concat(f"j{n}", before, f"c{n}")]
        before = f"j{n}"
    made = built([*nodes, convolution("y", before, 64, 16)], ["y"], 16, tmp_path)
    assert made.optimized.report.fusions["concatenation_in_place"] == 3


@pytest.mark.thorough
def test_parts_are_read_after_the_whole_was_overwritten(tmp_path):
    nodes = [
        convolution("a", "x", 16, 16),
        convolution("b", "x", 16, 16),
        concat("joined", "a", "b"),
        node("Sigmoid", "changed", "joined"),
        convolution("c", "changed", 32, 16),
        node("Mul", "d", "c", "a"),
        convolution("y", "d", 16, 16),
    ]
    assert len(built(nodes, ["y"], 16, tmp_path).memory.joined) == 1


def test_the_whole_may_be_a_result(tmp_path):
    nodes = [convolution("a", "x", 3, 3), convolution("b", "x", 3, 5), concat("y", "a", "b")]
    built(nodes, ["y"], 3, tmp_path)


@pytest.mark.parametrize(
    ("nodes", "outputs", "channels", "batch"),
    [
        ([convolution("a", "x", 16, 16), concat("y", "a", "x")], ["y"], 16, 1),  # an input
        *thorough(
            [
                ([convolution("a", "x", 16, 16), concat("y", "a", "a")], ["y"], 16, 1),  # one part twice
                (
                    [convolution("a", "x", 16, 16), convolution("b", "x", 16, 16), concat("y", "a", "b")],
                    ["y", "a"],  # a part is a result too
                    16,
                    1,
                ),
            ]
        ),
        (
            [convolution("a", "x", 16, 16), convolution("b", "x", 16, 16), concat("y", "a", "b")],
            ["y"],
            16,
            2,  # images of a batch lie between one another's parts
        ),
        (
            [convolution("a", "x", 16, 16), convolution("b", "x", 16, 16), concat("y", "a", "b", axis=2)],
            ["y"],
            16,
            1,
        ),
    ],
)
def test_what_is_copied(nodes, outputs, channels, batch, tmp_path):
    assert built(nodes, outputs, channels, tmp_path, batch).memory.joined == {}


@pytest.mark.thorough
def test_a_part_of_two_wholes_lies_in_the_first(tmp_path):
    nodes = [
        convolution("a", "x", 16, 16),
        convolution("b", "x", 16, 16),
        convolution("c", "x", 16, 16),
        concat("one", "a", "b"),
        concat("other", "c", "a"),
        convolution("d", "one", 32, 16),
        convolution("e", "other", 32, 16),
        node("Add", "y", "d", "e"),
    ]
    assert len(built(nodes, ["y"], 16, tmp_path).memory.joined) == 1


@pytest.mark.thorough
def test_zeros_around_images_are_in_the_parts_already(tmp_path):
    nodes = [
        convolution("a", "x", 16, 16, 3),
        node("MaxPool", "small", "a", kernel_shape=[2, 2], strides=[2, 2]),
        convolution("low", "small", 16, 16, 3),
        node("Resize", "up", "low", "", "scales", mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric"),
        convolution("b", "a", 16, 32, 3),
        concat("joined", "a", "b"),
        convolution("c", "joined", 48, 16, 3),
        node("Add", "y", "c", "up"),
    ]  # fmt: skip
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], "float32"), "scales")
    nodes[3] = nodes[3][0], scales
    assert len(built(nodes, ["y"], 16, tmp_path).memory.joined) == 1


@pytest.mark.thorough
def test_residuals_with_and_without_zeros_around_them(tmp_path):
    nodes = [
        *(convolution(name, "x", 16, 16) for name in ("a", "r", "c")),
        node("Add", "ca", "c", "a"),
        node("Add", "e", "ca", "r"),
        convolution("b", "e", 16, 16),
        concat("joined", "a", "b"),
        convolution("y", "joined", 32, 16, 3),
        convolution("z", "r", 16, 16),
    ]
    built(nodes, ["y", "z"], 16, tmp_path)


def test_a_last_part_of_any_size(tmp_path):
    nodes = [
        convolution("a", "x", 3, 16),
        convolution("b", "x", 3, 5),
        concat("joined", "a", "b"),
        node("Relu", "y", "joined"),
    ]
    built(nodes, ["y"], 3, tmp_path)


@pytest.mark.thorough
def test_parts_of_a_wide_concatenation_are_kernels_of_their_own():
    """In one kernel each element would look through all 300 parts, and compiling would take minutes."""
    names = ", ".join(f"x{n}" for n in range(300))
    inputs = ", ".join(f"float[2,3] x{n}" for n in range(300))
    source = text_model(f"g ({inputs}) => (float[600,3] y) {{ t = Concat<axis=0>({names}) y = Relu(t) }}")
    optimized = optimize_model(import_model(source))
    kernels = [f for f in optimized.module.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert max(len(kernel.params) for kernel in kernels) <= 65
    x = np.random.default_rng(0).standard_normal((300, 2, 3), dtype=np.float32)
    (y,) = build_model(optimized).run({f"x{n}": x[n] for n in range(300)})
    np.testing.assert_array_equal(y, np.maximum(x.reshape(600, 3), 0))
