"""Transpositions beside a change of an image's layout become part of it."""

import pytest

from hetero_tvm.ops.pool2d import Relayout
from hetero_tvm.relax_passes.fusions.convolutions.conv2d import FuseConv2d
from hetero_tvm.relax_passes.storage.layout import BlockImages
from hetero_tvm.relax_passes.storage.rows_of_blocks import RowsOfBlocks
from tests.relax_passes.graphs import calls, constant, contracts, fuse, module, op, same_numbers, weights
from tests.relax_passes.rewrite import Rewrite, kernel

BLOCK = 4
X = {"x": (2, 8, 6, 5)}


def conv(emit, x, filters=8, seed=0):
    weight = constant(weights(filters, int(x.ty.shape[1]), 3, 3, seed=seed) * 0.3)
    return emit(op.nn.conv2d(x, weight, padding=1))


def blocked(body, claims=lambda op: True):
    before = module(X, body)
    after, _, report = fuse(before, FuseConv2d(), BlockImages(BLOCK, claims))
    same_numbers(before, after)
    layouts = [(change.x_layout, change.y_layout) for change in contracts(after, "relayout")]
    return layouts, calls(after)["permute_dims"], report


def of_images(emit, image):
    rows = emit(op.permute_dims(image, (0, 2, 3, 1)))
    return emit(op.permute_dims(emit(op.nn.softmax(rows)), (0, 3, 1, 2)))


def of_tokens(emit, image):
    tokens = emit(op.permute_dims(emit(op.reshape(image, (2, 8, 30))), (0, 2, 1)))
    back = emit(op.permute_dims(emit(op.nn.softmax(tokens)), (0, 2, 1)))
    return emit(op.reshape(back, (2, 8, 6, 5)))


@pytest.mark.parametrize("rows", [of_images, of_tokens])
def test_between_two_convolutions(rows):
    def body(emit, x):
        x = conv(emit, conv(emit, x), seed=1)
        return conv(emit, conv(emit, rows(emit, x), seed=2), seed=3)

    layouts, transposes, report = blocked(body)
    assert layouts[1:3] == [("NCHW4c", "NCHW8c"), ("NCHW8c", "NCHW4c+1,1,1,1")] and transposes == 0
    assert {entry["to"] for entry in report.conversions} >= {"NCHW8c", "NCHW4c+1,1,1,1"}


def test_one_block_of_channels_is_a_row_as_it_lies():
    def body(emit, x):
        x = conv(emit, conv(emit, x), 4, seed=1)
        return conv(emit, conv(emit, of_images(emit, x), 4, seed=2), seed=3)

    layouts, transposes, _ = blocked(body)
    assert ("NCHW4c", "NCHW4c") not in layouts and transposes == 0
    assert layouts[1:2] == [("NCHW4c", "NCHW4c+1,1,1,1")], "zeros around what the third reads"


def test_an_image_that_is_also_read_as_it_is_is_converted_for_both():
    def body(emit, x):
        x = conv(emit, conv(emit, x), seed=1)
        return emit(op.nn.softmax(emit(op.permute_dims(x, (0, 2, 3, 1))))), emit(op.nn.softmax(x, 1))

    layouts, transposes, _ = blocked(body)
    assert {("NCHW4c", "NCHW8c"), ("NCHW4c", "NCHW")} <= set(layouts) and transposes == 0


@pytest.mark.parametrize("order", [(0, 3, 2, 1), (0, 2, 1, 3), (2, 3, 0, 1)])
def test_other_transpositions_stay(order):
    def body(emit, x):
        return emit(op.nn.softmax(emit(op.permute_dims(conv(emit, conv(emit, x), seed=1), order))))

    layouts, transposes, _ = blocked(body)
    assert ("NCHW4c", "NCHW") in layouts and transposes == 1


def test_pixels_by_channels_of_another_split_stay():
    def body(emit, x):
        x = conv(emit, conv(emit, x), seed=1)
        return emit(op.permute_dims(emit(op.reshape(x, (2, 40, 6))), (0, 2, 1)))

    assert blocked(body)[1] == 1


def test_what_the_target_has_no_kernel_for_stays():
    def claims(op):
        return not isinstance(op, Relayout) or not (op.to_rows or op.from_rows)

    def body(emit, x):
        x = conv(emit, conv(emit, x), seed=1)
        return conv(emit, conv(emit, of_images(emit, x), seed=2), seed=3)

    assert blocked(body, claims)[1] == 2


class TestRowsOfBlocks(Rewrite):
    rule = RowsOfBlocks(lambda op: True)
    inputs = {"x": (2, 2, 6, 5, 4)}

    def before(self, x):
        return op.permute_dims(kernel(Relayout(2, 8, 6, 5, "NCHW4c", "NCHW"), x), (0, 2, 3, 1))

    def expected(self, x):
        return op.reshape(kernel(Relayout(2, 8, 6, 5, "NCHW4c", "NCHW8c"), x), (2, 6, 5, 8))
