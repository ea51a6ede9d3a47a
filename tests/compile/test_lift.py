"""One library for all lengths: the numbers of every size, refusals by name, and what cannot be lifted."""

import dataclasses
import gc
import itertools
import threading

import numpy as np
import onnx
import onnxruntime
import pytest

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.compile import lift
from hetero_tvm.compile.lift import lift_model
from hetero_tvm.errors import BuildError, HeteroTVMError, InputError
from hetero_tvm.frontend import Span
from hetero_tvm.reference import run_reference
from tests.frontend.onnx.helpers import text_model


@pytest.fixture(scope="module")
def net(library):
    return hetero_tvm.load(library)


@pytest.mark.thorough
def test_every_size_gives_the_numbers_of_the_model_at_that_size(optimized, net):
    for batch, length in ((1, 2), (3, 20), (2, 7), (1, 17), (3, 2)):
        fixed = optimized.model.open.at(dict(zip(("batch", "sequence"), (batch, length), strict=True)))
        generator = np.random.default_rng(length)
        inputs = {}
        for spec in fixed.signature.inputs:
            high = 2 if "mask" in spec.name or "type" in spec.name else 100
            inputs[spec.name] = generator.integers(0, high, spec.shape).astype(spec.dtype)
            if "mask" in spec.name:
                inputs[spec.name][:, 0] = 1
        reference = run_reference(fixed, inputs)
        results = net(**inputs)
        results = results if isinstance(results, tuple) else (results,)
        for result, exact in zip(results, reference.float64, strict=True):
            assert result.shape == exact.shape
            np.testing.assert_allclose(result, exact, atol=2e-5 * np.abs(exact).max())


@pytest.mark.thorough
def test_a_profile_names_the_nodes_of_each_kernel(net):
    arrays = [np.ones((2, 8), "int64")] * len(net.signature.inputs)
    found = net.profile(*arrays, seconds=0.01)
    assert all(call.nodes for call in found.calls if not call.kernel.startswith(("check", "front")))


@pytest.mark.thorough
def test_a_profile_counts_the_work_of_the_sizes_that_are_called(optimized, net):
    """It had none, and kernels had the names of the largest sizes."""
    fixed = optimize_model(optimized.model.open.at({"batch": 2, "sequence": 8}))
    wanted = {task.calls[0]: task for task in fixed.tasks if task.op is not None}
    rows = {row["kernel"]: row for row in net.manifest.kernels}
    arrays = [np.ones((2, 8), "int64")] * len(net.signature.inputs)
    counted = 0
    for kernel in net.profile(*arrays, seconds=0.01).kernels:
        row = rows.get(kernel.name, {})
        task = wanted.get(tuple(row.get("nodes", ())))
        if task is None or "bytes_at" not in row:
            continue
        assert (kernel.flops, kernel.nbytes) == (task.flops, task.nbytes) and kernel.gbs > 0, kernel.name
        assert "batch" in kernel.name and "60" not in kernel.name, kernel.name
        counted += 1
    assert counted > 4


@pytest.mark.thorough
def test_a_profile_counts_its_own_call_whatever_other_threads_call(net):
    """The sizes were those of the last call, whoever made it."""

    def arrays(batch, sequence):
        return [np.ones((batch, sequence), "int64")] * len(net.signature.inputs)

    others = [threading.Thread(target=net, args=arrays(1, 16))]

    def call():
        net(*arrays(2, 8))
        while others:
            others[0].start()
            others.pop().join()

    alone = {kernel.name: kernel.flops for kernel in net.profile(*arrays(2, 8), seconds=0.01).kernels}
    beside = {kernel.name: kernel.flops for kernel in net.profile_call(call, seconds=0.01).kernels}
    assert beside == alone


@pytest.mark.thorough
def test_sizes_outside_and_symbols_that_differ_are_refused_by_name(net):
    names = [spec.name for spec in net.signature.inputs]
    assert [str(symbol) for symbol in net.signature.symbols] == ["batch = 1..3", "sequence = 2..20"]

    def call(*shapes):
        return net(**{name: np.ones(shape, "int64") for name, shape in zip(names, shapes, strict=False)})

    with pytest.raises(InputError, match=r"dimension 1 \(sequence\) is 21, outside 2\.\.20"):
        call(*[(1, 21)] * len(names))
    with pytest.raises(InputError, match=r"dimension 0 \(batch\) is 0, outside 1\.\.3"):
        call(*[(0, 8)] * len(names))
    with pytest.raises(InputError, match="they must be equal"):
        call((1, 8), *[(1, 9)] * (len(names) - 1))
    with pytest.raises(InputError, match="expected int64"):
        net(**{name: np.ones((1, 8), "float32") for name in names})


def test_a_model_that_is_another_one_at_other_sizes_is_refused_with_its_node(capfd):
    text = """
    g (float[n, 4] x) => (float[m] y)
    {
        shape = Shape(x)
        flat = ReduceProd<keepdims = 1>(shape)
        zero = Constant<value_ints = [0]>()
        one = Constant<value_ints = [1]>()
        start = ReduceMin<keepdims = 0>(zero)
        step = ReduceMin<keepdims = 0>(one)
        end = ReduceMin<keepdims = 0>(flat)
        places = Range(start, end, step)
        seven = Constant<value_ints = [7]>()
        weekdays = Mod(places, seven)
        sorted, order = TopK(weekdays, flat)
        numbers = Cast<to = 1>(order)
        line = Reshape(x, flat)
        y = Add(line, numbers)
    }
    """
    optimized = optimize_model(import_model(text_model(text), shapes={"x": (Span(2, 9), 4)}))
    with pytest.raises(BuildError, match=r"cannot be one library for n = 2\.\.9: at .*other values"):
        build_model(optimized)
    gc.collect()
    assert capfd.readouterr().err == ""  # a builder tells of blocks that it is left with


def run_choices(text, shape, sizes):
    """Check a model of ``x`` with open rows and a choice ``c`` beside onnxruntime, both ways through."""
    proto = text_model(text)
    net = build_model(optimize_model(import_model(proto, shapes={"x": shape})))
    theirs = onnxruntime.InferenceSession(proto.SerializeToString())
    for size, choice in itertools.product(sizes, (False, True)):
        extents = [size if isinstance(extent, Span) else extent for extent in shape]
        x = np.random.default_rng(size).standard_normal(extents).astype("float32")
        inputs = {"x": x, "c": np.array(choice)}
        for ours, exact in zip(net.run(inputs), theirs.run(None, inputs), strict=True):
            np.testing.assert_allclose(ours, exact, atol=1e-5)


def test_branches_of_a_choice_are_those_of_all_sizes():
    text = """
    g (float[n, 4] x, bool c) => (float[n, 4] y) <float[4, 4] w = {
        1, 2, 3, 4, 5, 6, 7, 8, -1, -2, -3, -4, -5, -6, -7, -8}>
    {
        r = If (c) <then_branch = one () => (float[n, 4] s) {
                total = ReduceSum<keepdims = 0>(x)
                none = Constant<value = float {0.0}>()
                more = Greater(total, none)
                s = If (more) <then_branch = two () => (float[n, 4] e) { e = Exp(x) },
                               else_branch = three () => (float[n, 4] t) { t = Softmax(x) }>
            },
            else_branch = four () => (float[n, 4] p) { p = MatMul(x, w) }>
        y = Relu(r)
    }
    """
    run_choices(text, (Span(1, 9), 4), (1, 4, 9))


@pytest.mark.thorough
def test_a_constant_that_a_branch_makes_is_not_read_outside():
    text = """
    g (float[1, 2, h, 8] x, bool c) => (float[1, 2, a, 16] y)
    {
        scales = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
        r = If (c) <then_branch = one () => (float[1, 2, a, 16] s) {
                        s = Resize<mode = "linear">(x, , scales)
                    },
                    else_branch = two () => (float[1, 2, a, 16] p) {
                        u = Resize<mode = "cubic">(x, , scales)
                        p = Tanh(u)
                    }>
        v = Resize<mode = "linear">(x, , scales)
        y = Add(r, v)
    }
    """
    run_choices(text, (1, 2, Span(2, 12), 8), (2, 7, 12))


@pytest.mark.thorough
def test_kernels_of_one_size_are_left_out(tmp_path):
    """Resizing and positions of extrema have kernels whose constants belong to one size."""
    text = """
    g (float[1, 2, h, 40] x) => (float[1, 2, a, 80] y, int64[1, 2, h, 1] places)
    {
        scales = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
        y = Resize<mode = "linear">(x, , scales)
        places = ArgMax<axis = -1>(x)
    }
    """
    optimized = optimize_model(import_model(text_model(text), shapes={"x": (1, 2, Span(2, 30), 40)}))
    net = hetero_tvm.load(build_model(optimized).export(tmp_path / "model.so"))
    for height in (2, 11, 30):
        inputs = {"x": np.random.default_rng(height).standard_normal((1, 2, height, 40)).astype("float32")}
        reference = run_reference(optimized.model.open.at({"h": height}), inputs)
        for result, exact in zip(net(**inputs), reference.float64, strict=True):
            np.testing.assert_allclose(result, exact, atol=1e-5)


@pytest.mark.thorough
def test_targets_without_such_kernels_refuse_ranges(optimized):
    from hetero_tvm.errors import UsageError

    with pytest.raises(UsageError, match="fixed shapes only"):
        optimize_model(dataclasses.replace(optimized.model), target="npu")


def test_an_index_is_checked_against_a_length_that_only_the_call_tells():
    text = """
    pick (float[rows, 4] x, int64[1, 4] at) => (float[1, 4] y)
    {
        y = GatherElements<axis=0>(x, at)
    }
    """
    optimized = optimize_model(import_model(text_model(text), shapes={"x": (Span(2, 30), 4)}))
    built = build_model(optimized, use_shipped=False)
    for rows in (2, 7, 30):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        at = np.array([[0, rows - 1, -1, -rows]])
        (y,) = built.run({"x": x, "at": at})
        np.testing.assert_array_equal(y, np.take_along_axis(x, at, 0))
        for outside in (rows, -rows - 1):
            with pytest.raises(HeteroTVMError, match="rows"):
                built.run({"x": x, "at": np.array([[0, outside, 0, 0]])})


@pytest.mark.thorough
def test_strides_on_strides_have_a_kernel_that_inputs_tell_the_length(tmp_path):
    """The width of the second result is a quotient of the model's length, which no operand of its own has."""
    text = """
    g (float[b, 3, n] x) => (float[b, 4, m] y)
    {
        first = Conv<strides = [5]>(x, w)
        second = Conv<strides = [2]>(first, v)
        y = Conv<strides = [2]>(second, u)
    }
    """
    model = text_model(text)
    rng = np.random.default_rng(0)
    for name, channels in (("w", 3), ("v", 4), ("u", 4)):
        values = rng.standard_normal((4, channels, 3), dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    shapes = {"x": (Span(1, 3), 3, Span(60, 400))}
    optimized = optimize_model(import_model(model, shapes=shapes))
    module = lift_model(optimized, {})
    kernels = [function for function in module.functions.values() if hasattr(function, "params")]
    assert not [f for f in kernels if "T.sblock" in f.script()]  # loops as the contract states them
    net = hetero_tvm.load(build_model(optimized).export(tmp_path / "model.so"))
    for batch, length in ((1, 60), (3, 61), (2, 399)):
        x = rng.standard_normal((batch, 3, length), dtype=np.float32)
        sizes = {"b": batch, "n": length}
        (exact,) = run_reference(optimized.model.open.at(sizes), {"x": x}).float64
        np.testing.assert_allclose(net(x=x), exact, atol=1e-4)  # sums of 48 products of sums in float32


@pytest.mark.thorough
def test_a_batch_around_the_rows_that_bfloat16_begins_with():
    """Products round X at every batch of a range, or at none: the kernels of all sizes are one."""
    text = """<ir_version: 8, opset_import: ["" : 17]> agraph (float[n, 48] x) => (float[n, 9] y)
        { h = Relu(x)  y = MatMul(h, w) }"""
    model = onnx.parser.parse_model(text)
    w = np.random.default_rng(0).standard_normal((48, 9)).astype("float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    opened = import_model(model, shapes={"x": (Span(1, 6), 48)})
    built = build_model(optimize_model(opened, precision="bf16"), use_shipped=False)
    for batch in (1, 3, 4, 6):
        x = np.random.default_rng(batch).standard_normal((batch, 48)).astype("float32")
        exact = np.maximum(x, 0).astype("float64") @ w
        (y,) = built.run({"x": x})
        error = np.abs(y - exact).max() / np.abs(exact).max()
        assert error < 1e-2  # eight bits of each factor


def _row_by_row(steps: int) -> onnx.ModelProto:
    """What tracing makes of ``out[:, t] = sigmoid(x[:, t])``: places for each step, as many as the batch."""
    constants = {"zero": np.array(0), "one": np.array(1), "first": np.array([0]), "ends": np.array([1, 1])}
    made = [
        ("Shape", ["x"], "shape", {}),
        ("Gather", ["shape", "zero"], "batch", {}),
        ("Unsqueeze", ["batch", "first"], "batches", {}),
        ("Concat", ["batches", "ends"], "one_each", {"axis": 0}),
        ("Range", ["zero", "batch", "one"], "range", {}),
        ("Reshape", ["range", "one_each"], "rows", {}),
        ("Relu", ["x"], "out", {}),
    ]
    for t in range(steps):
        constants[f"t{t}"] = np.array([t])
        made += [
            ("Gather", ["x", f"t{t}"], f"row{t}", {"axis": 1}),
            ("Sigmoid", [f"row{t}"], f"new{t}", {}),
            ("Expand", [f"t{t}", "one_each"], f"column{t}", {}),
            ("Concat", ["rows", f"column{t}"], f"places{t}", {"axis": 2}),
            ("ScatterND", [f"out{t - 1}" if t else "out", f"places{t}", f"new{t}"], f"out{t}", {}),
        ]
    helper = onnx.helper
    extents = ["batch", steps, 8]
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [name], **attributes) for kind, inputs, name, attributes in made],
        "row_by_row",
        [helper.make_tensor_value_info("x", 1, extents)],
        [helper.make_tensor_value_info(f"out{steps - 1}", 1, extents)],
        [onnx.numpy_helper.from_array(v.astype("int64"), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_constants_of_one_shape_are_each_copied(monkeypatch):
    """Copies were kept by the address of a wrapper that was gone: one constant could stand for another."""
    monkeypatch.setattr(lift, "id", lambda _: 0, raising=False)  # an address comes again when it is free
    model = _row_by_row(2)
    built = build_model(optimize_model(import_model(model, shapes={"x": [Span(1, 3), 2, 8]})))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 2, 8)).astype("float32")
        np.testing.assert_allclose(built.run({"x": x})[0], session.run(None, {"x": x})[0], atol=1e-6)
