"""Models stored in float16 and bfloat16: float32 inside, their own types at the ends."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_model, import_onnx
from hetero_tvm.targets.npu.regions.placement import place
from tests.frontend.onnx.helpers import run_tvm, text_model
from tests.selection import thorough

NUMPY = {TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: ml_dtypes.bfloat16}
HALF = pytest.mark.parametrize("kind", NUMPY, ids=["float16", "bfloat16"])
WIDTH = 32


def constant(name, array, kind):
    """A tensor of that type; ``from_array`` knows no bfloat16."""
    narrow = np.asarray(array).astype(NUMPY[kind])
    return helper.make_tensor(name, kind, narrow.shape, narrow.tobytes(), raw=True)


def block(kind, stored=None):
    """x W, half of its positive part, + 1, + x, normalized: constants of every sort.  The product is an
    output too.  ``stored``: type of W, where that is another."""
    rng = np.random.default_rng(0)
    w, gain = rng.standard_normal((WIDTH, WIDTH)) / 6, rng.random(WIDTH) + 0.5
    nodes = [
        helper.make_node("Cast", ["w"], ["w_"], to=kind),
        helper.make_node("MatMul", ["x", "w_"], ["product"]),
        helper.make_node("Relu", ["product"], ["relu"]),
        helper.make_node("Constant", [], ["half"], value=constant("", 0.5, kind)),
        helper.make_node("Mul", ["relu", "half"], ["less"]),
        helper.make_node("ConstantOfShape", ["rows"], ["ones"], value=constant("", [1.0], kind)),
        helper.make_node("Add", ["less", "ones"], ["more"]),
        helper.make_node("Add", ["more", "x"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "gain"], ["y"], axis=-1),
    ]
    ends = [helper.make_tensor_value_info(n, kind, (4, WIDTH)) for n in ("x", "product", "y")]
    weights = constant("w", w, kind)
    if stored == TensorProto.FLOAT:
        weights = numpy_helper.from_array(w.astype(np.float32), "w")
    rows = numpy_helper.from_array(np.array([4, 1]), "rows")
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weights, constant("gain", gain, kind), rows])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(model, x):
    """In float64 from the stored weights."""
    kept = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name != "rows"}
    w, gain = (kept[n].astype(np.float64) for n in ("w", "gain"))
    product = x.astype(np.float64) @ w
    total = np.maximum(product, 0) * 0.5 + 1 + x.astype(np.float64)
    centred = total - total.mean(-1, keepdims=True)
    return product, centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain


def sample(kind):
    return np.random.default_rng(1).standard_normal((4, WIDTH)).astype(NUMPY[kind])


def error(got, truth):
    """The worst one over the outputs, relative to their largest elements."""
    pairs = zip(got, truth, strict=True)
    return max(np.abs(np.asarray(a).astype(np.float64) - b).max() / np.abs(b).max() for a, b in pairs)


@HALF
def test_float32_inside_and_the_models_types_outside(kind):
    model, name = block(kind), np.dtype(NUMPY[kind]).name
    imported = import_model(model)
    assert imported.stored == name
    assert [spec.dtype for spec in (*imported.signature.inputs, *imported.signature.outputs)] == [name] * 3
    types = [b.var.ty for part in imported.module["main"].body.blocks for b in part.bindings]
    inside = [str(ty.dtype) for ty in types if hasattr(ty, "dtype")]
    assert inside.count(name) == 2 and set(inside) == {"float32", name}  # the casts of the outputs
    x = sample(kind)
    got = build_model(optimize_model(imported, "cpu"), use_shipped=False).run({"x": x})
    # Only the ends are rounded, once: to 11 or 8 bits.
    assert error(got, expected(model, x)) <= {"float16": 5e-4, "bfloat16": 4e-3}[name]


def test_weights_decide_what_a_model_is_stored_in():
    assert import_model(block(TensorProto.FLOAT16, stored=TensorProto.FLOAT)).stored == "float32"


@pytest.mark.parametrize("target", ["npu:edge", *thorough(["npu:edge,bf16"])])
def test_the_npu_takes_what_it_keeps_as_it_is(target):
    """A float16 machine reads the model's input and writes its outputs without a conversion."""
    model = block(TensorProto.FLOAT16)
    plan = optimize_model(import_model(model), target)
    left = place(plan.module, plan.tasks, plan.target).placement.left
    assert len(left) == (3 if "bf16" in target else 0)
    x = sample(TensorProto.FLOAT16)
    got = build_model(plan, use_shipped=False).run({"x": x})
    assert error(got, expected(model, x)) <= (2e-2 if "bf16" in target else 2e-3)


def test_precision_is_what_the_model_is_stored_in():
    half, brain = (import_model(block(kind)) for kind in NUMPY)
    assert optimize_model(half, "npu").target.precision == "f16"
    assert optimize_model(brain, "npu").target.precision == "bf16"
    assert optimize_model(brain, "npu:edge,f16").target.precision == "f16"
    assert optimize_model(half, "cuda:sm_80").target.precision == "f16"
    assert optimize_model(half, "cuda:sm_80", precision="f32").target.precision == "f32"
    assert optimize_model(half, "cpu").target.precision == "f32"


def test_an_input_that_is_an_output_and_names_that_are_taken():
    kind = TensorProto.FLOAT16
    ends = [helper.make_tensor_value_info(n, kind, (3,)) for n in ("x", "y", "x_float32")]
    nodes = [helper.make_node("Neg", ["x"], ["x_float32"]), helper.make_node("Identity", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.array([1.5, np.inf, -0.0], np.float16)
    same, negative = build_model(optimize_model(import_model(model), "cpu"), use_shipped=False).run({"x": x})
    assert np.array_equal(same, x) and np.array_equal(negative, -x)


@HALF
def test_an_output_that_is_made_in_another_type_is_refused(kind):
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Neg", ["r"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", kind, [2, 3])
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ModelError, match="output 'y' is said to be B?FLOAT16, but made as FLOAT"):
        import_model(model)
    nodes.append(helper.make_node("Cast", ["y_"], ["y"], to=kind))
    nodes[1].output[0] = "y_"
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert import_model(model).signature.outputs[0].dtype == np.dtype(NUMPY[kind]).name


@pytest.mark.parametrize("kind, low, high", [(TensorProto.INT4, -8, 8), (TensorProto.UINT4, 0, 16)])
def test_constants_of_four_bits_become_bytes(kind, low, high):
    rng = np.random.default_rng(0)
    q, scale = rng.integers(low, high, (8, 6)), rng.random(6).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    constants = [
        helper.make_tensor("q", kind, q.shape, q.reshape(-1)),
        numpy_helper.from_array(scale, "s"),
        helper.make_tensor("z", kind, (6,), np.full(6, 3)),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (4, e)) for n, e in (("x", 8), ("y", 6))]
    graph = helper.make_graph(nodes, "four", ends[:1], ends[1:], constants)
    model = import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    x = rng.standard_normal((4, 8)).astype(np.float32)
    (y,) = build_model(optimize_model(model, "cpu"), use_shipped=False).run({"x": x})
    np.testing.assert_allclose(y, x @ ((q - 3) * scale), rtol=1e-4, atol=1e-5)


_NAMES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_NAMES |= {"int16": TensorProto.INT16, "uint16": TensorProto.UINT16}


@pytest.mark.parametrize(
    "given, wanted",
    [("bfloat16", "int16"), ("float16", "uint16"), ("int16", "float16"), ("uint16", "bfloat16")]
    + [("int16", "bfloat16"), ("float16", "bfloat16"), ("bfloat16", "float16")],
)
def test_bits_are_those_of_the_types_of_the_file(given, wanted):
    """They were refused, and between the two narrow types nothing was done."""
    node = f"y = BitCast<to = {_NAMES[wanted]}>(x)"
    source = text_model(f"g ({given}[4096] x) => ({wanted}[4096] y) {{ {node} }}", opset=26, ir=11)
    types = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
    bits = np.random.default_rng(0).integers(0, 1 << 16, 4096).astype(np.uint16)
    x = bits.view(types.get(given, given))
    (y,) = run_tvm(import_onnx(source), {"x": x})
    expected = bits.view(types.get(wanted, wanted))
    with np.errstate(invalid="ignore"):  # signalling NaN
        numbers = ~np.isnan(x.astype(np.float64)) & ~np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(y.view(np.uint16)[numbers], bits[numbers])
