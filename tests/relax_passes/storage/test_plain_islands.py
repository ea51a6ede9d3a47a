"""Convolutions that stay plain: by kernels and conversions that a test makes up, and by those of a target."""

from dataclasses import replace

import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.relax_passes.fusions.convolutions.conv2d import FuseConv2d
from hetero_tvm.relax_passes.storage.layout import BlockImages
from hetero_tvm.relax_passes.storage.plain_islands import LayoutCosts
from hetero_tvm.targets.registry import parse_target
from tests.relax_passes.graphs import contracts, fuse, module, op, same_numbers
from tests.relax_passes.storage.test_layout import BLOCK, conv


def layouts(body, kernels, conversion, inputs=None):
    """Filters of each convolution, and whether its result is plain."""
    costs = LayoutCosts(
        lambda plain, blocked: kernels.get(plain.filters), lambda image, to_blocks: conversion
    )
    before = module(inputs or {"x": (2, 8, 6, 5)}, body)
    rule = BlockImages(BLOCK, lambda op: True, pays=lambda *_: True, costs=costs)
    after, _, _ = fuse(before, FuseConv2d(), rule)
    same_numbers(before, after)
    return [(found.filters, found.y_layout == "NCHW") for found in contracts(after, "conv2d")]


def chain(*filters):
    def body(emit, x):
        for n, count in enumerate(filters):
            x = emit(op.nn.relu(conv(emit, x, count, seed=n)))
        return x

    return body


@pytest.mark.parametrize(("conversion", "plain"), [(10.0, True), (60.0, False)])
def test_a_convolution_stays_plain_where_that_saves_more_than_conversions_cost(conversion, plain):
    found = layouts(chain(8, 5, 12), {5: (10.0, 100.0)}, conversion)
    assert found == [(8, False), (5, plain), (12, False)]


def test_neighbours_that_stay_plain_share_no_conversion():
    kernels = {5: (10.0, 50.0), 6: (10.0, 50.0)}  # 40 saved by each, 60 for the way there and back
    assert layouts(chain(8, 5, 12), kernels, 30.0) == [(8, False), (5, False), (12, False)]
    assert layouts(chain(8, 5, 6, 12), kernels, 30.0) == [(8, False), (5, True), (6, True), (12, False)]


def test_few_channels_are_read_as_they_are():
    """Fewer than a block, by a kernel that puts zeros around a plain image itself."""
    assert layouts(chain(8, 3, 12), {3: (10.0, 100.0)}, 60.0) == [(8, False), (3, True), (12, False)]


def test_what_stands_between_is_asked_for_once():
    """A result with two readers on blocks is converted once."""

    def body(emit, x):
        x = conv(emit, conv(emit, x, 8), 5, seed=1)
        return emit(op.concat([conv(emit, x, 12, seed=2), conv(emit, x, 16, seed=3)], 1))

    found = dict(layouts(body, {5: (10.0, 100.0)}, 40.0))
    assert found[5] and not found[12] and not found[16]


def test_estimates_must_differ_clearly():
    assert layouts(chain(8, 3, 12), {3: (65.0, 100.0)}, 0.0)[1] == (3, False)
    assert layouts(chain(8, 3, 12), {3: (75e6, 100e6)}, 0.0)[1] == (3, False)
    assert layouts(chain(8, 3, 12), {3: (65e6, 100e6)}, 0.0)[1] == (3, True)  # much is saved


def test_unknown_kernels_are_left_on_blocks():
    assert layouts(chain(8, 3, 12), {}, 0.0)[1] == (3, False)


def test_a_target_judges_few_filters_and_groups():
    """By vectors of 16 floats: filters that fill a quarter of one, groups of four channels."""
    target = parse_target("cpu:znver4")
    costs, lanes = target.image_layouts.costs, target.machine.lanes

    def ratio(op):
        halo = ",".join(map(str, op.padding))
        blocks = f"NCHW{lanes}c"
        blocked = replace(op, x_layout=f"{blocks}+{halo}", y_layout=blocks, residual_layout=blocks)
        plain, on_blocks = costs.kernels(op, blocked)
        return plain / on_blocks

    same = {"padding": (0, 4, 0, 4)}
    assert ratio(Conv2d(1, 8, 1, 16384, 8, (1, 9), **same)) < 0.7
    assert ratio(Conv2d(1, 32, 1, 4000, 64, (1, 9), groups=8, **same)) < 0.6
    wide = Conv2d(1, 64, 1, 16384, 64, (1, 9), **same)
    last = Conv2d(1, 64, 1, 16384, 1, (1, 9), **same)  # whose channels fill vectors
    assert all(costs.kernels(op, op) is None for op in (wide, last))
