"""Images that stay in L1: whole, by strips, and beside tiles; against the contracts in float64."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.regions import strips
from hetero_tvm.targets.npu.regions.region import KernelCache
from tests.targets.npu.regions.chains import Chain, ChainRegion


def machine(preset="edge"):
    return NpuMachine(NPUSpec.preset(preset), "float16", SimpleNamespace(to_json=dict))


def bottleneck(channels, size, middle, stride=1):
    chain = Chain((1, channels, size, size))
    a = chain.conv(0, middle)
    b = chain.conv(a, middle, 3, stride)
    wide = channels if stride == 1 else 2 * channels
    around = 0 if stride == 1 else chain.conv(0, wide, 1, stride, relu=False)
    chain.conv(b, wide, residual=around)
    return chain


def check(chain, preset="edge"):
    got, run = chain.run(machine(preset))
    expected = chain.expected()
    # Some four roundings to float16 on the way.
    assert np.abs(got - expected).max() <= 4e-3 * np.abs(expected).max()
    return run.counters


@pytest.mark.parametrize("size", [1, 7, 14])
def test_small_images_stay_whole(size):
    counters = check(bottleneck(32, size, 16))
    crossing = 4 * 32 * size * size * 2
    inner = 2 * 16 * size * size * 2 * 2
    weights = 2 * (2 * 32 * 16 + 9 * 16 * 16) + 4096
    # The borders of the region convert between float32 and float16 through DRAM.
    assert counters.dram_read_bytes + counters.dram_write_bytes < 4 * crossing + weights + inner


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


@pytest.mark.parametrize("batch", [1, 2])
def test_the_mean_of_an_image_reads_it_from_l1(batch):
    chain = Chain((batch, 16, 12, 12))
    chain.mean(chain.conv(0, 64))
    counters = check(chain, "mobile")
    image = 2 * batch * 12 * 12
    crossing = (4 + 3 * 2) * image // 2 * 16  # in as float32, converted, read by the convolution
    assert counters.dram_read_bytes + counters.dram_write_bytes < crossing + 64 * image // 2 + 16384


BLOCKS = [(64, 48, 16, 1), (32, 52, 24, 1), (64, 40, 32, 2), (64, 40, 80, 2)]


@pytest.mark.parametrize(("channels", "size", "middle", "stride"), BLOCKS)
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


@pytest.mark.parametrize("size", [(64, 48, 48), (96, 47, 37)])
def test_strips_through_two_blocks_that_wait_for_dram(size):
    chain = two_blocks(*size, 16)
    names = [step.name for step in steps_of(chain) if "input" not in step.name]
    assert names[:7] == ["conv0", "conv1", "conv2", "conv3", "conv0", "conv4", "conv5"]
    counters = check(chain)
    # The input (2 bytes per element), the output (2, and 4 for the host); the image between never.
    assert counters.dram_write_bytes < 9 * np.prod(size)


def test_residual_of_another_width_than_the_unit():
    chain = Chain((1, 24, 9, 11), seed=5)
    a = chain.conv(0, 40)
    chain.conv(a, 24, residual=0)
    check(chain)


def test_several_images():
    chain = Chain((3, 16, 9, 9), seed=7)
    a = chain.conv(0, 24)
    b = chain.conv(a, 24, 3)
    chain.conv(b, 16, residual=0)
    check(chain)


STEMS = [(3, 33, 29, 24, 7, 2), (5, 16, 16, 8, 3, 1), (3, 6, 50, 16, 5, 2), (3, 12, 120, 20, 7, 2)]


@pytest.mark.parametrize(("channels", "height", "width", "filters", "kernel", "stride"), STEMS)
@pytest.mark.parametrize("relu", [True, False])
def test_a_convolution_and_the_pooling_behind_it(channels, height, width, filters, kernel, stride, relu):
    chain = Chain((1, channels, height, width), seed=1)
    chain.max_pool(chain.conv(0, filters, kernel, stride, relu=relu))
    counters = check(chain)
    image = 2 * np.prod(chain.shapes[1])
    # The image between the two is neither written to DRAM nor read from it.
    assert counters.dram_write_bytes < image + 6 * np.prod(chain.shapes[2])


def test_a_stem_behind_another_convolution():
    chain = Chain((1, 3, 21, 20), seed=2)
    chain.max_pool(chain.conv(chain.conv(0, 12, 3), 16, 3))
    check(chain)
