"""Packed weights of ONNX files stay packed: blocks of all sizes, gates, ranges of rows."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import hetero_tvm
from hetero_tvm import Span
from hetero_tvm.ops.decoding.columns import PackedColumns
from hetero_tvm.ops.decoding.storage import Storage, quantized
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.relax_passes.fusions.integers.packed_weights import KeepPackedWeights
from hetero_tvm.relax_passes.fusions.matmul import FuseMatmul
from hetero_tvm.schedules.cpu.decoding.integer_words import has_integer_words
from hetero_tvm.schedules.cpu.integers.stored_matmul import permitted_bits
from tests.relax_passes.graphs import constant, fuse, module, op, weights
from tests.relax_passes.rewrite import Rewrite, kernel
from tests.selection import thorough

K = 70
PACKED = quantized(weights(96, 64), Storage("int4", 32, True))
W = PACKED.dequantized().T.copy()


def keep(claims=lambda op: True, x_bits=lambda form: 0):
    columns = PackedColumns()
    columns.add(PACKED)
    return KeepPackedWeights(claims, columns, x_bits)


class TestKeepPackedWeights(Rewrite):
    rule = keep(x_bits=lambda form: {"int4": 8}[form])
    inputs = {"x": (4, 64), "r": (4, 96)}
    bias = weights(96)

    def before(self, x, r):
        return kernel(Matmul((4,), 96, 64, ("bias", "residual")), x, constant(W), constant(self.bias), r)

    def expected(self, x, r):
        contract = StoredMatmul((4,), 96, 64, ("bias", "residual"), "int4", 32, True, x_bits=8)
        parts = (
            constant(PACKED.q, "uint8"), constant(PACKED.scale, "float16"), constant(PACKED.zero, "uint8")
        )  # fmt: skip
        return kernel(contract, x, *parts, constant(self.bias), r)


@pytest.mark.parametrize(
    ("w", "options", "reason"),
    [
        (W, {"claims": lambda op: False}, "the target has no kernel for it"),
        (W[:, :8], {}, "64 x 8 weights are too few to count in memory"),
        (W + 1, {}, "its weights are not those that the file packs"),
    ],
)
def test_products_that_stay_floats(w, options, reason):
    def body(emit, x):
        return emit(op.matmul(x, constant(np.ascontiguousarray(w))))

    _, _, report = fuse(module({"x": (2, 64)}, body), FuseMatmul(), keep(**options))
    assert [miss["reason"] for miss in report.misses if miss["rule"] == "packed_weights"] == [reason]


def packed(random, n, bits=4, block=32, zero=False, whole_scales=False):
    """(initializers but the first operand, float64 weights [K, n]) of one product."""
    blocks = -(-K // block)
    q = random.integers(0, 1 << bits, (n, blocks * block)).astype(np.uint8)
    scale = random.uniform(0.01, 0.02, (n, blocks)).astype(np.float32)
    if whole_scales:
        scale = scale.astype(np.float16).astype(np.float32)
    zeros = random.integers(0, 1 << bits, (n, blocks + blocks % 2)).astype(np.uint8) if zero else None
    data = q if bits == 8 else q[:, ::2] | q[:, 1::2] << 4
    arrays = [data.reshape(n, blocks, -1), scale.reshape(-1)]
    if zero:
        arrays.append((zeros[:, :blocks] if bits == 8 else zeros[:, ::2] | zeros[:, 1::2] << 4).reshape(-1))
    at = 1 << (bits - 1) if zeros is None else np.repeat(zeros[:, :blocks], block, 1).astype(np.float64)
    weights = (q.astype(np.float64) - at) * np.repeat(scale, block, 1).astype(np.float64)
    return arrays, weights[:, :K].T


def model(products, body=(), outputs=None, level=0, rows="m"):
    """Products of x [rows, K] with packed weights, by name, and further nodes."""
    nodes, stored, exact = [], [], {}
    random = np.random.default_rng(0)
    for name, (n, options) in products.items():
        arrays, exact[name] = packed(random, n, **options)
        names = [f"{name}_{i}" for i in range(len(arrays))]
        stored += [numpy_helper.from_array(a, at) for a, at in zip(arrays, names, strict=True)]
        bits, block = options.get("bits", 4), options.get("block", 32)
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                ["x", *names],
                [name],
                domain="com.microsoft",
                K=K,
                N=n,
                bits=bits,
                block_size=block,
                accuracy_level=level,
            )  # fmt: skip
        )
    nodes += [helper.make_node(kind, given, made) for kind, given, made in body]
    floats = TensorProto.FLOAT
    results = [helper.make_tensor_value_info(n, floats, None) for n in outputs or products]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", floats, [rows, K])], results, stored
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), exact


def built(proto, rows):
    shapes = {"x": (rows, K)}
    optimized = hetero_tvm.optimize_model(hetero_tvm.import_model(proto, shapes=shapes))
    return hetero_tvm.build_model(optimized)


def contracts(made):
    return [task.op for task in made.optimized.tasks if isinstance(task.op, StoredMatmul)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"zero": True},
        {"bits": 8, "block": 128, "zero": True},
        *thorough([{"bits": 8, "block": 64}, {"block": 256, "zero": True}, {"whole_scales": True}]),
    ],
    ids=str,
)
def test_numbers_are_those_of_the_file(options):
    """Arithmetic is float32: sums of 70 products."""
    proto, exact = model({"y": (48, options)})
    random = np.random.default_rng(1)
    for rows in (1, 5, 9, 100):
        made = built(proto, rows)
        (op,) = contracts(made)
        assert op.scales == ("float16" if options.get("whole_scales") else "float32")
        assert (op.x_bits, op.group) == (0, min(options.get("block", 32), 128))
        x = random.standard_normal((rows, K)).astype(np.float32)
        want = x.astype(np.float64) @ exact["y"]
        np.testing.assert_allclose(made.run({"x": x})[0], want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_gates_are_taken_along_and_so_are_products_of_one_x():
    body = [
        ("Sigmoid", ["gate"], ["s"]),
        ("Mul", ["gate", "s"], ["silu"]),
        ("Mul", ["silu", "up"], ["y"]),
    ]
    proto, exact = model({"gate": (64, {}), "up": (64, {})}, body, ["y"])
    made = built(proto, 3)
    (op,) = contracts(made)
    assert op.gate == "silu"
    x = np.random.default_rng(1).standard_normal((3, K)).astype(np.float32)
    gate, up = (x.astype(np.float64) @ exact[name] for name in ("gate", "up"))
    want = gate / (1 + np.exp(-gate)) * up
    np.testing.assert_allclose(made.run({"x": x})[0], want, rtol=0, atol=5e-6 * np.abs(want).max())


@pytest.mark.parametrize("level", [0, 4])
def test_one_library_for_a_range_of_rows(level):
    proto, exact = model({"y": (100, {"zero": True})}, level=level)
    made = built(proto, Span(1, 40))
    assert len(contracts(made)) == 1
    assert made.check().ok
    rounded = level == 4 and has_integer_words(made.optimized.machine)
    random = np.random.default_rng(1)
    for rows in (1, 2, 7, 8, 31, 40):
        x = random.standard_normal((rows, K)).astype(np.float32)
        want = x.astype(np.float64) @ exact["y"]
        # Half a step of 3 / 127 for each of 70 products, which add up like a random walk.
        allowed = 2e-2 if rounded else 2e-6
        np.testing.assert_allclose(made.run({"x": x})[0], want, rtol=0, atol=allowed * np.abs(want).max())


@pytest.mark.parametrize("options", [{}, {"bits": 8}], ids=str)
def test_only_a_file_that_allows_it_is_rounded(options):
    for level in (0, 3, 4):
        made = built(model({"y": (48, options)}, level=level)[0], 20)
        form, machine = "int8" if options else "int4", made.optimized.machine
        assert contracts(made)[0].x_bits == (permitted_bits(form, machine) if level == 4 else 0)
        assert made.check().ok


def test_what_kernels_do_not_know_is_float32():
    for options in ({"block": 16},):
        proto, exact = model({"y": (48, options)})
        made = built(proto, 4)
        assert not contracts(made)
        x = np.random.default_rng(1).standard_normal((4, K)).astype(np.float32)
        np.testing.assert_allclose(made.run({"x": x})[0], x @ exact["y"], rtol=0, atol=1e-5)


def dequantized_product(weight, more, given, rows=4, ends=("y",), **attributes):
    """Product of x with a dequantized weight, and what is behind the weight, as nodes."""
    random = np.random.default_rng(0)
    n = weight.shape[attributes.get("axis", 1)]
    scale = random.uniform(0.01, 0.02, n).astype(np.float32)
    stored = [numpy_helper.from_array(weight, "q"), numpy_helper.from_array(scale, "s")]
    stored += [numpy_helper.from_array(array, name) for name, array in given.items()]
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"], **attributes), *more]
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in (("x", ["m", K]), ("y", None))
    ]
    graph = helper.make_graph(nodes, "g", *values, stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return built(proto, rows), scale.astype(np.float64)


def test_scaled_weights_stay_packed():
    """A number behind the DequantizeLinear, or behind the product, which a pass takes into the weights."""
    random = np.random.default_rng(1)
    q, x = random.integers(-128, 128, (K, 48)).astype(np.int8), random.standard_normal((4, K))
    for form in ("weight", "columns", "product"):
        f = random.uniform(0.2, 2, 48 if form == "columns" else 1).astype(np.float32)
        names = {"weight": ("w", "v"), "columns": ("w", "v"), "product": ("p", "y")}[form]
        mul = helper.make_node("Mul", [names[0], "f"], [names[1]])
        product = helper.make_node("MatMul", ["x", "w" if form == "product" else "v"], ["p"])
        last = helper.make_node("Relu", ["p"], ["y"])
        nodes = [product, mul] if form == "product" else [mul, product, last]
        made, scale = dequantized_product(q, nodes, {"f": f}, axis=1)
        (op,) = contracts(made)
        assert op.form == "int8"
        want = x.astype(np.float32).astype(np.float64) @ (q * scale) * f
        want = want if form == "product" else np.maximum(want, 0)
        found = made.run({"x": x.astype(np.float32)})[0]
        # Sums of 70 products in float32.
        np.testing.assert_allclose(found, want, rtol=0, atol=3e-6 * np.abs(want).max())


def test_weights_of_gemm_by_row_stay_packed():
    random = np.random.default_rng(2)
    q, x = random.integers(-128, 128, (48, K)).astype(np.int8), random.standard_normal((4, K))
    gemm = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)
    bias = random.standard_normal(48).astype(np.float32)
    made, scale = dequantized_product(q, [gemm], {"b": bias}, axis=0)
    (op,) = contracts(made)
    assert op.form == "int8" and made.check().ok
    want = x.astype(np.float32).astype(np.float64) @ (q * scale[:, None]).T + bias
    found = made.run({"x": x.astype(np.float32)})[0]
    np.testing.assert_allclose(found, want, rtol=0, atol=3e-6 * np.abs(want).max())


@pytest.mark.parametrize("rows", [2, 40])
def test_weights_that_are_dequantized_stay_packed(rows):
    """8 bits with a scale per column beside floats, as quantisers of weights alone write them."""
    random = np.random.default_rng(0)
    q, scale = random.integers(-128, 128, (K, 48)).astype(np.int8), random.uniform(0.01, 0.02, 48)
    stored = [numpy_helper.from_array(q, "q"), numpy_helper.from_array(scale.astype(np.float32), "s")]
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["y"]),
    ]
    ends = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in (("x", ["m", K]), ("y", None))
    ]
    graph = helper.make_graph(nodes, "g", *ends, stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = built(proto, rows)
    (op,) = contracts(made)
    assert (op.form, op.x_bits, op.epilogue) == ("int8", 0, ("relu",))
    x = random.standard_normal((rows, K)).astype(np.float32)
    want = np.maximum(x.astype(np.float64) @ (q * scale.astype(np.float32).astype(np.float64)), 0)
    np.testing.assert_allclose(made.run({"x": x})[0], want, rtol=0, atol=2e-6 * want.max())
