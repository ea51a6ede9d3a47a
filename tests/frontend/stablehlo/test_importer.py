"""StableHLO programs, exported by JAX, compute what JAX computes."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402
from jax import export, lax  # noqa: E402

from hetero_tvm.api import build_model, import_model, optimize_model  # noqa: E402
from hetero_tvm.errors import ModelError, ShapeError, UnsupportedOperatorError  # noqa: E402
from hetero_tvm.frontend.stablehlo.importer import import_stablehlo  # noqa: E402

M, V = (6, 8), (8,)
IMAGE = (2, 9, 10, 3)


def conv(x, w, stride=1, padding="SAME", **options):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=numbers, **options)


def pool(x, size, stride):
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    most = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "SAME")
    return most, lax.reduce_window(x, 0.0, lax.add, window, strides, "VALID") / size**2


def norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias


def on_devices(x):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d", None))
    apart = lax.with_sharding_constraint(lax.complex(x, -x), rows)
    return lax.with_sharding_constraint(x * 2, rows) + 1, apart.imag


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    masked = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(masked), v)


FUNCTIONS = {
    "arithmetic": (lambda x, y: (x + y) * 2 - x / (1 + y * y) + x**2, [M, V]),
    "functions": (lambda x: jnp.sin(x) + jnp.cos(x) * jnp.exp(-x) + jnp.log1p(abs(x)) + jnp.expm1(x), [M]),
    "operators of lax": (lambda x, y: lax.clamp(-0.5, x, 0.7) + lax.logistic(y) * abs(x) ** y, [M, M]),
    "angles": (lambda x, y: (jnp.arctan2(x, y), jnp.arcsin(jnp.tanh(x)), jnp.arccos(jnp.tanh(y))), [M, M]),
    "padding": (lambda x: [lax.pad(x, 0.5, ((1, -2, 1), edges)) for edges in ((0, -1, 0), (1, 1, 2))], [M]),
    "halves": (lambda x: (lax.round(jnp.round(x * 4) / 2), jnp.expm1(x * 1e-4) * 1e4), [M]),
    "roots": (lambda x: jnp.sqrt(jnp.abs(x)) + jnp.cbrt(x) + lax.rsqrt(x * x + 1), [M]),
    "rounding": (lambda x: (jnp.floor(x), jnp.ceil(x), jnp.round(x), jnp.sign(x), x.clip(-0.5, 0.7)), [M]),
    "comparisons": (lambda x, y: (x > y, x <= y, x == x, jnp.where(x > y, x, y), jnp.isfinite(x)), [M, M]),
    "logic": (lambda x, y: ((x > 0) & (y > 0), (x > 0) | ~(y > 0), (x > 0) ^ (y > 0)), [M, M]),
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False) + jax.nn.gelu(x), [M]),
    "silu and softplus": (lambda x: jax.nn.silu(x) + jax.nn.softplus(x) + jax.nn.leaky_relu(x), [M]),
    "softmax": (lambda x: (jax.nn.softmax(x), jax.nn.log_softmax(x, axis=0)), [M]),
    "devices of rows": (on_devices, [M]),
    "sums of nothing": (lambda x: lax.reduce(x, np.float32(0), lax.add, ()) / 1 + 1, [M]),
    "reductions": (lambda x: (x.sum(0), x.max(), x.min(1), x.mean((0, 1)), x.prod(1), (x > 0).any(1)), [M]),
    "arguments": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmax(x)), [M]),
    "matmul": (lambda x, w: x @ w, [M, (8, 5)]),
    "einsum": (lambda x, y: jnp.einsum("bij,kjb->bik", x, y), [(2, 3, 4), (5, 4, 2)]),
    "outer and vector": (lambda x, y: (jnp.outer(x, y), x @ y), [V, V]),
    "layer norm": (norm, [(2, 5, 16), (16,), (16,)]),
    "attention": (attention, [(2, 5, 3, 8)] * 3),
    "convolution": (conv, [IMAGE, (3, 3, 3, 4)]),
    "strided": (lambda x, w: conv(x, w, 2, "VALID"), [IMAGE, (3, 2, 3, 4)]),
    "dilated": (lambda x, w: conv(x, w, 1, [(1, 2), (0, 1)], rhs_dilation=(2, 3)), [IMAGE, (3, 2, 3, 4)]),
    "depthwise": (lambda x, w: conv(x, w, feature_group_count=3), [IMAGE, (3, 3, 1, 6)]),
    "transposed": (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), [IMAGE, (3, 3, 3, 4)]),
    "transposed 4x4": (lambda x, w: lax.conv_transpose(x, w, (2, 2), "VALID"), [IMAGE, (4, 4, 3, 5)]),
    "pooling": (lambda x: pool(x, 2, 2) + pool(x, 3, 1), [IMAGE]),
    "running sums": (lambda x: (jnp.cumsum(x, 1), lax.cumsum(x, 0, reverse=True)), [M]),
    "moving": (lambda x: (x.T, x[::-1, 1:7:2], jnp.pad(x, ((1, 2), (0, 3))), jnp.roll(x, 2, 1)), [M]),
    "shapes": (lambda x: (x.reshape(4, 12), x[:, None], x.ravel(), jnp.broadcast_to(x, (2, 6, 8))), [M]),
    "joining": (lambda x, y: (jnp.concatenate([x, y], 1), jnp.stack([x, y]), jnp.tile(x, (2, 1))), [M, M]),
    "taking": (lambda x: (x[jnp.array([4, 0, 5])], x[:, jnp.array([[1, 7]])], jnp.take(x, 3, 1)), [M]),
    "slices at run time": (lambda x: lax.dynamic_slice(x, (jnp.argmax(x[:, 0]), 1), (3, 4)), [M]),
    "numbers": (lambda x: (jnp.arange(8) * x, jnp.linspace(0, 1, 8) + x, x.astype(jnp.int32) % 3), [M]),
    "calls": (jax.jit(lambda x: jax.jit(lambda y: jax.nn.relu(y) + 1)(x) * jax.jit(jnp.tanh)(x)), [M]),
}  # fmt: skip


def exported(function, shapes, dtype=jnp.float32):
    return export.export(jax.jit(function))(*(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes))


def drawn(model):
    rng = np.random.default_rng()
    return {spec.name: rng.standard_normal(spec.shape).astype(spec.dtype) for spec in model.signature.inputs}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_compute_what_jax_computes(name):
    same_as_jax(*FUNCTIONS[name])


def same_as_jax(function, shapes, dtype=jnp.float32, draw=None):
    """Tolerance: 2e-5 of the largest value, which float32 loses in approximations of functions."""
    model = import_stablehlo(exported(function, shapes, dtype))
    inputs = (draw or drawn)(model)
    expected = jax.tree_util.tree_leaves(jax.jit(function)(*inputs.values()))
    session = pytest.importorskip("onnxruntime").InferenceSession(
        model.onnx_model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for actual, judge, wanted in zip(
        session.run(None, inputs), model.original.run(inputs), map(np.asarray, expected), strict=True
    ):
        assert actual.shape == wanted.shape
        finite = np.abs(wanted[np.isfinite(wanted)])
        scale = max(1.0, float(finite.max(initial=0))) if wanted.dtype.kind == "f" else 0
        for found in (actual, judge):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * scale)


def block(x, *weights):
    """A Transformer block as flax writes one."""
    s1, b1, wqkv, wo, s2, b2, w1, w2 = weights
    q, k, v = jnp.split(norm(x, s1, b1) @ wqkv, 3, axis=-1)
    heads = (*x.shape[:2], 4, -1)
    x = x + attention(q.reshape(heads), k.reshape(heads), v.reshape(heads)).reshape(x.shape) @ wo
    return x + jax.nn.gelu(norm(x, s2, b2) @ w1) @ w2


@pytest.mark.thorough
def test_a_block_is_fused_built_and_checked(tmp_path):
    rng = np.random.default_rng(0)
    shapes = [(32,), (32,), (32, 96), (32, 32), (32,), (32,), (32, 64), (64, 32)]
    weights = [rng.standard_normal(shape).astype("float32") / 4 for shape in shapes]
    program = exported(lambda x: block(x, *weights), [(1, 6, 32)])
    for suffix, content in (
        ("mlir", program.mlir_module().encode()),
        ("mlirbc", program.mlir_module_serialized),
    ):
        path = tmp_path / f"block.{suffix}"
        path.write_bytes(content)
        model = import_model(path)
        assert (model.name, str(model.signature)) == (
            "block",
            "(x: float32[1, 6, 32]) -> (output: float32[1, 6, 32])",
        )
    optimized = optimize_model(model)
    kinds = {task.name.partition("_")[0] for task in optimized.tasks}
    assert {"softmax", "matmul"} <= kinds, kinds
    assert any(task.name.endswith("residual") for task in optimized.tasks)
    built = build_model(optimized)
    assert built.check().ok
    x = rng.standard_normal((1, 6, 32)).astype("float32")
    np.testing.assert_allclose(built.run({"x": x})[0], block(x, *weights), rtol=1e-4, atol=1e-4)


def test_the_interpreter_judges_without_jax():
    model = import_stablehlo(exported(FUNCTIONS["attention"][0], FUNCTIONS["attention"][1]))
    arrays = list(drawn(model).values())
    (compiled,), (interpreted,) = model.original._compiled(arrays), model.original._interpreted(arrays)
    np.testing.assert_allclose(interpreted, compiled, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_translated_is_listed_with_its_place():
    def several(x, prime):
        return jax.lax.linalg.schur(x)[0], jnp.abs(jnp.fft.rfft(prime))

    with pytest.raises(UnsupportedOperatorError) as caught:
        import_stablehlo(exported(several, [(4, 4), (4099,)]))
    text = "\n".join(caught.value.problems)
    assert all(f"stablehlo.{name} at" in text for name in ("custom_call", "fft"))
    assert "Export the function up to them" in str(caught.value)


def test_what_is_refused_says_what_to_take_instead():
    def several(x):
        key = jax.random.key(0, impl="rbg")
        return jax.scipy.linalg.schur(x)[0], jax.random.uniform(key, (3,))

    with pytest.raises(UnsupportedOperatorError) as caught:
        import_stablehlo(exported(several, [(4, 4)]))
    text = "\n".join(caught.value.problems)
    assert "Schur's form" in text and "threefry, the default, is taken" in text


def test_places_of_a_given_number():
    """Remainders of quotients, whose signs are chosen several times."""

    def places(x):
        return jnp.nonzero(x > 0, size=5, fill_value=-1)[0]

    x = np.float32([1, -1, 2, 0, 3, -4, 5, 6, 7, 8])
    program = import_stablehlo(exported(places, [(10,)]))
    built = build_model(optimize_model(program), use_shipped=False)
    feed = {program.signature.inputs[0].name: x}
    np.testing.assert_array_equal(built.run(feed)[0], places(x))


def test_open_shapes_and_other_files_are_refused(tmp_path):
    (n,) = export.symbolic_shape("n")
    program = export.export(jax.jit(lambda x: x * 2))(jax.ShapeDtypeStruct((n, 3), jnp.float32))
    with pytest.raises(ShapeError, match="nx3: its open sizes are not given"):
        import_stablehlo(program)
    for content in (b"", b"module {", b"ML\xefR broken", b"\xff\xfe", b"func.func @f() { return }"):
        path = tmp_path / "program.mlir"
        path.write_bytes(content)
        with pytest.raises(ModelError):
            import_model(path)
    with pytest.raises(ModelError, match="There is no model file"):
        import_model(tmp_path / "missing.mlir")
