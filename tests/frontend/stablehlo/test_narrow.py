"""Numbers of 8 bits and fewer, bfloat16 constants, and floats beyond whole numbers, against XLA."""

import ml_dtypes
import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from hetero_tvm.api import build_model, optimize_model  # noqa: E402
from hetero_tvm.errors import HeteroTVMError  # noqa: E402
from hetero_tvm.frontend.stablehlo.importer import import_stablehlo  # noqa: E402
from hetero_tvm.frontend.stablehlo.load import written_numbers  # noqa: E402
from tests.frontend.stablehlo.test_importer import exported  # noqa: E402

EDGES = np.array(
    [
        -3,
        -0.5,
        0,
        0.3,
        1.9,
        6.5,
        254.7,
        300,
        448,
        465,
        500,
        1e-3,
        1e-9,
        7e4,
        3e9,
        -3e9,
        np.nan,
        np.inf,
        -np.inf,
    ],
    "float32",
)
FLOATS = [
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e4m3b11fnuz",
    "float4_e2m1fn",
]
WEIGHTS = np.random.default_rng(0).standard_normal((40, 4))


def same_as_xla(function, x):
    program = exported(function, [x.shape], str(x.dtype))
    model = import_stablehlo(program)
    found = build_model(optimize_model(model), use_shipped=False).run({model.signature.inputs[0].name: x})
    for ours, wanted in zip(found, jax.tree.leaves(jax.jit(function)(x)), strict=True):
        np.testing.assert_allclose(np.asarray(ours, wanted.dtype), wanted, rtol=1e-5, atol=1e-5)


def test_floats_beyond_whole_numbers_are_cut_to_their_ends():
    kinds = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int4", "uint4")
    same_as_xla(lambda x: [x.astype(kind).astype("int32") for kind in kinds], EDGES)


def test_floats_are_rounded_to_fewer_bits():
    same_as_xla(lambda x: [x.astype(kind).astype("float32") for kind in FLOATS], EDGES)


def test_whole_numbers_keep_their_low_bits():
    same_as_xla(
        lambda n: [n.astype(k).astype("int32") for k in ("int4", "uint4", "int2")],
        np.arange(-20, 20, dtype="int32"),
    )


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "int4"])
def test_constants_in_words_and_in_bytes(kind):
    few, many = (np.round(2 * w).astype(getattr(ml_dtypes, kind)) for w in (WEIGHTS[:3], WEIGHTS))

    def product(x):
        return [x[:, : len(w)] @ jnp.asarray(w).astype(jnp.float32) for w in (few, many)]

    same_as_xla(product, np.arange(80, dtype="float32").reshape(2, 40))


def test_numbers_without_a_word_are_written_as_their_bits():
    found = written_numbers("dense<[[0x7FC0, -1.5], [0xFF80, 2.000000e+00]]> : tensor<2x2xbf16>", "bfloat16")
    np.testing.assert_array_equal(found.astype("float32"), [np.nan, -1.5, -np.inf, 2])


def bits_of_parts(x):
    words = lax.bitcast_convert_type(x, jnp.uint8), lax.bitcast_convert_type(x, jnp.uint16)
    halves = lax.bitcast_convert_type(words[1], jnp.bfloat16).astype(jnp.float32)
    return *words, lax.bitcast_convert_type(words[0] ^ 1, jnp.int32), halves


def test_bits_as_several_numbers():
    same_as_xla(bits_of_parts, np.array([[1.5, -2.25], [3e20, 1e-3]], "float32"))
    same_as_xla(lambda x: lax.bitcast_convert_type(x.astype("bfloat16"), jnp.uint8), EDGES[:9])
    same_as_xla(
        lambda x: lax.scan(lambda c, r: (c ^ lax.bitcast_convert_type(r, jnp.uint32), r), jnp.uint32(3), x),
        EDGES[:9],
    )


def test_sums_of_few_bits_are_refused():
    program = exported(lambda x: (x.astype(jnp.float8_e5m2) + 1).astype("float32"), [(3,)])
    with pytest.raises(HeteroTVMError, match="f8E5M2"):
        import_stablehlo(program)
    with pytest.raises(HeteroTVMError, match="f8E5M2"):
        import_stablehlo(exported(lambda x: x.astype(jnp.float8_e5m2), [(3,)]))


def test_unsigned_numbers_are_sorted():
    same_as_xla(lambda x: lax.sort((x, x * 2), num_keys=1), np.array([7, 2**32 - 1, 0, 2**31], "uint32"))
