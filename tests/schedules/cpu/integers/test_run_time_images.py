"""8-bit convolutions of images of any size: every method, padding, strides, groups, ways out, edges."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.schedules.cpu.integers.quant_conv2d import (
    DIRECT,
    FILTERS,
    MATRICES,
    WINOGRAD,
    QuantConv2dSpace,
    _methods,
)
from hetero_tvm.schedules.cpu.integers.run_time_images import changes_size, pieces_of_groups
from hetero_tvm.schedules.cpu.symbolic import kernels
from hetero_tvm.schedules.extents import completed
from hetero_tvm.schedules.symbolic import Witnesses
from tests.schedules.cpu.integers.test_dynamic_matmul import WAYS
from tests.schedules.cpu.integers.test_quant_conv2d import arrays_of
from tests.schedules.cpu.integers.test_tiles import BUILT_FOR, needs_tiles
from tests.schedules.cpu.integers.test_tiles import MATRICES as TILED
from tests.selection import named, thorough

SPACE = QuantConv2dSpace()
SIZES = tuple(
    completed(dict(zip("bhw", image, strict=True)), ["(h//2)", "(w//2)"])
    for image in ((3, 41, 67), (2, 41, 67), (3, 30, 67), (3, 41, 36), (3, 29, 67), (3, 41, 37))
)
IMAGES = ((1, 9, 9), (2, 41, 67), (1, 17, 33), (3, 8, 70), (1, 40, 16), (1, 100, 101))
"""Images smaller than a tile, whole tiles, one pixel more, and larger than any of the sizes."""

SAME, SYMMETRIC = (1, 1, 1, 1), {"strides": (2, 2), "padding": (1, 1, 1, 1)}
OPERATORS = {
    "padding": QuantConv2d("uint8", "uint8", 3, True, 2, 6, 5, 19, 7, (3, 3), padding=SAME, fill=-20),
    "strides": QuantConv2d("int8", "int8", 3, False, 1, 9, 8, 8, 21, (3, 3), (2, 2), (1, 1, 0, 2), fill=7),
    "sums": QuantConv2d("int8", "int32", 0, False, 1, 5, 8, 8, 5, (3, 3), (1, 1), (2,) * 4, (2, 2), 7),
    "floats": QuantConv2d("uint8", "float32", 0, False, 1, 3, 9, 9, 4, (5, 5), (2, 2), (2,) * 4, fill=-128),
    "one tap": QuantConv2d("int8", "int8", 9, False, 2, 33, 5, 7, 16, bounds=(-90, 33)),
    "one tap, padding": QuantConv2d("uint8", "int8", 3, False, 1, 4, 9, 9, 16, padding=(1, 0, 2, 1), fill=7),
    "one tap, strides": QuantConv2d("uint8", "int8", 3, False, 1, 4, 9, 9, 16, (1, 1), (2, 2)),
    "depthwise": QuantConv2d("int8", "uint8", 3, True, 2, 18, 9, 9, 18, (3, 3), padding=SAME, groups=18),
    "columns": QuantConv2d(
        *("int8", "uint8", 3, True, 2, 36, 9, 9, 36, (1, 7), (1, 2), (0, 3, 0, 3)), groups=36, fill=9
    ),
    "groups": QuantConv2d("int8", "uint8", 3, True, 2, 8, 9, 9, 12, (3, 3), **SYMMETRIC, fill=-20, groups=4),
    "a sum": QuantConv2d(
        *("uint8", "int8", 9, False, 1, 8, 7, 9, 16, (3, 3)),
        **{"padding": SAME, "fill": 11, "residual": "int8", "final": "uint8", "final_bounds": (5, 250)},
    ),
    "a sum rounded once": QuantConv2d(
        *("uint8", "float32", 0, False, 1, 8, 7, 9, 16), residual="int8", final="uint8"
    ),
}


def of_size(op, batch, height, width):
    return dataclasses.replace(op, batch=batch, height=height, width=width)


def check(op, here, method, images=IMAGES):
    ops = tuple(of_size(op, *(sizes[name] for name in "bhw")) for sizes in SIZES)
    witnesses = Witnesses(ops, SIZES)
    point = SPACE.of_all_sizes(ops, here)
    if point["method"] != method:
        tiles = [tile for tile in SPACE._tiles(ops[0], here)]
        point = {**point, "method": method, "tile": tiles[0]}
    function = kernels.emit(witnesses, SPACE, point, here).with_attr("global_symbol", "main")
    packers = SPACE.pack(witnesses.largest, point, here)
    run = compile_kernels(tvm.IRModule({"main": function}), BUILT_FOR).jit()["main"]
    for image in images:
        one = of_size(op, *image)
        arrays = arrays_of(one)
        given = [packers[n](array) if n in packers else array for n, array in enumerate(arrays)]
        result = tvm.runtime.tensor(np.full(one.output.shape, 7).astype(one.output.dtype))
        run(*(tvm.runtime.tensor(np.ascontiguousarray(array)) for array in given), result)
        wanted = one.reference(*arrays)
        if one.output.dtype == "float32":
            np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-6, err_msg=str(image))
        elif method != WINOGRAD:
            np.testing.assert_array_equal(result.numpy(), wanted, err_msg=str(image))
        else:  # a sum near a half may be rounded to its other side
            apart = np.abs(result.numpy().astype(int) - wanted)
            assert apart.max() <= 1 and (apart > 0).mean() <= 1e-3, image


@pytest.mark.parametrize(
    "name",
    named(
        list(OPERATORS),
        {"strides", "sums", "floats", "one tap", "depthwise", "columns", "groups", "a sum rounded once"},
    ),
)
@pytest.mark.parametrize(
    "here",
    [
        pytest.param(*way.values, id=way.id, marks=() if n == 1 else pytest.mark.thorough)
        for n, way in enumerate(WAYS)
    ],
)
def test_images_of_any_size(name, here):
    check(OPERATORS[name], here, DIRECT)


PIECES = {
    "depthwise": ("depthwise", {"channels": 96, "filters": 96, "groups": 96}),
    "groups": ("groups", {"channels": 40, "filters": 60, "groups": 20}),
    "a sum of groups": ("a sum", {"channels": 36, "filters": 72, "groups": 12}),
    "filters": ("padding", {"filters": 45}),
    "filters of a sum": ("a sum", {"filters": 45}),
    "pixels": ("one tap", {"filters": 70}),
}


@pytest.mark.parametrize("name", named(list(PIECES), {"depthwise", "groups", "filters", "pixels"}))
def test_threads_share_out_groups_and_filters_of_few_tiles(name):
    """More threads than an image has tiles: each computes some of the groups, or of the filters."""
    like, sizes = PIECES[name]
    here = dataclasses.replace(WAYS[1].values[0], threads=3)
    op = dataclasses.replace(OPERATORS[like], **sizes)
    assert (pieces_of_groups(op) > 1) == (op.groups > 1)
    check(op, here, DIRECT)


@needs_tiles
@pytest.mark.parametrize(
    "name", ["padding", *thorough(["a sum"]), *thorough(["strides", "one tap", "groups"])]
)
def test_on_a_matrix_unit(name):
    op = OPERATORS[name]
    op = dataclasses.replace(op, channels=8 * op.channels, filters=8 * op.filters)
    check(op, TILED, MATRICES, IMAGES[:4])


@pytest.mark.parametrize("method", [WINOGRAD, FILTERS])
def test_other_methods(method):
    here = WAYS[-1].values[0]
    op = dataclasses.replace(OPERATORS["a sum"], channels=32, filters=32)
    if method not in _methods(op, here):
        pytest.skip(f"this way to multiply has no {method}")
    check(op, here, method, IMAGES[:3])


def test_batches_of_images_of_one_size_have_the_kernel_of_that_size():
    ops = tuple(of_size(OPERATORS["padding"], batch, 9, 9) for batch in (3, 2))
    here = WAYS[0].values[0]
    assert not changes_size(ops) and SPACE.of_all_sizes(ops, here) is None
    witnesses = Witnesses(ops, ({"b": 3}, {"b": 2}))
    assert SPACE.run_time_kernel(witnesses, SPACE.default(ops[0], here), here) is None
