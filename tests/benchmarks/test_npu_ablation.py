"""Region compilers that leave something out: the same numbers, at more cycles."""

import numpy as np
import pytest

from benchmarks.npu_ablation.single_buffered import SingleBuffered, SingleBufferedKernels
from benchmarks.npu_ablation.unfused import Unfused
from hetero_tvm.targets.npu.regions.region import KernelCache
from tests.schedules.npu.running import machine
from tests.targets.npu.regions.chains import ChainRegion, bottleneck


class SingleBufferedChain(SingleBuffered, ChainRegion):
    pass


class UnfusedChain(Unfused, ChainRegion):
    pass


VARIANTS = [(SingleBufferedChain, SingleBufferedKernels), (UnfusedChain, KernelCache)]


@pytest.mark.parametrize(("region", "kernels"), VARIANTS)
def test_features_left_out_cost_cycles_and_not_numbers(region, kernels):
    chain, mach = bottleneck(64, 28, 16), machine()
    expected = chain.expected()
    whole = chain.run(mach)[1].counters.cycles
    got, run = chain.run_region(mach, region(chain, kernels(mach)).compile())
    assert np.abs(got - expected).max() <= 8e-3 * np.abs(expected).max()  # unfused: more roundings
    assert run.counters.cycles > whole
