"""Operators written for TVM become models: TensorIR, tensor expressions, Relax functions and modules."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.errors import ModelError, UsageError
from hetero_tvm.frontend.functions.importer import import_function
from hetero_tvm.host.tvm import relax, script_T, te, tirx, tvm

T = script_T


def scaled_product(m=6, k=5, n=7, dtype="float32"):
    """``te`` tensors of 2 * (A @ B)."""
    A, B = te.placeholder((m, k), dtype, name="A"), te.placeholder((k, n), dtype, name="B")
    axis = te.reduce_axis((0, k), name="k")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, axis] * B[axis, j], axis=axis), name="C")
    D = te.compute((m, n), lambda i, j: C[i, j] * tirx.const(2, dtype), name="D")
    return [A, B, D]


def run(model, *inputs):
    """Outputs of a model built with default points, checked on other inputs before."""
    built = build_model(optimize_model(model))
    assert built.check().ok
    names = [spec.name for spec in model.signature.inputs]
    return built.run(dict(zip(names, inputs, strict=True)))


def draw(*shapes, dtype="float32"):
    rng = np.random.default_rng()
    return [(8 * rng.standard_normal(shape)).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_tensor_expressions(dtype):
    model = import_function(scaled_product(dtype=dtype), name="twice")
    assert str(model.signature) == f"(A: {dtype}[6, 5], B: {dtype}[5, 7]) -> (D: {dtype}[6, 7])"
    assert model.name == "twice"
    a, b = draw((6, 5), (5, 7), dtype=dtype)
    np.testing.assert_allclose(run(model, a, b)[0], 2 * (a @ b), rtol=1e-4, atol=1e-3)


def test_functions_with_several_results_and_scalars():
    x = te.placeholder((33,), name="x")
    k = te.reduce_axis((0, 33), name="k")
    total = te.compute((), lambda: te.sum(x[k], axis=k), name="total")
    shifted = te.compute((33,), lambda i: x[i] + 1.0, name="shifted")
    model = import_function(te.create_prim_func([x, total, shifted]))
    (given,) = draw((33,))
    first, second = run(model, given)
    np.testing.assert_allclose(first, given.sum(), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(second, given + 1)
    assert [spec.name for spec in model.signature.outputs] == ["total", "shifted"]


def module_with_own_kernel():
    """Relax ``main``: relu(twice(x)) @ w + 1, where ``twice`` is TensorIR."""
    x = te.placeholder((4, 8), name="x")
    function = te.create_prim_func([x, te.compute((4, 8), lambda i, j: x[i, j] * 2.0, name="y")])
    builder = relax.BlockBuilder()
    twice = builder.add_func(function.without_attr("global_symbol"), "twice")
    tensor = relax.TensorType((4, 8), "float32")
    given, weight = relax.Var("x", tensor), relax.const(np.eye(8, 3, dtype="float32"))
    with builder.function("main", [given]):
        doubled = builder.emit(relax.call_tir(twice, [given], tensor))
        product = builder.emit(relax.op.matmul(relax.op.nn.relu(doubled), weight))
        builder.emit_func_output(builder.emit(relax.op.add(product, relax.const(1.0, "float32"))))
    return builder.get()


def test_relax_modules_with_kernels_of_ones_own():
    model = import_function(module_with_own_kernel())
    (x,) = draw((4, 8))
    np.testing.assert_allclose(run(model, x)[0], np.maximum(2 * x, 0)[:, :3] + 1, rtol=1e-5, atol=1e-5)
    assert "twice" in {task.name for task in optimize_model(model).tasks}


def test_relax_functions_and_modules_with_one_kernel():
    x = relax.Var("x", relax.TensorType((3, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output([builder.emit(relax.op.exp(x)), x])
    model = import_function(builder.get()["main"], name="pair")
    (given,) = draw((3, 4))
    found = run(model, given / 8)
    np.testing.assert_allclose(found[0], np.exp(given / 8), rtol=1e-5)
    np.testing.assert_array_equal(found[1], given / 8)
    kernel = te.create_prim_func(scaled_product())
    assert import_function(tvm.IRModule({"mine": kernel})).name == "mine"


def test_all_that_is_wrong_with_parameters_is_listed():
    @T.prim_func(s_tir=True)
    def bad(n: T.int64, Y: T.Buffer((4,), "float32"), Z: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("Y"):
                v = T.axis.remap("S", [i])
                T.reads(Y[v], Z[v])
                T.writes(Y[v])
                Y[v] = Y[v] + Z[v]

    with pytest.raises(ModelError) as caught:
        import_function(bad)
    assert caught.value.problems == (
        "parameter n is no buffer",
        "Y is read before it is written: it is input and result at once",
        "Z is an input after a result",
    )
    size = tirx.Var("n", "int64")
    x = te.placeholder((size,), name="x")
    with pytest.raises(ModelError, match="x has the open shape"):
        import_function([x, te.compute((size,), lambda i: x[i] + 1.0, name="y")])
    y = te.placeholder((3,), name="y")
    with pytest.raises(ModelError, match="no parameter is written"):
        import_function(te.create_prim_func([y]))


def test_a_sum_without_init_writes_before_it_reads_and_a_body_without_blocks_is_refused():
    @T.prim_func(s_tir=True)
    def running(X: T.Buffer((4, 8), "float32"), Y: T.Buffer((4,), "float32")):
        for i, k in T.grid(4, 8):
            with T.sblock("Y"):
                v, r = T.axis.remap("SR", [i, k])
                if r == 0:
                    Y[v] = T.float32(0)
                Y[v] = Y[v] + X[v, r]

    (given,) = draw((4, 8))
    np.testing.assert_allclose(run(import_function(running), given)[0], given.sum(1), rtol=1e-5, atol=1e-4)

    @T.prim_func(s_tir=True)
    def bare(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        for i in range(4):
            Y[i] = X[i] * T.float32(3)

    with pytest.raises(ModelError, match="its body has no block"):
        import_function(bare)


def test_placeholders_that_are_not_in_the_list_are_named():
    a, b = (te.placeholder((4, 4), name=name) for name in "ab")
    both = te.compute((4, 4), lambda i, j: a[i, j] + b[i, j], name="both")
    result = te.compute((4, 4), lambda i, j: both[i, j] * a[i, j], name="result")
    assert import_function([a, b, result]).signature.inputs[1].name == "b"
    for listed, missing in (([result], "ab"), ([a, result], "b")):
        with pytest.raises(ModelError, match="not complete") as caught:
            import_function(listed)
        assert [problem[:14] for problem in caught.value.problems] == [f"placeholder {n} " for n in missing]


@pytest.mark.parametrize("what", [7, [], "bert.onnx", [1, 2], None, tvm.IRModule({})], ids=repr)
def test_what_is_no_operator_is_refused(what):
    with pytest.raises(UsageError):
        import_function(what)
