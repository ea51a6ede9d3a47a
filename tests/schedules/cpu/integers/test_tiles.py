"""Products on tiles (AMX) of integers and of bfloat16, and those of bfloat16 in vectors."""

import ml_dtypes
import numpy as np
import pytest

from hetero_tvm import host
from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.integers.dynamic_matmul import DynamicGatedMatmul, DynamicMatmul, quantized_weights
from hetero_tvm.ops.integers.quantized import QuantConv2d, QuantMatmul
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.schedules.cpu.integers.bf16_matmul import Bf16MatmulSpace, rounds_rows
from hetero_tvm.schedules.cpu.integers.dynamic_matmul import DynamicGatedMatmulSpace, DynamicMatmulSpace
from hetero_tvm.schedules.cpu.integers.image_matrices import MatrixWeights, PixelTiles, step_words
from hetero_tvm.schedules.cpu.integers.image_words import ImageWords, image_dot
from hetero_tvm.schedules.cpu.integers.matrix_unit import has_matrix_unit, tile_for
from hetero_tvm.schedules.cpu.integers.quant_conv2d import QuantConv2dSpace
from hetero_tvm.schedules.cpu.integers.quant_matmul import QuantMatmulSpace
from hetero_tvm.schedules.cpu.integers.stored_matmul import rounded_bits
from hetero_tvm.targets.registry import parse_target
from tests.schedules.cpu.test_dots import machine
from tests.selection import thorough

TILES = ("avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
HERE = parse_target("cpu").machine
# A CPU with bfloat16 and without tiles runs the vectors; code for Sapphire Rapids may hold half precision.
BUILT_FOR = parse_target("cpu:sapphirerapids" if has_matrix_unit(HERE) else "cpu").tvm_target
needs_tiles = pytest.mark.skipif(not has_matrix_unit(HERE), reason="this CPU has no AMX")
needs_halves = pytest.mark.skipif(
    "avx512_bf16" not in host.detect().features, reason="this CPU has no AVX-512 BF16"
)
MATRICES = machine(16, *TILES)


def run(space, op, arrays, **choices):
    """The result of one kernel for a machine with tiles, with these choices beside the default's."""
    point = {**space.default(op, MATRICES), **choices}
    function = space.emit(op, point, MATRICES).with_attr("global_symbol", "main")
    packers = space.pack(op, point, MATRICES)
    packed = [packers[n](array) if n in packers else array for n, array in enumerate(arrays)]
    library = compile_kernels(tvm.IRModule({"main": function}), BUILT_FOR).jit()
    result = tvm.runtime.tensor(np.full(op.output.shape, 7, op.output.dtype))
    library["main"](*(tvm.runtime.tensor(np.ascontiguousarray(array)) for array in packed), result)
    return result.numpy()


def drawn(op, seed=0, extreme=False):
    """Operands over the whole range of their types, or at its ends."""
    rng = np.random.default_rng(seed)
    found = []
    for operand in op.inputs:
        if operand.dtype in ("int8", "uint8"):
            limits = np.iinfo(operand.dtype)
            ends = rng.choice([limits.min, limits.max], operand.shape)
            whole = rng.integers(limits.min, limits.max + 1, operand.shape)
            found.append((ends if extreme else whole).astype(operand.dtype))
        elif operand.dtype == "int32":
            found.append(rng.integers(-1000, 1000, operand.shape).astype("int32"))
        elif operand.dtype == "bfloat16":
            found.append(rng.standard_normal(operand.shape).astype(ml_dtypes.bfloat16))
        else:
            found.append(rng.standard_normal(operand.shape).astype("float32"))
    return found


@needs_tiles
@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize(
    "m, n, k", [(1, 16, 64), (17, 33, 70), *thorough([(40, 87, 19)]), (64, 96, 256), *thorough([(7, 5, 3)])]
)
def test_rows_in_8_bits(m, n, k, grid):
    op = DynamicMatmul((m,), n, k, ("bias", "gelu_erf", "residual"))
    x, _, scale, *extra = drawn(op)
    weights, _ = quantized_weights(np.random.default_rng(1).standard_normal((k, n)).astype("float32"), 0)
    arrays = [4 * x + 1, weights, np.abs(scale) + np.float32(0.1), *extra]
    expected = op.reference(*(a.astype(np.float64) for a in arrays))
    result = run(DynamicMatmulSpace(), op, arrays, unit="matrices", grid=grid)
    # Sums are exact; scales and the epilogue are float32.
    np.testing.assert_allclose(result, expected, rtol=0, atol=5e-6 * np.abs(expected).max())


@needs_tiles
def test_gated_rows_in_8_bits():
    op = DynamicGatedMatmul((35,), 21, 50, "silu", True)
    x, w, scale, bias = drawn(op)
    arrays = [x, w, (np.abs(scale) + np.float32(0.1)) / 64, bias]
    expected = op.reference(*(a.astype(np.float64) for a in arrays))
    result = run(DynamicGatedMatmulSpace(), op, arrays, unit="matrices")
    np.testing.assert_allclose(result, expected, rtol=0, atol=5e-6 * np.abs(expected).max())


@needs_tiles
@pytest.mark.parametrize("x_dtype", ["int8", *thorough(["uint8"])])
def test_sums_of_extremes_are_exact(x_dtype):
    """-128 and 127 (0 and 255) everywhere: nothing saturates."""
    op = QuantMatmul(x_dtype, "int32", 0, False, (33,), 40, 4096)
    arrays = drawn(op, extreme=True)
    np.testing.assert_array_equal(run(QuantMatmulSpace(), op, arrays, unit="matrices"), op.reference(*arrays))
    image = QuantConv2d(
        x_dtype, "int32", 0, False, 1, 64, 5, 9, 33, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), -128
    )
    arrays = drawn(image, extreme=True)
    np.testing.assert_array_equal(
        run(QuantConv2dSpace(), image, arrays, method="matrices"), image.reference(*arrays)
    )


# fmt: off
IMAGES = [
    QuantConv2d("uint8", "uint8", 3, True, 2, 64, 5, 19, 40, (3, 3), (2, 1), (1, 1, 0, 2), (1, 1), -20),
    QuantConv2d("int8", "int32", 0, False, 1, 30, 8, 8, 16, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 7),
    QuantConv2d("int8", "int8", 9, False, 2, 99, 5, 7, 33, bounds=(-90, 33)),
    QuantConv2d("uint8", "float32", 0, False, 1, 17, 13, 13, 9, (5, 5), (2, 2), (2, 2, 2, 2), (1, 1), -128),
    QuantConv2d("uint8", "int8", 9, False, 1, 64, 7, 9, 64, (3, 3), (1, 2), (1, 1, 1, 1), (1, 1), 11, 2,
                residual="int8", final="uint8", final_bounds=(5, 250)),
    QuantConv2d("int8", "uint8", 9, False, 1, 64, 9, 40, 48, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 11),
    QuantConv2d("uint8", "float32", 0, False, 1, 64, 9, 20, 48, residual="uint8", final="uint8"),
    QuantConv2d("int8", "int8", 9, False, 1, 96, 9, 33, 70, (1, 1), (2, 2)),
    QuantConv2d("int8", "int8", 9, True, 1, 132, 14, 14, 50),
    QuantConv2d("uint8", "uint8", 9, False, 1, 80, 7, 7, 34, (3, 3), (1, 1), (1, 1, 1, 1)),
    QuantConv2d("uint8", "uint8", 3, True, 2, 64, 20, 20, 48, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), -20, 2,
                residual="uint8", final="int8"),
    QuantConv2d("int8", "int32", 0, False, 1, 36, 11, 11, 20, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 7),
    QuantConv2d("int8", "int8", 9, False, 2, 20, 9, 18, 17, (3, 1), (1, 1), (0, 0, 1, 0), (1, 1), 3),
    QuantConv2d("uint8", "float32", 0, True, 1, 70, 5, 5, 33, (1, 1), (1, 1), (1, 1, 1, 1), (1, 1), -128),
    QuantConv2d("uint8", "int8", 9, False, 1, 24, 10, 39, 40, (3, 5), (1, 1), (1, 3, 0, 2), (1, 1), 11),
    QuantConv2d("uint8", "uint8", 3, True, 2, 3, 21, 45, 24, (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), -20),
    QuantConv2d("int8", "int8", 3, False, 1, 4, 32, 48, 40, (16, 16), (16, 16)),
    QuantConv2d("uint8", "float32", 0, True, 1, 6, 13, 20, 32, (5, 4), (1, 1), (2, 1, 2, 2), (2, 1), 9, 2),
    QuantConv2d("int8", "uint8", 3, True, 1, 2, 9, 7, 16, (4, 4), (4, 3), (1, 0, 2, 1), (1, 1), 4),
]
# fmt: on
"""Steps of 4 to 16 words, filters and pixels that fill no tile, strides, dilation, groups, a residual."""


# TVM takes 20 s to simplify the fifth: a stride of 2 along rows, and a residual.
@needs_tiles
@pytest.mark.parametrize(
    "op", [*IMAGES[:4], IMAGES[6], *thorough([IMAGES[4], IMAGES[5], *IMAGES[7:]])], ids=lambda op: op.label
)
def test_images(op):
    arrays = drawn(op)
    if op.scaled:
        arrays[3] = np.abs(arrays[3]) * np.float32(1e-3)
    if op.residual:
        arrays[4] = np.array([0.5, 3.0, 0.25, 7.0], "float32")
    space = QuantConv2dSpace()
    grids = next(knob.choices for knob in space.knobs(op, MATRICES) if knob.name == "grid")
    expected = op.reference(*arrays)
    for grid in {grids[0], grids[-1]}:
        np.testing.assert_array_equal(run(space, op, arrays, method="matrices", grid=grid), expected)


@needs_halves
@pytest.mark.parametrize("unit", ["vectors", pytest.param("matrices", marks=needs_tiles)])
@pytest.mark.parametrize(
    "m, n, k, epilogue, gate",
    [
        (29, 87, 19, (), ""),
        (5, 100, 70, ("bias",), ""),
        *thorough([(40, 33, 130, ("bias", "gelu_erf", "residual"), "")]),
        (33, 50, 96, ("bias",), "silu"),
        (1, 1, 1, (), ""),
    ],
)
def test_bfloat16(m, n, k, epilogue, gate, unit):
    op = StoredMatmul((m,), n, k, epilogue, "bf16", gate=gate, x_bits=16)
    arrays = drawn(op)
    expected = op.reference(*(a if a.dtype == ml_dtypes.bfloat16 else a.astype(np.float64) for a in arrays))
    result = run(Bf16MatmulSpace(), op, arrays, unit=unit)
    # Products are exact in float32; sums are rounded as any of float32.
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6 * max(1, np.abs(expected).max()))


@needs_tiles
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_values_of_bfloat16_stay_in_their_row(bad):
    op = StoredMatmul((20,), 24, 40, (), "bf16", x_bits=16)
    x, w = drawn(op)
    x[7, 39] = bad
    result = run(Bf16MatmulSpace(), op, [x, w], unit="matrices")
    assert not np.isfinite(result[7]).any() and np.isfinite(np.delete(result, 7, 0)).all()


def test_who_has_tiles():
    assert has_matrix_unit(MATRICES) and has_matrix_unit(MATRICES, "tdpbf16ps")
    assert not has_matrix_unit(machine(16, "amx_tile", "amx_bf16"))
    assert not has_matrix_unit(machine(16, "amx_tile", "amx_int8"))  # words of four need VNNI
    assert not has_matrix_unit(machine(8, "amx_tile", "amx_int8"))


def test_bfloat16_where_it_is_faster():
    fast = machine(16, "avx512_bf16")
    assert rounds_rows("bf16", 128, MATRICES) and not rounds_rows("bf16", 1, MATRICES)
    assert not rounds_rows("bf16", 128, fast)  # a Xeon without tiles multiplies float32 faster
    assert not rounds_rows("f16", 128, MATRICES)


def test_a_range_rounds_all_its_rows_or_none():
    few, many = (rounded_bits("bf16", rows, MATRICES, any_rows=True) for rows in (2, 128))
    assert few == many == 16 and rounded_bits("bf16", 2, MATRICES) == 0
    assert rounded_bits("bf16", 1, MATRICES, any_rows=True) == 0  # one row is no range: it waits for weights


def test_shapes_of_tiles():
    assert [tile_for(*sizes).rows for sizes in ((1, 64), (16, 64), (17, 64))] == [16, 16, 32]
    assert [tile_for(*sizes).vectors for sizes in ((1, 64), (17, 16), (17, 64))] == [3, 1, 2]
    assert [step_words(words) for words in (4, 16, 24, 36, 17)] == [4, 16, 12, 12, 9]


def test_weights_of_images_are_left_tiles():
    op = QuantConv2d("uint8", "int32", 0, False, 1, 96, 4, 4, 40)
    shape = ImageWords(op, image_dot(op, MATRICES))
    w = np.random.default_rng(0).integers(-128, 128, (40, 96, 1, 1)).astype("int8")
    layout = MatrixWeights(shape, 32)
    packed = layout.pack(w)
    tiles = packed[0, :, : layout.starts].reshape(2, 2, 2, 16, 12).view(np.int8)
    # [tile, half, step, filter, bytes]: filter 35 is the fourth of the second tile's first half.
    np.testing.assert_array_equal(tiles[1, 0, 1, 3], w[35, 48:, 0, 0])
    assert packed[0, 1, layout.starts + 3] == -128 * w[35].sum(dtype=np.int64)


def test_rows_are_joined_where_tiles_would_be_empty():
    def tiles(height, width, kernel=3, **more):
        pads = (kernel // 2,) * 4
        op = QuantConv2d(
            "uint8", "uint8", 0, True, 1, 64, height, width, 64, (kernel,) * 2, padding=pads, **more
        )
        return PixelTiles.of(ImageWords(op, image_dot(op, MATRICES)))

    assert tiles(7, 7) == PixelTiles(7, 1, 9, 7)
    assert tiles(20, 20).pitch == 22 and tiles(20, 20).count(tiles(20, 20).rows, 20) <= 8
    assert not tiles(14, 14).pitch and not tiles(32, 32).pitch  # as full as they are
    assert not tiles(20, 20, kernel=1).pitch  # one row already
    assert not tiles(14, 14, strides=(2, 2)).pitch
