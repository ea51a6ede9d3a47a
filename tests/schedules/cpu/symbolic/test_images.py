"""Kernels on channel blocks for images of any rows and columns: what those of fixed sizes compute."""

import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.images.norms import BlockedGroupNorm, BlockedNormalization
from hetero_tvm.ops.pool2d import Pool2d, Relayout
from hetero_tvm.schedules.cpu.image_norms.channel_norm import BlockedNormalizeSpace
from hetero_tvm.schedules.cpu.image_norms.group_norm import BlockedGroupNormSpace
from hetero_tvm.schedules.cpu.images.conv2d_blocked import BlockedConv2dSpace
from hetero_tvm.schedules.cpu.images.depthwise import DepthwiseSpace
from hetero_tvm.schedules.cpu.images.pool2d import Pool2dSpace
from hetero_tvm.schedules.cpu.images.relayout import RelayoutSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from hetero_tvm.schedules.extents import completed
from hetero_tvm.schedules.symbolic import Witnesses
from tests.schedules.cpu.running import MACHINES
from tests.schedules.cpu.symbolic.helpers import SIZES, check, witnesses_of
from tests.selection import thorough

AVX2 = MACHINES["avx2"]
BLOCKS = {"x_layout": "NCHW8c", "y_layout": "NCHW8c", "residual_layout": "NCHW8c"}
PADDED = {**BLOCKS, "x_layout": "NCHW8c+1,1,1,1", "y_layout": "NCHW8c+2,1,0,1"}
THREE = {"kernel": (3, 3), "padding": (1, 1, 1, 1), **PADDED}


def _check(make, space, point):
    sizes = tuple(completed(one, ["((s + 1)//2)"]) for one in SIZES)
    witnesses = Witnesses(tuple(make(one["b"], one["s"]) for one in sizes), sizes)
    for op in witnesses.ops:
        assert space.refuses(op, AVX2) is None
    function = kernels.emit(witnesses, space, point, AVX2)
    check(make, function, space.pack(witnesses.largest, point, AVX2))


WIDE, GROUPS, ROWS = ((1, 5, 2), 2, 1), ((1, 6, 1), 4, 2), ((2, 3, 1), 1, 1)


@pytest.mark.parametrize(
    ("given", "decisions"),
    [
        ({**THREE, "epilogue": ("bias", "relu", "residual", "gate")}, WIDE),
        *thorough([({**THREE, "strides": (1, 2), "epilogue": ("bias", "sigmoid")}, GROUPS)]),
        ({**THREE, "dilation": (2, 1)}, ROWS),
        ({**THREE, "groups": 2, "epilogue": ("relu",)}, GROUPS),
        ({"kernel": (1, 1), "epilogue": ("bias",), **BLOCKS}, WIDE),
        *thorough([({"kernel": (3, 3), "padding": (2, 0, 0, 3), **PADDED, "x_layout": "NCHW"}, ROWS)]),
    ],
    ids=["residual", "strided", "dilated", "groups", "flat", "plain"],
)
def test_convolutions(given, decisions):
    tile, blocks, groups = decisions
    channels, filters = 3 if given["x_layout"] == "NCHW" else 16, 16 if "groups" in given else 20

    def make(b, s):
        return Conv2d(batch=b, channels=channels, height=b + 8, width=s, filters=filters, **given)

    _check(make, BlockedConv2dSpace(), {"method": "direct", "tile": tile, "blocks": blocks, "groups": groups})


@pytest.mark.parametrize("method", ["winograd2", "winograd4"])
@pytest.mark.parametrize("groups", [1, 2])
def test_winograds_method(method, groups):
    def make(b, s):
        return Conv2d(b, 12, b + 4, s, 20, epilogue=("bias", "relu"), **THREE)

    point = {"method": method, "tile": (1, 4, 1), "blocks": 3, "groups": groups}
    _check(make, BlockedConv2dSpace(), point)


@pytest.mark.parametrize("strides", [(1, 1), (1, 2)])
@pytest.mark.parametrize("tile", [(1, 6), (2, 4)])
def test_depthwise_convolutions(strides, tile):
    def make(b, s):
        return Conv2d(b, 12, b + 5, s, 12, groups=12, strides=strides, epilogue=("bias",), **THREE)

    _check(make, DepthwiseSpace(), {"tile": tile, "blocks": 2})


@pytest.mark.parametrize("space", [BlockedConv2dSpace(), DepthwiseSpace()], ids=["conv", "depthwise"])
def test_threads_share_a_single_row_of_any_width(space):
    """Zeros around the result are written once, above and below it as well."""
    groups = 12 if isinstance(space, DepthwiseSpace) else 1
    halos = {**BLOCKS, "x_layout": "NCHW8c+0,2,0,2", "y_layout": "NCHW8c+1,2,3,1"}
    point = {"tile": (1, 6), "blocks": 7} if groups > 1 else _ROW_POINT

    def make(b, s):
        row = {"kernel": (1, 5), "padding": (0, 2, 0, 2), "groups": groups, "epilogue": ("bias", "residual")}
        return Conv2d(b, 12, 1, s, 12, **row, **halos)

    _check(make, space, point)


_ROW_POINT = {"method": "direct", "tile": (1, 5, 2), "blocks": 7, "groups": 1}


@pytest.mark.parametrize("mode", ["max", "avg"])
@pytest.mark.parametrize("whole", [False, True])
def test_pooling(mode, whole):
    layouts = {"x_layout": "NCHW8c+0,1,0,1", "y_layout": "NCHW8c" if whole else "NCHW8c+1,1,1,1"}

    def make(b, s):
        height, width = b + 6, s
        window = ((height, width), (1, 1), (0, 0, 0, 0), (1, 1)) if whole else _WINDOW
        if not whole:
            window = (*window, (height, (s + 1) // 2))
        return Pool2d(b, 12, height, width, *window, mode, **layouts)

    _check(make, Pool2dSpace(), {"accumulators": 1})


_WINDOW = ((3, 3), (1, 2), (1, 1, 1, 1))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ("NCHW", "NCHW8c"),
        ("NCHW", "NCHW8c+1,2,0,1"),
        ("NCHW8c", "NCHW"),
        ("NCHW8c+1,1,1,1", "NCHW"),
        ("NCHW8c", "NCHW8c+1,1,1,1"),
    ],
)
@pytest.mark.parametrize("channels", [16, 5, 11])
def test_changes_of_layout(x, y, channels):
    _check(lambda b, s: Relayout(b, channels, b + 2, s, x, y), RelayoutSpace(), {})


@pytest.mark.parametrize(
    ("x", "y"), [("NCHW8c", "NCHW8c+1,2,0,1"), *thorough([("NCHW8c+1,0,2,1", "NCHW8c")])]
)
def test_norms(x, y):
    _check(lambda b, s: BlockedGroupNorm(b, 20, b + 2, s, x, y, 5, 1e-5, "silu"), BlockedGroupNormSpace(), {})
    _check(lambda b, s: BlockedNormalization(b, 20, b + 2, s, x, y, 1e-5), BlockedNormalizeSpace(), {})


@pytest.mark.parametrize(
    ("x", "y"), [("NCHW24c", "NCHW8c+1,2,0,1"), ("NCHW8c", "NCHW24c"), ("NCHW8c+1,0,2,1", "NCHW24c")]
)
def test_rows_of_channels(x, y):
    _check(lambda b, s: Relayout(b, 24, b + 2, s, x, y), RelayoutSpace(), {})


def test_images_of_one_size_are_lifted():
    def make(b, s):
        return Conv2d(b, 16, 9, 9, 16, **THREE)

    space, witnesses = BlockedConv2dSpace(), witnesses_of(make)
    point = space.default(witnesses.largest, AVX2)
    assert kernels.emit(witnesses, space, point, AVX2) is None
    assert space.of_all_sizes(witnesses.ops, AVX2) is None


def test_a_point_for_all_sizes():
    """It has tiles of one row, and no more pieces than small images have."""

    def make(s):
        return Conv2d(1, 64, s, s, 64, **THREE)

    space = BlockedConv2dSpace()
    point = space.of_all_sizes([make(s) for s in (16, 64, 256)], AVX2)
    assert point["method"] == "winograd4" and point["tile"][0] == 1
    deep = DepthwiseSpace().of_all_sizes(
        [Conv2d(1, 64, s, s, 64, groups=64, **THREE) for s in (16, 64, 256)], AVX2
    )
    rows, columns = deep["tile"]
    assert rows * columns <= AVX2.registers - 4
