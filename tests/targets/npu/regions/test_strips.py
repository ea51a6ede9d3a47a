"""Chains of convolutions by strips, against the contracts in float64."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_tvm.targets.npu.regions import strips
from hetero_tvm.targets.npu.regions.region import KernelCache
from tests.schedules.npu.running import machine
from tests.selection import thorough
from tests.targets.npu.regions.chains import Chain, ChainRegion, bottleneck, check

INVERTED = [(16, 10, 40, 1), (24, 50, 80, 1), (16, 56, 48, 2)]


@pytest.mark.parametrize(("channels", "size", "wide", "stride"), INVERTED)
@pytest.mark.parametrize("preset", ["edge", "mobile"])
def test_inverted_residuals(channels, size, wide, stride, preset):
    """Wide images in the middle, whole or by strips; with a stride no image but one is alive anywhere."""
    chain = Chain((1, channels, size, size))
    narrow = chain.conv(0, channels)
    middle = chain.conv(chain.conv(narrow, wide), wide, 3, stride, depthwise=True)
    chain.conv(middle, channels, residual=narrow if stride == 1 else None, relu=False)
    counters = check(chain, preset)
    if size > 10:
        wide_bytes = 2 * wide * size * size
        assert counters.dram_read_bytes + counters.dram_write_bytes < 10 * channels * size * size + wide_bytes


BLOCKS = [(64, 48, 16, 1), (32, 52, 24, 1), (64, 40, 32, 2), (64, 40, 80, 2)]


@pytest.mark.parametrize(
    ("channels", "size", "middle", "stride"), [*BLOCKS[:1], *thorough(BLOCKS[1:3]), *BLOCKS[3:]]
)
def test_large_images_go_by_strips(channels, size, middle, stride):
    chain = bottleneck(channels, size, middle, stride)
    names = [step.name for step in steps_of(chain)]
    assert len(names) > 2 * len(chain.steps)
    check(chain)


def steps_of(chain):
    """The kernels that the chain becomes."""
    region = ChainRegion(chain, KernelCache(machine()))
    steps, outputs = region.prepare(region.builder())
    return strips.split(steps, [value for _, value in outputs], machine(), 0.95)


def two_blocks(channels, height, width, middle):
    chain = Chain((1, channels, height, width), seed=3)
    x = 0
    for _ in range(2):
        a = chain.conv(x, middle)
        b = chain.conv(a, middle, 3)
        x = chain.conv(b, channels, residual=x)
    return chain


def test_two_blocks_one_behind_the_other():
    check(two_blocks(32, 28, 28, 16))


def test_strips_of_two_blocks_run_into_each_other():
    chain = two_blocks(64, 48, 48, 56)
    names = [step.name for step in steps_of(chain) if "input" not in step.name]
    last = max(n for n, name in enumerate(names) if name == "conv2")
    assert names[last - 2 : last + 1] == ["conv1", "conv3", "conv2"]
    check(chain)


def test_copies_wait_for_results_that_come_in_a_burst():
    """The products of the last convolution take much less time than its results to DRAM."""
    chain = two_blocks(64, 40, 41, 48)
    steps = steps_of(chain)
    waiting = [(step, step.behind) for step in steps if step.behind is not None]
    assert waiting and all(final.name in ("conv2", "conv5") for _, final in waiting)
    assert all(steps.index(final) < steps.index(step) for step, final in waiting)
    check(chain)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(64, 48, 48), (96, 47, 37)])
def test_strips_through_two_blocks_that_wait_for_dram(size):
    chain = two_blocks(*size, 16)
    names = [step.name for step in steps_of(chain) if "input" not in step.name]
    assert names[:7] == ["conv0", "conv1", "conv2", "conv3", "conv0", "conv4", "conv5"]
    counters = check(chain)
    # The input (2 bytes per element), the output (2, and 4 for the host); the image between never.
    assert counters.dram_write_bytes < 9 * np.prod(size)
