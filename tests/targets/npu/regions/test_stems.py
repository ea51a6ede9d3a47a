"""Convolutions joined with the pooling behind them, against the contracts in float64."""

import numpy as np
import pytest

from tests.targets.npu.regions.chains import Chain, check

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
