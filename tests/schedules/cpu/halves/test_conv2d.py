"""Convolution of bfloat16 on channel blocks: strides, dilations, groups, halos, every choice of each knob."""

import dataclasses
import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.integers.bf16_conv2d import Bf16Conv2d, Bf16Conv3d
from hetero_tvm.schedules.cpu.dots import halves_for
from hetero_tvm.schedules.cpu.halves import conv2d_matrices
from hetero_tvm.schedules.cpu.halves.conv2d import Bf16Conv2dSpace, halves_pay
from hetero_tvm.targets.registry import parse_target
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.images.helpers import PAD, on, random_blocks, random_conv2d
from tests.schedules.cpu.images.test_slice_planes import CASES
from tests.schedules.cpu.running import covering, point_runners
from tests.schedules.representatives import CPU, TILES
from tests.selection import thorough

SPACE = Bf16Conv2dSpace()
MACHINE = parse_target("cpu").machine
ZEN = dataclasses.replace(TILES, mcpu="znver-test", features=("avx512_bf16",))
multiplies = pytest.mark.skipif(halves_for(MACHINE) is None, reason="no avx512_bf16")
TOLERANCE = 2e-6
"""Error relative to the largest value: pairs of exact products, added up in float32."""


def on_blocks(op, x=""):
    return Bf16Conv2d.of(on(ZEN, op, x))


def operands(op, seed=0):
    x, w, *extra = (a.astype(np.float32) for a in sample_inputs(op.plain_form, seed))
    return [x, w.astype(ml_dtypes.bfloat16), *extra]


def check(op, points):
    arrays = operands(op)
    wanted = op.reference(arrays[0].astype(np.float64), *arrays[1:])
    for point, run in zip(points, point_runners(SPACE, op, points, MACHINE), strict=True):
        error = np.abs(run(*arrays) - wanted).max(initial=0) / max(1.0, np.abs(wanted).max(initial=0))
        assert error < TOLERANCE, (point, error)


def all_points(op):
    knobs = SPACE.knobs(op, MACHINE)
    return [
        dict(zip([knob.name for knob in knobs], choice, strict=True))
        for choice in itertools.product(*(knob.choices for knob in knobs))
    ]


@multiplies
@pytest.mark.thorough
@pytest.mark.parametrize(
    "op",
    [
        on_blocks(
            Conv2d(2, 20, 9, 11, 35, (3, 3), padding=PAD, epilogue=("bias", "residual", "relu")), "+1,2,2,1"
        ),
        on_blocks(Conv2d(1, 20, 9, 11, 35, (1, 1), epilogue=("bias", "residual", "relu"))),
        on_blocks(Conv2d(1, 20, 9, 11, 35, (1, 1), (2, 2), epilogue=("residual", "bias", "gate", "sigmoid"))),
    ],
    ids=lambda op: op.label,
)
def test_every_choice_computes_the_convolution(op):
    check(op, covering(SPACE, op, MACHINE, set()))


@multiplies
@pytest.mark.parametrize(
    ("op", "x"),
    [
        (Conv2d(1, 1, 1, 1, 1, (1, 1)), ""),
        (Conv2d(3, 17, 5, 4, 17, (1, 1), epilogue=("bias",)), ""),
        *thorough(
            [
                (
                    Conv2d(1, 9, 7, 29, 9, (3, 3), (1, 1), (6, 19, 6, 19), (6, 19), epilogue=("bias",)),
                    "+6,19,7,19",
                )
            ]
        ),
        (Conv2d(1, 12, 9, 9, 3, (3, 1), (2, 3), (2, 0, 2, 0), (2, 1)), "+2,3,2,2"),
        (Conv2d(1, 12, 9, 9, 3, (1, 3), (2, 3), (0, 2, 0, 2), (1, 2)), "+2,3,2,2"),
        *thorough(
            [
                (Conv2d(1, 64, 6, 6, 8, (1, 1), padding=PAD, epilogue=("gelu_erf",)), "+1,1,1,1"),
                (Conv2d(1, 32, 6, 7, 64, (3, 3), padding=PAD, groups=2), "+1,1,1,1"),
            ]
        ),
        *thorough(
            [
                (Conv2d(2, 40, 7, 7, 64, (3, 3), padding=PAD, epilogue=("bias", "relu")), "+1,1,1,1"),
                (Conv2d(1, 33, 11, 20, 48, (3, 3), padding=PAD, epilogue=("bias", "residual")), "+1,1,1,1"),
                (Conv2d(1, 64, 13, 9, 20, (3, 1), padding=(2, 0, 2, 0), dilation=(2, 1)), "+2,0,2,0"),
                (Conv2d(1, 48, 14, 14, 64, (1, 1), (2, 2), epilogue=("bias",)), ""),
                (Conv2d(1, 64, 6, 7, 128, (3, 3), padding=PAD, groups=2), "+1,1,1,1"),
            ]
        ),
    ],
    ids=str,
)
def test_unusual_shapes(op, x):
    half = on_blocks(op, x)
    assert SPACE.refuses(half, MACHINE) is None
    points = all_points(half)
    check(half, [SPACE.default(half, MACHINE), *points[:: max(1, len(points) // 3)]])


@multiplies
@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_shapes(data):
    plain = random_conv2d(data.draw, data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40)))
    assume(min(plain.out_height, plain.out_width) > 0)
    op = Bf16Conv2d.of(random_blocks(data.draw, ZEN, plain))
    points = all_points(op)
    check(op, [points[data.draw(st.integers(0, len(points) - 1))]])


@multiplies
def test_not_a_number_and_infinity_stay_where_they_are():
    """Both reach the pixels whose filters cover them, as in float32, and no others; a denormal is zero.

    Nor does what lies behind the last channel, of which a pair has one.
    """
    op = on_blocks(Conv2d(1, 21, 6, 6, 16, (3, 3), padding=PAD), "+1,1,1,1")
    x, w = operands(op)
    x[:, 1, 1:-1, 1:-1, 5:] = np.nan
    x[0, 0, 1, 1, 3], x[0, 1, 6, 6, 2], x[0, 0, 4, 2, 0] = np.nan, np.inf, 1e-40
    (run,) = point_runners(SPACE, op, [SPACE.default(op, MACHINE)], MACHINE)
    with np.errstate(invalid="ignore"):
        wanted = op.reference(x.astype(np.float64), w)
    np.testing.assert_allclose(run(x, w), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "machine", "reason"),
    [
        (on(ZEN, Conv2d(1, 64, 8, 8, 64, (1, 1))), ZEN, "not a convolution of bfloat16"),
        (on_blocks(Conv2d(1, 64, 8, 8, 64, (1, 1))), CPU, "the machine does not multiply bfloat16"),
        (
            Bf16Conv2d.of(on(ZEN, Conv2d(1, 3, 8, 8, 64, (1, 1)), None)),
            ZEN,
            "neighbouring channels do not lie in blocks of one group",
        ),
        (
            on_blocks(Conv2d(1, 48, 8, 8, 48, (1, 1), groups=6)),
            ZEN,
            "neighbouring channels do not lie in blocks of one group",
        ),
        (on_blocks(Conv2d(1, 64, 8, 8, 64, (3, 3), padding=PAD, constant_weight=False)), ZEN, "not constant"),
    ],
    ids=lambda value: getattr(value, "label", None),
)
def test_refusals(op, machine, reason):
    refusal = SPACE.refuses(op, machine)
    assert refusal is not None and reason in refusal


def test_its_roof_is_that_of_bfloat16():
    op = on_blocks(Conv2d(1, 64, 8, 8, 64, (1, 1)))
    assert SPACE.arithmetic(op, ZEN) == "bfloat16"


def test_it_pays_where_winograd_does_not():
    machine = dataclasses.replace(ZEN, fma_units=1.0)
    wide = on(machine, Conv2d(1, 256, 14, 14, 1024, (1, 1)))
    assert halves_pay(wide, machine)
    assert halves_pay(dataclasses.replace(wide, batch=7), machine)
    assert not halves_pay(on(machine, Conv2d(1, 64, 56, 56, 64, (3, 3), padding=PAD), "+1,1,1,1"), machine)
    slow = dataclasses.replace(machine, mcpu="sapphirerapids")  # whose vectors multiply pairs slowly
    assert not halves_pay(wide, slow)
    deep = on(TILES, Conv2d(1, 64, 56, 56, 64, (3, 3), padding=PAD), "+1,1,1,1")
    few = on(TILES, Conv2d(1, 8, 56, 56, 512, (3, 3), padding=PAD), "+1,1,1,1")
    assert halves_pay(deep, TILES) and not halves_pay(few, TILES), "tiles of 32 channels for 8"


@multiplies
@pytest.mark.parametrize("name", ["strided", *thorough(["partial"]), *thorough(["around", "causal", "even"])])
def test_slices_of_volumes(name):
    """Slices are rounded once for all filters; what lies behind the last channel of each stays zero."""
    op, x = CASES[name]
    half = on_blocks(op, x)
    assert type(half) is Bf16Conv3d and half.plain_form == on(ZEN, op, x)
    assert not conv2d_matrices.applies(half, TILES)
    default = SPACE.default(half, MACHINE)
    check(half, [default, {**default, "blocks": 2, "groups": 1}])


def test_the_matrix_unit_goes_through_a_deep_panel_once():
    op = Bf16Conv2d.of(on(TILES, Conv2d(1, 4608, 1, 300, 128, (1, 1))))
    kernel = conv2d_matrices.Bf16MatrixConvKernel(op, conv2d_matrices.MatrixShape(op, 16).tile, 2, 1, TILES)
    assert kernel.block_tiles > 1 and kernel.slices.count == 1


@multiplies
@pytest.mark.parametrize(
    ("op", "x"),
    [
        *thorough(
            [
                (
                    Conv2d(2, 20, 9, 11, 35, (3, 3), padding=PAD, epilogue=("bias", "residual", "sigmoid")),
                    "+1,1,1,1",
                )
            ]
        ),
        (Conv2d(1, 64, 7, 7, 48, (1, 1), epilogue=("bias", "relu")), ""),
        *thorough([(Conv2d(1, 48, 14, 13, 64, (1, 1), (2, 2)), ""), (Conv2d(1, 9, 5, 6, 3, (1, 3)), "")]),
    ],
    ids=str,
)
def test_stored_halves_are_what_was_multiplied_before(op, x):
    """Numbers that lie in memory in bfloat16 are the same to the last bit, and so are the zeros around."""
    op = on_blocks(op, x)
    op = dataclasses.replace(op, y_layout=op.y_layout + "+1,0,2,1")
    image, *others = operands(op)
    halves, half = image.astype(ml_dtypes.bfloat16), ml_dtypes.bfloat16
    forms = {
        (of, to): dataclasses.replace(op, x_dtype=of, y_dtype=to)
        for of in ("float32", "bfloat16")
        for to in ("float32", "bfloat16")
    }
    points = [{"unit": unit} for unit in SPACE.knobs(op, MACHINE)[0].choices]
    points = [SPACE.canonical(op, {**SPACE.default(op, MACHINE), **point}, MACHINE) for point in points]
    for point in points:
        (run,) = point_runners(SPACE, op, [point], MACHINE)
        wanted = run(image, *others)
        for (of, to), form in forms.items():
            assert SPACE.refuses(form, MACHINE) is None
            (run,) = point_runners(SPACE, form, [point], MACHINE)
            found = run(halves if of == "bfloat16" else image, *others)
            exact = wanted.astype(half) if to == "bfloat16" else wanted
            assert found.dtype == exact.dtype and found.tobytes() == exact.tobytes(), (point, of, to)
