"""Operators on bits, of numbers with and without a sign."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from hetero_tvm.api import build_model, optimize_model  # noqa: E402
from hetero_tvm.errors import UnsupportedOperatorError  # noqa: E402
from hetero_tvm.frontend.stablehlo.importer import import_stablehlo  # noqa: E402
from tests.frontend.stablehlo.test_importer import exported  # noqa: E402

FUNCTIONS = {
    "shifts": lambda a, b: (a << (b & 31), a >> (b & 31), lax.shift_right_logical(a, b & 31)),
    "shifts too far": lambda a, b: (lax.shift_left(a, b), lax.shift_right_logical(a, b)),
    "arithmetic": lax.shift_right_arithmetic,
    "counts": lambda a, b: (lax.population_count(a), lax.clz(b)),
    "signs": lambda a, b: (-a, 3 - b),
    "logic": lambda a, b: (a & b, a | b, a ^ b, ~a),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int8", "uint8"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_bits(name, dtype):
    function = FUNCTIONS[name]
    if name == "shifts" and dtype.endswith("8"):
        pytest.skip("shifts by up to 31")
    model = import_stablehlo(exported(function, [(6,), (6,)], dtype))
    edges = np.array([0, 1, -1, 100, -100, 31]).astype(dtype)
    names = [spec.name for spec in model.signature.inputs]
    session = ReferenceEvaluator(model.onnx_model)
    for other in (edges[::-1].copy(), edges):
        given = dict(zip(names, (edges, other), strict=False))
        found = model.original.run(given)
        for ours, wanted in zip(session.run(None, given), found, strict=True):
            np.testing.assert_array_equal(ours, wanted)


def test_rounding_to_fewer_bits():
    def rounded(exponent, mantissa):
        return lambda x: lax.reduce_precision(x, exponent, mantissa)

    model = import_stablehlo(exported(rounded(8, 7), [(6,)]))
    x = np.array([1.00390625, 1.01171875, -3.14159, 1e30, 0, np.inf], "float32")
    (found,) = build_model(optimize_model(model), use_shipped=False).run({model.signature.inputs[0].name: x})
    np.testing.assert_array_equal(found, jnp.asarray(x).astype("bfloat16").astype("float32"))
    with pytest.raises(UnsupportedOperatorError, match="3 bits of exponent"):
        import_stablehlo(exported(rounded(3, 4), [(6,)]))


def of_floats(x):
    """The number beside each, its bits, and a sum with random numbers."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    noise = jax.random.normal(jax.random.key(3), (6,))
    return lax.bitcast_convert_type(bits ^ 1, jnp.float32), bits, x + noise


def test_bits_of_floats_and_random_numbers():
    """Bits exact; normal numbers to 1e-6, a few roundings of the inverse error function."""

    model = import_stablehlo(exported(of_floats, [(6,)]))
    x = np.array([1.5, -0.0, 3e38, 1e-3, np.inf, -7], "float32")
    found = build_model(optimize_model(model), use_shipped=False).run({model.signature.inputs[0].name: x})
    wanted = of_floats(x)
    np.testing.assert_array_equal(found[0].view("int32"), np.asarray(wanted[0]).view("int32"))
    np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-6, atol=1e-6)


def test_products_of_whole_numbers_in_wider_ones():
    def function(x, y):
        return lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)

    for dtype in ("int8", "int16"):
        model = import_stablehlo(exported(function, [(3, 8), (8, 2)], dtype))
        given = [
            np.random.default_rng(0).integers(-100, 100, shape).astype(dtype) for shape in ((3, 8), (8, 2))
        ]
        names = [spec.name for spec in model.signature.inputs]
        (found,) = build_model(optimize_model(model), use_shipped=False).run(
            dict(zip(names, given, strict=True))
        )
        np.testing.assert_array_equal(found, function(*given))
