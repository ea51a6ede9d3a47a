"""Images that stay in L1 between kernels: numbers against the contracts in float64, and traffic."""

import pytest

from tests.targets.npu.regions.chains import Chain, bottleneck, check


@pytest.mark.parametrize("size", [1, 7, 14])
def test_small_images_stay_whole(size):
    counters = check(bottleneck(32, size, 16))
    crossing = 4 * 32 * size * size * 2
    inner = 2 * 16 * size * size * 2 * 2
    weights = 2 * (2 * 32 * 16 + 9 * 16 * 16) + 4096
    # The borders of the region convert between float32 and float16 through DRAM.
    assert counters.dram_read_bytes + counters.dram_write_bytes < 4 * crossing + weights + inner


@pytest.mark.parametrize("batch", [1, 2])
def test_the_mean_of_an_image_reads_it_from_l1(batch):
    chain = Chain((batch, 16, 12, 12))
    chain.mean(chain.conv(0, 64))
    counters = check(chain, "mobile")
    image = 2 * batch * 12 * 12
    crossing = (4 + 3 * 2) * image // 2 * 16  # in as float32, converted, read by the convolution
    assert counters.dram_read_bytes + counters.dram_write_bytes < crossing + 64 * image // 2 + 16384


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
