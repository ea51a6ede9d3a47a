"""What the lowering pipeline does to ordinary kernels: polynomials for libm, stack for small buffers."""

import re

import numpy as np
import pytest
from scipy import special

from hetero_tvm.codegen import pipeline
from hetero_tvm.codegen.pipeline import STACK_LIMIT, compile_kernels
from hetero_tvm.host.tvm import s_tir, s_tir_pipeline, te, tirx, topi, tvm, tvm_ffi
from hetero_tvm.schedules.cpu import generic
from hetero_tvm.schedules.emit import Kernel
from tests.schedules.cpu.running import MACHINES, TARGET, compiled, llvm_of

AVX2 = MACHINES["avx2"]


def elementwise(compute, shape=(8, 64), dtype="float32"):
    x = te.placeholder(shape, dtype)
    return generic.schedule(te.create_prim_func([x, compute(x)]), AVX2)


def library_calls(ir):
    called = set(re.findall(r"call [^\n]*@([\w.]+)\(", ir))
    return {name for name in called if re.search(r"exp|erf|tanh|pow|log|sin|cos", name)}


@pytest.mark.parametrize("name", ["exp", "erf", "tanh", "sigmoid"])
def test_no_library_call_is_left(name):
    function = elementwise(getattr(topi, name))
    assert library_calls(llvm_of(function)) == set()
    (run,) = compiled([(function, (8, 64))])
    x = np.linspace(-5, 5, 512, dtype="float32").reshape(8, 64)
    truth = {"exp": np.exp, "erf": special.erf, "tanh": np.tanh, "sigmoid": special.expit}[name]
    np.testing.assert_allclose(run(x), truth(x.astype("float64")), rtol=1e-6, atol=4e-7)


@pytest.mark.parametrize("name", ["erf", "tanh"])
def test_no_value_lies_beyond_one(name):
    """They did by two roundings, which roots and logarithms of 1 - y made NaN; NaN itself stays."""
    (run,) = compiled([(elementwise(getattr(topi, name)), (8, 64))])
    for x in np.linspace(2.5, 10, 512 * 40, dtype="float32").reshape(40, 8, 64):
        assert np.abs(run(x)).max() <= 1 and np.abs(run(-x)).max() <= 1
    special_values = np.array([np.nan, np.inf, -np.inf, 0] * 128, "float32").reshape(8, 64)
    np.testing.assert_array_equal(run(special_values).reshape(-1)[:4], np.float32([np.nan, 1, -1, 0]))


def test_also_inside_larger_expressions_and_reductions():
    assert library_calls(llvm_of(elementwise(lambda x: topi.tanh(topi.exp(x)) * topi.erf(x)))) == set()
    softmax = elementwise(topi.nn.softmax)
    assert library_calls(llvm_of(softmax)) == set()


def test_float64_keeps_its_precision():
    function = elementwise(topi.exp, dtype="float64")
    assert library_calls(llvm_of(function)) == set()
    x = np.linspace(-5, 5, 512).reshape(8, 64)
    y = tvm.runtime.tensor(np.zeros(x.shape))
    compile_kernels(function, TARGET)["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_allclose(y.numpy(), np.exp(x), rtol=1e-15)


def test_other_functions_are_left_to_the_library():
    assert library_calls(llvm_of(elementwise(topi.log))) == set()
    assert library_calls(llvm_of(elementwise(topi.log, dtype="float64"))) != set()


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("name", ["log", "exp", "sin"])
def test_whole_numbers_of_functions(name, dtype):
    """The bits that a polynomial binds are no bounds of the result; NaN is the least number."""
    function = elementwise(lambda x: topi.cast(getattr(topi, name)(x), dtype))
    run = compile_kernels(function, TARGET)["main"]

    def of(x):
        y = tvm.runtime.tensor(np.zeros(x.shape, dtype))
        run(tvm.runtime.tensor(x), y)
        return y.numpy()

    x = np.linspace(1.1, 2.9, 512, dtype="float32").reshape(8, 64)
    exact = getattr(np, name)(x.astype("float64"))
    near = np.abs(exact - np.round(exact)) < 1e-5
    np.testing.assert_array_equal(of(x)[~near], exact.astype(dtype)[~near])
    if dtype.startswith("int") and name == "log":
        assert (of(-x) == np.iinfo(dtype).min).all()


def test_logarithms_just_beyond_one():
    """The softplus of what is far below 0 is its exponential: 1 + y would round it away."""
    function = elementwise(lambda x: topi.log(1.0 + topi.exp(x)))
    (run,) = compiled([(function, (8, 64))])
    x = np.linspace(-80, 20, 512, dtype="float32").reshape(8, 64)
    np.testing.assert_allclose(run(x), np.logaddexp(0, x.astype("float64")), rtol=1e-6)


@pytest.mark.parametrize("power", [2.0, 3.0])
def test_small_powers_are_products(power):
    function = elementwise(lambda x: topi.power(x, power))
    assert library_calls(llvm_of(function)) == set()
    (run,) = compiled([(function, (8, 64))])
    x = np.linspace(-3, 3, 512, dtype="float32").reshape(8, 64)
    np.testing.assert_allclose(run(x), x**power, rtol=1e-6)


def scratch(count, dtype="float32"):
    k = Kernel()
    with k:
        x, y = k.argument("x", (count,), dtype), k.argument("y", (count,), dtype)
        buffer = k.scratch((count,), dtype)
        with k.serial(count) as i:
            k.store(buffer, k.load(x, [i]), [count - 1 - i])
        with k.serial(count) as i:
            k.store(y, k.load(buffer, [i]), [i])
    return k.function


def test_small_buffers_stay_on_the_stack_and_large_ones_do_not():
    limit = STACK_LIMIT // 4
    assert "TVMBackendAllocWorkspace" not in llvm_of(scratch(limit))
    assert "TVMBackendAllocWorkspace" in llvm_of(scratch(limit + 1))
    for count in (limit, limit + 1):
        (run,) = compiled([(scratch(count), (count,))])
        x = np.arange(count, dtype="float32")
        np.testing.assert_array_equal(run(x), x[::-1])


def test_a_function_or_a_module():
    function = scratch(16).with_attr("global_symbol", "named")
    x = np.arange(16, dtype="float32")
    for module, name in ((function, "main"), (tvm.IRModule({"named": function}), "named")):
        out = tvm.runtime.tensor(np.zeros(16, "float32"))
        compile_kernels(module, TARGET).jit()[name](tvm.runtime.tensor(x), out)
        np.testing.assert_array_equal(out.numpy(), x[::-1])


@pytest.mark.parametrize(
    "operator, expected, reach", [(topi.erf, special.erf, 5), (topi.atanh, np.arctanh, 0.999)]
)
def test_functions_of_float64_have_its_precision(operator, expected, reach):
    function = elementwise(operator, dtype="float64")
    x = np.linspace(-1, 1, 512).reshape(8, 64)
    x = np.where(np.arange(64) % 2, x * reach, x**9 * 1e-20)
    tensors = [tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros_like(x))]
    compile_kernels(function, TARGET).jit()["main"](*tensors)
    np.testing.assert_allclose(tensors[1].numpy(), expected(x), rtol=1e-14)


def test_a_subexpression_with_variables_may_occur_twice():
    """A polynomial binds variables; behind a power, and in both branches of a selection, it stands twice."""

    def compute(x):
        inner = te.compute(x.shape, lambda i, j: te.exp(te.tanh(x[i, j])), "inner")
        squared = te.compute(x.shape, lambda i, j: tirx.pow(inner[i, j], 2.0) + inner[i, j], "squared")
        return te.compute(
            x.shape,
            lambda i, j: tirx.if_then_else(x[i, j] > 0, te.erf(squared[i, j]), squared[i, j]),
            "result",
        )

    (run,) = compiled([(elementwise(compute), (8, 64))])
    x = np.linspace(-3, 3, 512, dtype="float32").reshape(8, 64)
    inner = np.exp(np.tanh(x.astype("float64")))
    squared = inner**2 + inner
    np.testing.assert_allclose(run(x), np.where(x > 0, special.erf(squared), squared), rtol=2e-6, atol=1e-6)


def test_arguments_may_lie_where_malloc_puts_them():
    """Vectors of arguments are accessed at multiples of 16 bytes, as NumPy's arrays begin."""
    k = Kernel()
    with k:
        x, y = k.argument("x", (64,)), k.argument("y", (64,))
        with k.serial(4) as i:
            at = [k.ramp(i * 16, 16)]
            k.store(y, k.load(x, at) * k.splat(2.0, 16), at)
    accesses = [line for line in llvm_of(k.function).splitlines() if "x float>" in line and "align" in line]
    assert accesses and all("align 16" in line for line in accesses), accesses


def test_scatters_of_tvm_compile_without_a_warning(capfd):
    x, u = (te.placeholder((n,), "float32", name) for n, name in ((10, "x"), (5, "u")))
    at = te.placeholder((5,), "int64", "at")
    function = te.create_prim_func([x, at, u, topi.scatter_elements(x, at, u, 0, "add")])
    assert "pragma_scope" in function.script(), "what the pass is for"
    compile_kernels(function.with_attr("global_symbol", "main"), TARGET)
    assert "pragma" not in capfd.readouterr().err


def test_the_stack_starts_where_a_cache_line_does():
    """Vectors of a whole line lie in one."""
    assert re.search(r"alloca \[\d+ x <16 x float>\], align 64", llvm_of(scratch(4000)))


@pytest.mark.parametrize("dtype", ["float64", "int8", "uint16", "int64", "bool"])
@pytest.mark.parametrize("count", [3, 1000])
def test_memory_on_the_stack_has_room_for_every_type(count, dtype):
    """A truth value has a byte of its own, not a bit."""
    x = np.random.default_rng(0).integers(0, 2, count).astype(dtype)
    result = tvm.runtime.tensor(np.zeros(count, dtype))
    compile_kernels(scratch(count, dtype), TARGET).jit()["main"](tvm.runtime.tensor(x), result)
    np.testing.assert_array_equal(result.numpy(), x[::-1])


def test_memory_without_elements_is_compiled():
    x = te.placeholder((4, 0), "float32")
    kernel = te.create_prim_func([x, topi.exp(topi.add(x, 1.0))])
    result = tvm.runtime.tensor(np.zeros((4, 0), "float32"))
    compile_kernels(kernel, TARGET).jit()["main"](result, result)


def test_blocks_are_lowered_once(monkeypatch):
    """A second pass over loops compacts buffers by regions that it cannot simplify, for minutes."""
    real = s_tir_pipeline.default_s_tir_pipeline
    left_out = []

    def watched():
        lower, *others = real()

        @tvm.transform.module_pass(opt_level=0, name="watched")
        def watching(module, _context):
            left_out.extend(tvm.transform.PassContext.current().disabled_pass)
            return lower(module)

        return watching, *others

    monkeypatch.setattr(s_tir_pipeline, "default_s_tir_pipeline", watched)
    lower, *_ = pipeline._pipeline_factory()
    x = te.placeholder((8, 64), "float32")
    function = te.create_prim_func([x, topi.nn.softmax(x)]).with_attr("global_symbol", "main")
    module = tirx.transform.BindTarget(tvm.target.Target(TARGET, "llvm"))(tvm.IRModule({"main": function}))
    lower(module)
    assert {"s_tir.CompactBufferAllocation", "s_tir.LowerOpaqueBlock"} <= set(map(str, left_out))


def _shapes_of_buffers(function):
    """Shapes of the buffers that statements of a PrimFunc allocate."""
    shapes = []
    tvm_ffi.structural_map(
        function.body, (tirx.AllocBuffer, lambda one: shapes.append(one.buffer.shape) or one)
    )
    return shapes


@pytest.mark.parametrize(
    "size, room, found",
    [("n", 64, 64), (8, 64, 64), ("n", "n + 5", "n")],
    ids=["open, constant buffer", "constant", "open buffer"],
)
def test_buffers_of_kernels_that_state_them_stay(size, room, found):
    """What is used of a constant buffer is no expression of the sizes of a call; open ones shrink."""
    n = tirx.Var("n", "int64")
    sizes = {"n": n, "n + 5": n + 5}
    x, y = (tirx.decl_buffer((sizes.get(size, size),), name=name) for name in "xy")
    work = tirx.decl_buffer((sizes.get(room, room),), name="work", scope="local")
    loops = []
    for source, to in ((x, work), (work, y)):
        i = tirx.Var("i", "int64")
        copy = tirx.BufferStore(to, tirx.BufferLoad(source, [i]), [i])
        loops.append(tirx.For(i, tirx.const(0, "int64"), x.shape[0], tirx.ForKind.SERIAL, copy))
    body = tirx.SeqStmt([tirx.AllocBuffer(work), *loops])
    function = tirx.PrimFunc([x, y], body).with_attr("s_tir", True)
    result = pipeline._compact_buffers()(tvm.IRModule({"main": function}))["main"]
    ((extent,),) = _shapes_of_buffers(result)
    assert (int(extent) if isinstance(extent, tirx.IntImm) else str(extent)) == found


def test_buffers_of_schedules_shrink_to_what_is_used():
    x = te.placeholder((8, 64), "float32")
    schedule = s_tir.Schedule(te.create_prim_func([x, topi.exp(topi.add(x, 1.0))]))
    first, second = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.compute_at(first, schedule.get_loops(second)[0])
    result = tvm.ir.transform.Sequential(pipeline._to_loops())(schedule.mod)["main"]
    ((rows, columns),) = _shapes_of_buffers(result)
    assert (int(rows), int(columns)) == (1, 64)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_unsigned_numbers_of_64_bits_become_floats(dtype):
    """LLVM ended the process at them where AVX-512 lacks its instructions for 64-bit integers."""
    function = elementwise(lambda x: topi.cast(x, dtype), (4, 16), "uint64").with_attr(
        "global_symbol", "main"
    )
    given = np.random.default_rng(0).integers(0, 1 << 64, (4, 16), dtype="uint64")
    given[0, :6] = [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 63) + (1 << 39) + 1]  # next to a tie
    given[1] >>= np.arange(16, dtype="uint64") * 4
    result = tvm.runtime.tensor(np.zeros((4, 16), dtype))
    compile_kernels(function, TARGET).jit()["main"](tvm.runtime.tensor(given), result)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(result.numpy(), given.astype(dtype))
