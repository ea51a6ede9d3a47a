"""Regions without double buffering: tiles exist once, and kernels share the scratchpads in turn."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.targets.npu.regions.binding import Call, L1Plan, plan_l1
from hetero_tvm.targets.npu.regions.codegen import Program, generate
from hetero_tvm.targets.npu.regions.compile_region import RegionCompiler
from hetero_tvm.targets.npu.regions.graph_region import GraphRegion
from hetero_tvm.targets.npu.regions.region import KernelCache, RegionBuilder, UbEnd


class SingleBufferedKernels(KernelCache):
    """Kernels with one version of every tile, all from the lower end of the unified buffer."""

    def generate(self, function: PrimFunc, end: UbEnd) -> Program:
        return generate(function, self.machine.spec, buffers=1, reserved=end.reserved)


class SingleBufferedBuilder(RegionBuilder):
    """Builder whose kernels own their part of L1 only while they run."""

    def plan_l1(self, calls: Sequence[Call]) -> L1Plan:
        return plan_l1(calls, self.spec, early=False)


class SingleBuffered(RegionCompiler):
    """Region compiler with :class:`SingleBufferedBuilder`; its cache is to be of single-buffered kernels."""

    def builder(self) -> RegionBuilder:
        return SingleBufferedBuilder(self.name, self.machine, self.cache)


class SingleBufferedRegion(SingleBuffered, GraphRegion):
    """Region of a graph without double buffering."""
