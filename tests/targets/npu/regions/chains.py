"""Chains of convolutions as regions, without a graph around them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.pool2d import AVERAGE, MAX, Pool2d
from hetero_tvm.schedules.npu.images.conv2d import NpuConv2dSpace
from hetero_tvm.schedules.npu.images.depthwise_matrix import NpuDepthwiseMatrixSpace
from hetero_tvm.schedules.npu.images.global_pool import NpuGlobalPoolSpace
from hetero_tvm.schedules.npu.images.pool2d import NpuPool2dSpace
from hetero_tvm.targets.npu.device.driver import Counters, Run, open_device
from hetero_tvm.targets.npu.regions.compile_region import RegionCompiler
from hetero_tvm.targets.npu.regions.region import CompiledRegion, KernelCache, Value
from hetero_tvm.targets.npu.regions.residency import Step
from tests.schedules.npu.running import machine

SPACE, POOL, MEAN = NpuConv2dSpace(), NpuPool2dSpace(), NpuGlobalPoolSpace()
DEPTHWISE = NpuDepthwiseMatrixSpace()


class Chain:
    """Convolutions in order; each reads earlier images by their number (0: the input)."""

    def __init__(self, shape: tuple[int, int, int, int], seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.x = self.rng.standard_normal(shape).astype(np.float32)
        self.steps: list[tuple[Conv2d, list[Any]]] = []
        self.shapes = [shape]

    def conv(
        self,
        x: int,
        filters: int,
        kernel: int = 1,
        stride: int = 1,
        residual: int | None = None,
        relu: bool = True,
        depthwise: bool = False,
    ) -> int:
        """Add a convolution with bias; the number of its result."""
        n, c, h, w = self.shapes[x]
        pad = (kernel // 2,) * 4
        epilogue = ("bias", *(("residual",) if residual is not None else ()), *(("relu",) if relu else ()))
        op = Conv2d(
            n,
            c,
            h,
            w,
            filters,
            (kernel, kernel),
            strides=(stride, stride),
            padding=pad,
            epilogue=epilogue,
            groups=c if depthwise else 1,
        )
        depth = 1 if depthwise else c
        scale = 1 / np.sqrt(depth * kernel * kernel)
        weights = (self.rng.standard_normal((filters, depth, kernel, kernel)) * scale).astype(np.float32)
        operands: list[Any] = [x, weights, self.rng.standard_normal(filters).astype(np.float32)]
        self.steps.append((op, operands + ([residual] if residual is not None else [])))
        self.shapes.append(op.out_image)
        return len(self.steps)

    def max_pool(self, x: int, kernel: int = 3, stride: int = 2) -> int:
        """Add a max pooling with the padding that keeps windows centred."""
        n, c, h, w = self.shapes[x]
        pad = kernel // 2
        out = tuple((extent + 2 * pad - kernel) // stride + 1 for extent in (h, w))
        op = Pool2d(n, c, h, w, (kernel, kernel), (stride, stride), (pad,) * 4, out, MAX)
        self.steps.append((op, [x]))
        self.shapes.append(op.out_image)
        return len(self.steps)

    def mean(self, x: int) -> int:
        """Add the mean over a whole image."""
        n, c, h, w = self.shapes[x]
        self.steps.append((Pool2d(n, c, h, w, (h, w), (1, 1), (0,) * 4, (1, 1), AVERAGE), [x]))
        self.shapes.append((n, c, 1, 1))
        return len(self.steps)

    def expected(self) -> np.ndarray:
        """The last image in float64."""
        images = [self.x.astype(np.float64)]
        for op, operands in self.steps:
            images.append(op.reference(*(images[o] if isinstance(o, int) else o for o in operands)))
        return images[-1]

    def run(self, machine: NpuMachine) -> tuple[np.ndarray, Run]:
        """The last image as the simulator computes it, and the run's cost."""
        return self.run_region(machine, ChainRegion(self, KernelCache(machine)).compile())

    def run_region(self, machine: NpuMachine, region: CompiledRegion) -> tuple[np.ndarray, Run]:
        """:meth:`run` of a region that this chain was compiled to."""
        bound = {"constants": np.frombuffer(region.constants, np.uint8), "x": self.x}
        bound["y"] = (self.shapes[-1], np.float32)
        with open_device(machine.spec) as device:
            result = device.run(device.load(region.stream), bound)
        return result.outputs["y"], result


class ChainRegion(RegionCompiler):
    """Region compiler whose steps come from a chain instead of from bindings."""

    def __init__(self, chain: Chain, cache: KernelCache):
        super().__init__("chain", cache)
        self.chain = chain

    def prepare(self, builder: Any) -> tuple[list[Step], list[tuple[str, Value]]]:
        images = [builder.input("x", self.chain.shapes[0])]
        steps = []
        for n, (op, operands) in enumerate(self.chain.steps):
            space = _space_of(op)
            wanted, layout = space.layouts(op)
            values = [images[o] if isinstance(o, int) else None for o in operands]
            arrays = [None if isinstance(o, int) else o for o in operands]
            image = Value(op.out_image)
            steps.append(Step(space, op, None, values, wanted, image, layout, f"conv{n}", arrays))
            images.append(steps[-1].result)
        return steps, [("y", images[-1])]


def _space_of(op: Any) -> Any:
    if isinstance(op, Conv2d):
        return DEPTHWISE if op.depthwise else SPACE
    return MEAN if op.mode == AVERAGE else POOL


def bottleneck(channels: int, size: int, middle: int, stride: int = 1) -> Chain:
    """A residual block of three convolutions."""
    chain = Chain((1, channels, size, size))
    a = chain.conv(0, middle)
    b = chain.conv(a, middle, 3, stride)
    wide = channels if stride == 1 else 2 * channels
    around = 0 if stride == 1 else chain.conv(0, wide, 1, stride, relu=False)
    chain.conv(b, wide, residual=around)
    return chain


def check(chain: Chain, preset: str = "edge") -> Counters:
    """Compare the simulated last image with float64; the counters of the run."""
    got, run = chain.run(machine(preset))
    expected = chain.expected()
    # Some four roundings to float16 on the way.
    assert np.abs(got - expected).max() <= 4e-3 * np.abs(expected).max()
    return run.counters
