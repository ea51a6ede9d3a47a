"""Convolutions of 8-bit images: exact sums, every way out, every way to multiply, every choice."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.integers.quantized import QuantConv2d, QuantMatmul
from hetero_tvm.schedules.cpu.dots import Dot, safe_pairs
from hetero_tvm.schedules.cpu.integers.quant_conv2d import DIRECT, FILTERS, MATRICES, QuantConv2dSpace
from tests.schedules.cpu.integers.test_dynamic_matmul import WAYS
from tests.schedules.cpu.running import TARGET, covering
from tests.schedules.cpu.test_dots import machine

SPACE = QuantConv2dSpace()
EXACT = (DIRECT, FILTERS, MATRICES)


def arrays_of(op, extreme=False):
    """Operands over the whole range of their types; with ``extreme`` only its ends."""
    rng = np.random.default_rng(0)

    def whole(dtype, shape):
        limits = np.iinfo(dtype)
        values = rng.integers(limits.min, limits.max + 1, shape)
        return (np.where(values > values.mean(), limits.max, limits.min) if extreme else values).astype(dtype)

    w = whole("int8", op.inputs[1].shape)
    if op.pairs_safe:
        large = 128 // 2**op.pairs_safe
        w = np.where(w > 0, large, -large).astype("int8") if extreme else w // 2**op.pairs_safe
    arrays = [whole(op.x_dtype, op.inputs[0].shape), w, rng.integers(-1000, 1000, op.filters).astype("int32")]
    arrays.append(rng.uniform(1e-4, 2e-3, op.filters).astype("float32"))
    if op.residual:  # factors whose sums lie on no half
        arrays += [np.float32([0.7001, 11, 0.4003, 5]), whole(op.residual, op.output.shape)]
    return arrays[: len(op.inputs)]


def check(cases, here, extreme=False):
    """Every (operator, points): the kernel's integers are the reference's."""
    functions = {}
    for n, (op, points) in enumerate(cases):
        for p, point in enumerate(points):
            functions[f"f{n}_{p}"] = SPACE.emit(op, point, here).with_attr("global_symbol", f"f{n}_{p}")
    library = compile_kernels(tvm.IRModule(functions), TARGET).jit()
    for n, (op, points) in enumerate(cases):
        arrays = arrays_of(op, extreme)
        assert safe_pairs(op.word_order(arrays[1])) >= op.pairs_safe
        wanted = op.reference(*arrays)
        for p, point in enumerate(points):
            result = tvm.runtime.tensor(np.full(op.output.shape, 7).astype(op.output.dtype))
            given = [SPACE.pack(op, point, here)[1](a) if i == 1 else a for i, a in enumerate(arrays)]
            library[f"f{n}_{p}"](*(tvm.runtime.tensor(np.ascontiguousarray(a)) for a in given), result)
            if op.output.dtype == "float32":
                # Sums of Winograd's method are rounded in float32: 1e-6 of the largest one.
                bound = 0 if point["method"] in EXACT else 3e-6 * np.abs(wanted).max()
                np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-6, atol=bound)
            elif point["method"] in EXACT:
                np.testing.assert_array_equal(result.numpy(), wanted, err_msg=f"{op} at {point}")
            else:  # a sum near a half may be rounded to its other side
                apart = np.abs(result.numpy().astype(int) - wanted)
                assert apart.max() <= 1 and (apart > 0).mean() <= 1e-3, f"{op} at {point}"


# fmt: off
OPERATORS = [
    QuantConv2d("uint8", "uint8", 3, True, 2, 6, 5, 19, 7, (3, 3), (2, 1), (1, 1, 0, 2), (1, 1), -20),
    QuantConv2d("int8", "int32", 0, False, 1, 5, 8, 8, 5, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 7),
    QuantConv2d("int8", "int8", 9, False, 2, 9, 5, 7, 6, pairs_safe=1, bounds=(-90, 33)),
    QuantConv2d("uint8", "float32", 0, False, 1, 3, 13, 13, 4, (5, 5), (2, 2), (2, 2, 2, 2), (1, 1), -128),
    QuantConv2d("uint8", "int8", 9, False, 1, 8, 7, 9, 4, (3, 3), (1, 2), (1, 1, 1, 1), (1, 1), 11, 4,
                residual="int8", final="uint8", final_bounds=(5, 250)),
    QuantConv2d("int8", "uint8", 3, True, 2, 3, 9, 21, 3, (3, 3), (2, 2), (1, 1, 0, 2), (1, 1), -20, 3),
    QuantConv2d("int8", "int8", 3, False, 1, 2, 9, 9, 4, (5, 2), (1, 1), (6, 6, 6, 6), (2, 1), -20, 2),
    QuantConv2d("uint8", "int8", 3, False, 1, 4, 9, 9, 3, (1, 1), (2, 3)),
    QuantConv2d("uint8", "int32", 0, False, 1, 4, 9, 10, 3, (2, 2), (3, 3), pairs_safe=1),
    QuantConv2d("int8", "uint8", 9, False, 1, 29, 5, 7, 6, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4,
                pairs_safe=2),
    QuantConv2d("uint8", "int8", 9, True, 2, 20, 5, 7, 6, pairs_safe=2),
    QuantConv2d("uint8", "int32", 0, False, 1, 2, 4, 40, 3, (1, 3), (1, 2), (1, 0, 1, 0), (1, 3), 1),
    QuantConv2d("int8", "float32", 0, False, 1, 8, 7, 9, 4, (3, 3), (1, 2), (1, 1, 1, 1), (1, 1), 11, 4,
                residual="uint8", final="int8", final_bounds=(-99, 50)),
]
OPERATORS += [
    QuantConv2d("uint8", "int8", 3, False, 1, 17, 1, 47, 17, (1, 9), (1, 1), (0, 4, 0, 4), (1, 1), -20, 17),
    QuantConv2d("int8", "uint8", 9, True, 1, 16, 1, 70, 16, (1, 6), (1, 2), (0, 3, 0, 1), (1, 1), 90, 16),
    QuantConv2d("int8", "int8", 3, False, 2, 18, 4, 21, 18, (1, 3), (2, 1), (1, 5, 2, 0), (1, 3), -20, 18),
    QuantConv2d("uint8", "float32", 0, False, 1, 20, 2, 40, 20, (1, 2), (1, 3), groups=20, pairs_safe=1),
    QuantConv2d("uint8", "uint8", 3, True, 1, 8, 1, 9, 16, (1, 51), (1, 1), (0, 25, 0, 25), (1, 1), 7, 8,
                residual="uint8", final="uint8", final_bounds=(5, 250)),
    QuantConv2d("int8", "int32", 0, False, 1, 16, 1, 1, 16, (1, 5), (1, 4), (0, 9, 0, 3), (1, 1), 1, 16),
]
# fmt: on
"""Strides, dilations, groups, paddings and row ends of every kind; flat, depthwise and with a residual."""


@pytest.mark.thorough
@pytest.mark.parametrize("here", WAYS)
def test_every_way_computes_the_convolution(here):
    assert all(SPACE.refuses(op, here) is None for op in OPERATORS)
    check([(op, [SPACE.default(op, here)]) for op in OPERATORS], here)


@pytest.mark.exhaustive
@pytest.mark.parametrize("here", WAYS)
def test_every_choice_computes_the_convolution(here):
    seen = set()
    check([(op, covering(SPACE, op, here, seen)) for op in OPERATORS], here)


@pytest.mark.thorough
@pytest.mark.parametrize("here", WAYS)
def test_nothing_saturates_at_the_extremes(here):
    ops = [
        QuantConv2d(x_dtype, "int32", 0, False, 1, channels, 4, 11, channels if channels == 2 else 5, (3, 3),
                    (1, 1), (1, 1, 1, 1), (1, 1), fill, 2 if channels == 2 else 1, safe)
        for x_dtype, fill in (("int8", -128), ("uint8", 127))
        for channels in (2, 40)
        for safe in (0, 1, 2)
    ]  # fmt: skip
    check([(op, [SPACE.default(op, here)]) for op in ops], here, extreme=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("lanes", [8, 16])
def test_words_of_four_where_no_instruction_takes_them(lanes, monkeypatch):
    """VNNI's product written out, so that its packing is checked on machines without it."""
    one = f"<{lanes} x i32>"
    body = [f"define linkonce_odr {one} @hetero_tvm_dot4({one} %c, {one} %a, {one} %b) alwaysinline {{"]
    total = "%c"
    for n in range(4):
        left = f"splat (i32 {24 - 8 * n})"
        body += [
            f"  %u{n} = shl {one} %a, {left}",
            f"  %x{n} = lshr {one} %u{n}, splat (i32 24)",
            f"  %v{n} = shl {one} %b, {left}",
            f"  %w{n} = ashr {one} %v{n}, splat (i32 24)",
            f"  %p{n} = mul {one} %x{n}, %w{n}",
            f"  %s{n} = add {one} {total}, %p{n}",
        ]
        total = f"%s{n}"
    source = "\n".join([*body, f"  ret {one} {total}", "}"]) + "\n"
    dot = Dot("dot4", 4, "uint8", 1.0, 0, source)
    monkeypatch.setattr("hetero_tvm.schedules.cpu.integers.image_words.dot_for", lambda machine, safe: dot)
    here = machine(lanes)
    check([(op, [SPACE.default(op, here)]) for op in OPERATORS], here)
    if lanes == 16:
        check_filters(OF_FILTERS, here)


# fmt: off
OF_FILTERS = [
    QuantConv2d("uint8", "uint8", 3, True, 2, 6, 7, 7, 48, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), -20),
    QuantConv2d("int8", "int8", 9, False, 1, 5, 9, 11, 32, (3, 2), (2, 2), (1, 0, 1, 1), (1, 2), 4),
    QuantConv2d("uint8", "int8", 9, False, 1, 8, 6, 5, 32, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 11, 2,
                residual="int8", final="uint8", final_bounds=(5, 250)),
    QuantConv2d("int8", "uint8", 3, True, 2, 9, 7, 7, 16, residual="uint8", final="int8"),
    QuantConv2d("uint8", "float32", 0, True, 1, 9, 7, 7, 16, residual="int8", final="uint8"),
    QuantConv2d("uint8", "uint8", 0, False, 1, 12, 14, 14, 80, (1, 1), (2, 2)),
    QuantConv2d("uint8", "uint8", 0, False, 1, 9, 1, 1, 16, bounds=(3, 200)),
]
# fmt: on
"""Rows that fill no vector, filters that do: whole tiles and rest, groups, strides, residuals."""


def check_filters(ops, here):
    """Tiles of a pixel, of part of a row, of a row and of several, with one vector of filters and more."""
    cases = []
    for op in ops:
        assert FILTERS in SPACE.knobs(op, here)[0].choices
        pixels = [1, 3, op.output.shape[3], 2 * op.output.shape[3]]
        tiles = [(p, 1, v) for p in pixels for v in (1, 2, 3)]
        grids = SPACE.knobs(op, here)[2].choices
        points = [
            {"method": FILTERS, "tile": tile, "grid": grid, "unroll": unroll}
            for tile in tiles
            for grid, unroll in {(grids[0], 1), (grids[-1], 2)}
        ]
        cases.append((op, points))
    check(cases, here)


@pytest.mark.thorough
def test_vectors_of_filters():
    check_filters(OF_FILTERS, machine(16, "avx512f", "avx512bw"))


def test_vectors_of_filters_want_whole_ones():
    here, op = machine(16, "avx512f", "avx512bw"), OF_FILTERS[0]
    assert FILTERS in SPACE.knobs(op, here)[0].choices
    for other in (
        dataclasses.replace(op, filters=40),
        dataclasses.replace(op, out="int32"),
        dataclasses.replace(op, pairs_safe=2),
        dataclasses.replace(op, channels=48, groups=48),
    ):
        assert FILTERS not in SPACE.knobs(other, here)[0].choices
    assert FILTERS not in SPACE.knobs(op, machine(8, "avx2"))[0].choices


def test_few_pixels_get_vectors_of_filters():
    """An image of 7 x 7 would leave more than half of each vector of pixels idle."""
    here = dataclasses.replace(machine(16, "avx512f", "avx512bw", "avx512_vnni"), fma_units=1.0)
    op = QuantConv2d("uint8", "uint8", 0, True, 1, 512, 7, 7, 512, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), -128)
    assert SPACE.default(op, here)["method"] == FILTERS


def test_refusals():
    here = machine(8, "avx2")
    assert SPACE.refuses(QuantMatmul(), here) == "not a quantised convolution"
    assert SPACE.refuses(QuantConv2d(batch=0), here) == "an extent is zero"
    long = QuantConv2d(channels=70_000)
    assert SPACE.refuses(long, here) == "sums of so many products may not fit 32 bits"
    assert SPACE.refuses(dataclasses.replace(long, channels=60_000), here) is None


# fmt: off
ROWS = [
    QuantConv2d("uint8", "uint8", 3, True, 2, 5, 1, 83, 6, (1, 3), (1, 1), (0, 1, 0, 1), (1, 1), -20),
    QuantConv2d("int8", "int8", 3, False, 1, 9, 1, 131, 16, (1, 5), (1, 2), (0, 3, 0, 1), (1, 2), 7),
    QuantConv2d("uint8", "int8", 9, False, 1, 4, 1, 97, 5, (1, 10), (1, 5), (0, 0, 0, 0), (1, 1), 0),
    QuantConv2d("uint8", "uint8", 3, False, 1, 16, 1, 66, 16, (1, 4), (1, 2)),
    QuantConv2d("int8", "uint8", 3, False, 1, 3, 1, 50, 16, (1, 3), (1, 1), (0, 24, 0, 20), (1, 12), 9),
    QuantConv2d("uint8", "int32", 0, False, 1, 4, 1, 90, 3, (1, 1), (1, 2)),
    QuantConv2d("uint8", "uint8", 3, False, 1, 6, 1, 75, 6, (1, 9), (1, 1), (0, 4, 0, 4), (1, 1), 5, 6),
]
# fmt: on
"""Rows: strides that read pairs and others, padding longer than a block, taps that lie apart, groups."""


@pytest.mark.thorough
@pytest.mark.parametrize("here", WAYS[:1] + WAYS[-1:])
def test_rows_are_cut_into_blocks(here):
    cases = []
    for op in ROWS:
        default = SPACE.default(op, here)
        grids = next(knob.choices for knob in SPACE.knobs(op, here) if knob.name == "grid")
        methods = next(knob.choices for knob in SPACE.knobs(op, here) if knob.name == "method")
        assert any(blocks > 1 for blocks, _ in grids)
        points = [{**default, "grid": grid, "method": m} for grid in grids for m in methods]
        cases.append((op, list({str(p): p for p in (SPACE.canonical(op, p, here) for p in points)}.values())))
    check(cases, here)
