"""The design space of convolutions without groups on the matrix unit.

Its kernels are those of :mod:`hetero_tvm.schedules.npu.images.conv2d_kernel`; with one tap, no stride and no
padding, and where the image lies in L1, those of :mod:`hetero_tvm.schedules.npu.matmul.kernel`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import RankedSpace, image_layouts, other_layout
from hetero_tvm.schedules.npu.images import conv2d_tiles
from hetero_tvm.schedules.npu.images.conv2d_kernel import Conv2dEmitter
from hetero_tvm.schedules.npu.images.conv2d_tiles import as_product, is_plain, panels_in
from hetero_tvm.schedules.npu.matmul import choices, cost
from hetero_tvm.schedules.npu.matmul import tiles as matmul_tiles
from hetero_tvm.schedules.npu.matmul.kernel import ProductEmitter
from hetero_tvm.schedules.npu.matmul.roles import on_chip, roles
from hetero_tvm.schedules.npu.matmul.tiles import Tiles, column_panels
from hetero_tvm.schedules.npu.patches import Image


class NpuConv2dSpace(RankedSpace):
    """``ops.Conv2d`` without groups on the matrix unit."""

    name = "npu.conv2d"
    version = 1
    operator = Conv2d
    by_rows = True

    def unsupported(self, op: Conv2d, machine: NpuMachine) -> str | None:
        if reason := other_layout(op):
            return reason
        if op.groups != 1:
            return f"{op.groups} groups: the matrix unit takes convolutions without groups"
        if reason := epilogue.supported(op.epilogue):
            return reason
        if not any(True for _ in _candidates(op, machine.spec)):
            return f"rows of {op.width} x {op.channels} do not fit the scratchpads of {machine.spec.name}"
        return None

    def layouts(self, op: Conv2d) -> tuple[tuple[str, ...], str]:
        return image_layouts(op)

    def ranked(self, op: Conv2d, machine: NpuMachine) -> list[tuple[int | str, ...]]:
        tiles = sorted(_candidates(op, machine.spec), key=lambda t: _estimate(op, t, machine.spec))
        return [t.choice() for t in tiles[: choices.MOST]]

    def check(self, op: Conv2d, point: Point, machine: NpuMachine) -> None:
        """A record may name any tiles that fit, also ones that today's ranking leaves out."""
        value = point.get("tiles")
        possible = isinstance(value, tuple) and len(value) == 8
        if not possible or not _fits(op, Tiles.of(point), machine.spec):
            raise ValueError(f"{self.name}: tiles={value!r} do not fit {machine.spec.name}")

    def features(self, op: Conv2d, point: Point, machine: NpuMachine) -> list[float]:
        tiles = Tiles.of(point)
        cycles = cost.queue_cycles(as_product(op), tiles, machine.spec)
        speed = 1e6 / _estimate(op, tiles, machine.spec)
        return [*cycles.queues, cycles.ends, *map(float, tiles.sizes), speed]

    def estimate(self, op: Conv2d, point: Point, machine: NpuMachine) -> float | None:
        return _estimate(op, Tiles.of(point), machine.spec)

    def pack(self, op: Conv2d, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        tn, dtype = Tiles.of(point).tn, machine.numpy_dtype
        return {1: lambda w: column_panels(by_taps(w), tn, dtype)}

    def matrix_cycles(self, op: Conv2d, spec: NPUSpec) -> float:
        product = as_product(op)
        return spec.matrix_cycles(product.m, product.n, product.k)

    def weight_elements(self, op: Conv2d, machine: NpuMachine) -> int:
        return op.filters * op.channels * op.kernel[0] * op.kernel[1]

    def on_chip(self, op: Conv2d) -> frozenset[int]:
        found = on_chip(op)
        # Patches of several images are no rows of one.
        return found if op.batch == 1 or is_plain(op) else found - {0}

    def in_place(
        self, op: Conv2d, machine: NpuMachine, held: frozenset[int], l1: int, most: int
    ) -> list[Point]:
        spec, held_roles = machine.spec, roles(op, held)
        if not is_plain(op) and "x" not in held_roles:
            return []
        found = choices.in_place(as_product(op), spec, held_roles, l1, most)
        return [point for point in found if is_plain(op) or _fits(op, Tiles.of(point), spec)]

    def fitted(
        self, op: Conv2d, point: Point | None, machine: NpuMachine, held: frozenset[int], l1: int
    ) -> Point | None:
        held_roles, spec = roles(op, held), machine.spec
        if is_plain(op) or "x" in held_roles:
            return choices.fitted(as_product(op), point, spec, held_roles, l1)
        if held_roles - {"y"}:
            return None
        given = Tiles.of(point) if point is not None else None
        if given is None or not conv2d_tiles.fits(op, given, spec, l1):
            fitting = (t for t in conv2d_tiles.candidates(op, spec) if conv2d_tiles.fits(op, t, spec, l1))
            given = min(fitting, key=lambda t: conv2d_tiles.estimate(op, t, spec), default=None)
            if given is None:
                return None
        return {"tiles": given.choice(), "panels": panels_in(op, given, l1)}

    def emit_held(self, op: Conv2d, point: Point, machine: NpuMachine, held: frozenset[int]) -> PrimFunc:
        tiles, held_roles, panels = Tiles.of(point), roles(op, held), point.get("panels")
        if is_plain(op) or "x" in held_roles:
            image = None if is_plain(op) else Image.of(op)
            copied = point.get("copied", 0)
            return ProductEmitter(as_product(op), tiles, machine, held_roles, panels, image, copied).run()
        return Conv2dEmitter(op, tiles, machine, held_roles, panels).run()


def by_taps(w: np.ndarray) -> np.ndarray:
    """Weights [filters, channels, *kernel] as the product's [taps x channels, filters]."""
    return w.transpose(2, 3, 1, 0).reshape(-1, w.shape[0])


def _candidates(op: Conv2d, spec: NPUSpec) -> Iterator[Tiles]:
    if is_plain(op):
        return choices.candidates(as_product(op), spec)
    return conv2d_tiles.candidates(op, spec)


def _estimate(op: Conv2d, t: Tiles, spec: NPUSpec) -> float:
    return cost.estimate(as_product(op), t, spec) if is_plain(op) else conv2d_tiles.estimate(op, t, spec)


def _fits(op: Conv2d, t: Tiles, spec: NPUSpec) -> bool:
    if is_plain(op):
        return matmul_tiles.fits(as_product(op), t, spec)
    return conv2d_tiles.fits(op, t, spec)
