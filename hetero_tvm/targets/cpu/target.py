"""The CPU target: code for the CPU that is really there, on the cores that are really available."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_tvm import host
from hetero_tvm.codegen.pipeline import ARGUMENT_ALIGNMENT, PIPELINE, compile_kernels
from hetero_tvm.codegen.thread_pool import export_library
from hetero_tvm.errors import TargetError, UsageError
from hetero_tvm.host.cpu import fma_units_of
from hetero_tvm.host.tvm import IRModule, PrimFunc, TVMTarget, tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.decoding.columns import PackedColumns
from hetero_tvm.ops.decoding.storage import Storage
from hetero_tvm.ops.integers.batch_matmul import QuantBatchMatmul
from hetero_tvm.ops.integers.softmax import QuantSoftmax
from hetero_tvm.relax_passes.forms.resize import PixelsAsCopies
from hetero_tvm.relax_passes.forms.run_time_checks import CheckAtRunTime, GatherAsKernel
from hetero_tvm.relax_passes.forms.scatter import ScatterAsKernel
from hetero_tvm.relax_passes.fusions.convolutions.outside import DropOutsideTaps
from hetero_tvm.relax_passes.fusions.convolutions.slices import ReadSlices
from hetero_tvm.relax_passes.fusions.forest import FuseForest
from hetero_tvm.relax_passes.fusions.integers.as_floats import IntegersAsFloats
from hetero_tvm.relax_passes.fusions.integers.bf16_attention import RoundAttention
from hetero_tvm.relax_passes.fusions.integers.bf16_convolutions import RoundConvolutions
from hetero_tvm.relax_passes.fusions.integers.byte_tables import TabulateBytes
from hetero_tvm.relax_passes.fusions.integers.dynamic_quantization import QuantizeDynamically
from hetero_tvm.relax_passes.fusions.integers.moves import QuantizeParts, SinkDequantizers, SplitBytes
from hetero_tvm.relax_passes.fusions.integers.packed_weights import KeepPackedWeights
from hetero_tvm.relax_passes.fusions.integers.quantized import FuseQuantized
from hetero_tvm.relax_passes.fusions.integers.readers import DequantizeForEach, MeanOfBytes
from hetero_tvm.relax_passes.fusions.integers.reciprocals import QuantizeByReciprocal
from hetero_tvm.relax_passes.fusions.integers.stored_weights import StoreWeights
from hetero_tvm.relax_passes.fusions.integers.sums import FuseQuantizedAdd
from hetero_tvm.relax_passes.fusions.pool2d import FusePool2d
from hetero_tvm.relax_passes.pipeline import fusions
from hetero_tvm.relax_passes.rewriting.rule import GraphPass
from hetero_tvm.relax_passes.storage.concatenation import JoinParts
from hetero_tvm.relax_passes.storage.halved_images import HalveImages
from hetero_tvm.relax_passes.storage.layout import BlockImages
from hetero_tvm.schedules.base import DesignSpace, Point
from hetero_tvm.schedules.cpu import generic
from hetero_tvm.schedules.cpu.decoding.kernels import DecoderKernels
from hetero_tvm.schedules.cpu.dots import safe_pairs, wanted_pairs
from hetero_tvm.schedules.cpu.halves.attention import rounding_pays
from hetero_tvm.schedules.cpu.halves.conv2d import halves_pay
from hetero_tvm.schedules.cpu.images.lone import on_blocks, slices_pay
from hetero_tvm.schedules.cpu.images.resize import emit_copies
from hetero_tvm.schedules.cpu.integers.stored_matmul import permitted_bits, rounded_bits
from hetero_tvm.schedules.cpu.products import contraction
from hetero_tvm.schedules.cpu.rows.gather import emit_gather
from hetero_tvm.schedules.cpu.rows.scatter import emit_scatter_rows
from hetero_tvm.schedules.cpu.symbolic import kernels
from hetero_tvm.schedules.symbolic import Witnesses
from hetero_tvm.search.measure.device_client import DeviceDoor
from hetero_tvm.targets.base import Compiled, Target
from hetero_tvm.targets.cpu.forms import chains, forms, quantized_forms
from hetero_tvm.targets.cpu.image_layouts import ImageLayouts
from hetero_tvm.targets.cpu.isa import CODEGEN_FEATURES, check_architecture, cpuinfo_name
from hetero_tvm.targets.cpu.parts import build_in_parts
from hetero_tvm.targets.cpu.prefetch_ahead import prefetch_ahead
from hetero_tvm.targets.cpu.spaces import CPU_SPACES
from hetero_tvm.targets.cpu.tuner import CpuTuner

_OF_KNOWN_SIZES = (QuantBatchMatmul, QuantSoftmax)
"""Operators whose kernels are for known sizes alone: at open ones floats have better ones."""

PRECISIONS = ("f32", "int8", "f16", "bf16")
# What rounding may cost a whole model: error relative to the largest output, cosine.
_ACCEPTED = {"int8": (0.5, 0.98), "f16": (1e-2, 0.9999), "bf16": (6e-2, 0.999)}
# Integers of 4 bits alone may cost more, which `quantize` judges.
_STORED = (1.0, 0.7)
# 8 bits in groups of X, which a model with packed weights allows: half a per cent for each product.
_ROUNDED = (0.1, 0.999)


class CpuTarget(Target):
    """x86 (or other LLVM) CPUs.

    Parameters
    ----------
    mcpu : LLVM's name of the microarchitecture; None for this machine's.
    threads : threads that kernels are laid out for; None for the available cores.
    precision : ``f32``; ``int8``: products with constant weights multiply 8-bit integers, with a scale per
        column of the weights and per row of what they are multiplied with; ``f16``, ``bf16``: the weights of
        products of few rows are stored so, arithmetic is float32.
    kept : source nodes that stay in float32 at a lower precision.
    storage : form of constant weights; None for the precision's own.
    factors : what smooths the operands of products at ``int8``
        (:class:`hetero_tvm.relax_passes.fusions.integers.dynamic_quantization.QuantizeDynamically`).
    packed : columns of weights that the model brings packed; None for none.
    any_rows : whether what rows are rounded to, and layouts of images, may not depend on how many there are.
    any_images : 1 where they may not depend on rows and columns of images either, 2 where even small images
        may not differ.
    rounds_attention : whether the products of attention are of bfloat16 where that is faster; those of
        ``int8`` and ``bf16`` are in any case.
    """

    kind = "cpu"
    loops = True
    constants_apart = True

    def __init__(
        self,
        mcpu: str | None = None,
        threads: int | None = None,
        precision: str = "f32",
        kept: frozenset[str] = frozenset(),
        storage: Storage | None = None,
        factors: Mapping[str, np.ndarray] | None = None,
        packed: PackedColumns | None = None,
        any_rows: bool = False,
        any_images: int = 0,
        rounds_attention: bool = False,
    ):
        here = host.detect()
        self.precision, self.kept, self.factors, self.packed = precision, kept, factors, packed
        self._any_rows, self._any_images, self._rounds_attention = any_rows, any_images, rounds_attention
        self.storage = Storage(precision) if precision in ("f16", "bf16") else storage
        if packed is not None and packed.may_round:
            self.relative_tolerance, self.least_cosine = _ROUNDED
        if precision in _ACCEPTED or storage is not None:
            self.relative_tolerance, self.least_cosine = _ACCEPTED.get(precision, _STORED)
        self._mcpu = mcpu or here.microarchitecture
        self._threads = threads or len(here.cores)
        self._here = here

    @classmethod
    def from_variant(cls, variant: str) -> CpuTarget:
        """``cpu`` is this machine, ``cpu:znver3`` another one (built here, run there)."""
        if "," in variant:
            raise TargetError(
                f"cpu takes one microarchitecture, not {variant!r}", hint="for example cpu:znver3"
            )
        if variant:
            check_architecture(variant)
        return cls(variant or None)

    def with_precision(self, precision: str) -> CpuTarget:
        if precision not in PRECISIONS:
            raise UsageError(
                f"--precision {precision} is not available for target cpu",
                hint=f"it has {', '.join(PRECISIONS)}",
            )
        return self._with(precision=precision, storage=None)

    def keeping(self, nodes: Iterable[str]) -> CpuTarget:
        """This target with the products of these source nodes in float32 at any precision."""
        return self._with(kept=frozenset(nodes))

    def storing(self, storage: Storage) -> CpuTarget:
        """This target with constant weights in ``storage`` and float32 arithmetic."""
        return self._with(precision="f32", storage=storage)

    @property
    def takes_packed(self) -> bool:
        return self.precision == "f32" and self.storage is None

    def for_packed(self, packed: PackedColumns) -> CpuTarget:
        return self._with(packed=packed)

    def for_ranges(self, images: bool = False, alike: bool = False) -> CpuTarget:
        return self._with(any_rows=True, any_images=images + (images and alike))

    def smoothing(self, factors: Mapping[str, np.ndarray]) -> CpuTarget:
        """This target at ``int8`` with ``factors`` that smooth operands of products."""
        return self._with(precision="int8", factors=factors)

    def rounding_attention(self) -> CpuTarget:
        return self._with(rounds_attention=True)

    @property
    def pairs_safe(self) -> int:
        return wanted_pairs(self.machine)

    @property
    def sums_once(self) -> bool:
        return True

    def _with(self, **changed: Any) -> CpuTarget:
        own = {"precision": self.precision, "kept": self.kept, "storage": self.storage}
        own |= {"factors": self.factors, "packed": self.packed}
        own |= {"any_rows": self._any_rows, "any_images": self._any_images}
        own |= {"rounds_attention": self._rounds_attention}
        return type(self)(self._mcpu, self._threads, **{**own, **changed})

    device_door = DeviceDoor(
        "hetero_tvm.targets.cpu.target:compile_candidate", "hetero_tvm.search.measure.device:CpuDevice"
    )

    def tuner(self, rpc: str | None = None) -> CpuTuner:
        return CpuTuner(self.machine, self.device_door, self._check_device, rpc)

    @classmethod
    def variant_for(cls, device: Mapping[str, Any]) -> str:
        return str(device["arch"])

    def _check_device(self, device: Mapping[str, Any]) -> None:
        """Refuse a device that cannot run what is built for this target (:class:`TargetError`)."""
        missing = [name for name in self.features if name not in device["features"]]
        problems = [f"missing CPU feature: {name}" for name in missing]
        cores, threads = device["cores"], self.machine.threads
        if cores < threads:
            problems.append(f"{cores} cores, and kernels are laid out for {threads} threads")
        if problems:
            raise TargetError(
                f"{device['name']} cannot run what is built for {self.machine.mcpu}",
                problems=problems,
                hint=f"--target cpu:{device['name']}",
            )

    @classmethod
    def devices_served(cls) -> str:
        here = host.detect()
        return f"CPU: Found {here.microarchitecture}, {len(here.cores)} cores"

    @functools.cached_property
    def tvm_target(self) -> TVMTarget:
        return tvm.target.Target(self.machine.codegen_target())

    @functools.cached_property
    def _implied(self) -> tuple[str, ...]:
        """Features, in LLVM's spelling, that the microarchitecture's name implies."""
        plain = tvm.target.Target({"kind": "llvm", "mcpu": self._mcpu})
        return tuple(name for name in CODEGEN_FEATURES if tvm.target.codegen.target_has_features(name, plain))

    @functools.cached_property
    def _hidden(self) -> tuple[str, ...]:
        """Implied features that this machine does not show: a hypervisor may mask some."""
        if self._mcpu != self._here.microarchitecture or self._here.architecture != "x86_64":
            return ()
        return tuple(name for name in self._implied if cpuinfo_name(name) not in self._here.features)

    @functools.cached_property
    def features(self) -> tuple[str, ...]:
        """ISA features that the generated code may use, in /proc/cpuinfo naming, sorted."""
        return tuple(sorted(cpuinfo_name(name) for name in self._implied if name not in self._hidden))

    @functools.cached_property
    def machine(self) -> CpuModel:
        wide = "avx512f" in self.features
        native = self._mcpu == self._here.microarchitecture
        lanes = 16 if wide else 8 if "avx2" in self.features else 4
        return CpuModel(
            mcpu=self._mcpu,
            features=self.features,
            lanes=lanes,
            registers=32 if wide else 16,
            threads=self._threads,
            l1=self._here.l1d,
            l2=self._here.l2,
            l3=self._here.l3,
            disabled=self._hidden,
            fma_units=float(
                self._here.fma_units if native else fma_units_of(self._mcpu, 512 if wide else 256)
            ),
        )

    @property
    def fusions(self) -> Sequence[GraphPass]:
        fixed = not (self._any_rows or self._any_images)

        def claims(op: FusedOp) -> bool:
            return (fixed or not isinstance(op, _OF_KNOWN_SIZES)) and self.space_for(op)[0] is not None

        lower: tuple[GraphPass, ...] = ()
        halved: tuple[GraphPass, ...] = ()
        if self._rounds_attention or self.precision == "int8" or self._rounds_images:
            pays = functools.partial(rounding_pays, machine=self.machine, any_rows=self._any_rows)
            halved = (RoundAttention(pays, self.kept),)
        if self.precision == "int8":
            lower = (QuantizeDynamically(claims, self.pairs_safe, self.kept, self.factors),)
        elif self.storage is not None:
            bits = functools.partial(rounded_bits, machine=self.machine, any_rows=self._any_rows)
            lower = (StoreWeights(claims, self.storage, bits, self.kept),)
            if self._rounds_images:
                faster = functools.partial(halves_pay, machine=self.machine)
                halved += (RoundConvolutions(claims, faster, self.kept), HalveImages(claims))
        elif self.packed is not None:
            rounded = functools.partial(permitted_bits, machine=self.machine)
            x_bits = rounded if self.packed.may_round else lambda form: 0
            lower = (KeepPackedWeights(claims, self.packed, x_bits),)
        safe = safe_pairs if self.pairs_safe else lambda w: 0
        return (
            SplitBytes(),  # first: moves between two quantisers are moves of bytes
            SinkDequantizers(),  # likewise
            QuantizeParts(),  # after it: of parts in other steps than the whole
            SinkDequantizers(),  # what has the same steps is neither dequantised nor quantised
            *quantized_forms(claims),  # before the fusion
            FuseQuantized(claims, safe, bounds=True),  # before constants are folded: it reads integers
            *([IntegersAsFloats()] if self._any_images else []),
            FuseQuantizedAdd(claims),  # after the convolutions, whose last step a sum becomes
            MeanOfBytes(alone=not fixed),  # before the norms, which begin with a mean of floats
            TabulateBytes(claims),  # after all integers that round results of their own
            FuseForest(claims),  # before lookups take other forms
            *forms(claims, self.machine, self._any_rows),
            *fusions(claims),
            ReadSlices(
                lambda op: claims(on_blocks(op, self.machine)),
                functools.partial(slices_pay, machine=self.machine),
            ),  # after the epilogues, and before layouts are chosen
            *lower,  # after the epilogues, which it takes along
            BlockImages(  # what the fusions have left
                self.machine.lanes, claims, pays=self.image_layouts.pays, costs=self.image_layouts.costs
            ),
            *halved,  # after it: a layout decides what float32 takes
            *(chains(claims, self.machine) if fixed and not lower else []),  # likewise
            FusePool2d(claims),  # after BlockImages: pooling that no neighbour wants in blocks
            DequantizeForEach(),  # after all that looks for duplicates
            *([QuantizeByReciprocal()] if "fma" in self.features else []),  # after all that reads quantisers
            PixelsAsCopies(functools.partial(emit_copies, self.machine)),  # that nothing wants in blocks
            JoinParts(),  # of what all others have left
            GatherAsKernel(functools.partial(emit_gather, self.machine, ranges=self._any_rows)),
            CheckAtRunTime(),  # by now it is known which indices and divisors are constants
            ScatterAsKernel(
                functools.partial(emit_scatter_rows, self.machine)
            ),  # whose places are checked now
        )

    @property
    def _rounds_images(self) -> bool:
        """Whether convolutions may be products of bfloat16."""
        return self.storage is not None and self.storage.name == "bf16"

    @property
    def image_layouts(self) -> ImageLayouts:
        """Judge of the layouts of images."""
        return ImageLayouts(self.machine, self._any_rows, self._any_images, self._rounds_images)

    @property
    def spaces(self) -> Sequence[DesignSpace]:
        return CPU_SPACES

    @property
    def step_kernels(self) -> DecoderKernels:
        return DecoderKernels(self.machine)

    def schedule_generic(self, function: PrimFunc) -> PrimFunc:
        return contraction.emit(function, self.machine) or generic.schedule(function, self.machine)

    run_time_sizes = True
    # Places of each size, and moves of bfloat16, which run-time kernels do not have.
    fixed_size_passes = frozenset({JoinParts.name, HalveImages.name})
    # What kernels of one size alone compute, and taps that other sizes reach.
    fixed_image_passes = frozenset({RoundConvolutions.name, DropOutsideTaps.name})
    layout_passes = frozenset({BlockImages.name, ReadSlices.name})  # slices are read in blocks alone
    batch_passes = frozenset({ReadSlices.name})  # copies of windows pay with few images

    def run_time_kernel(self, witnesses: Witnesses, space: DesignSpace, point: Point) -> PrimFunc | None:
        return kernels.emit(witnesses, space, point, self.machine)

    def space_for_run_time(self, op: FusedOp) -> DesignSpace | None:
        return kernels.space_for(op)

    def kept_decisions(self, space: DesignSpace, point: Point) -> Point:
        return kernels.kept_decisions(space, point)

    def pieces(self, space: DesignSpace) -> tuple[str, ...]:
        return kernels.pieces(space)

    def schedule_run_time(self, function: PrimFunc, work: int) -> PrimFunc:
        return kernels.schedule(function, work, self.machine)

    def finalize(self, module: IRModule) -> IRModule:
        return prefetch_ahead(module)

    def compile(self, module: IRModule) -> Compiled:
        drivers = dict.fromkeys(space.driver for space in self.spaces if space.driver is not None)
        beside = [driver.module() for driver in drivers]
        return Compiled(build_in_parts(module, self.tvm_target, PIPELINE, beside))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "cpu": self._mcpu,
            "isa": list(self.features),
            "threads": self._threads,
            "alignment": ARGUMENT_ALIGNMENT,
        } | ({} if self._stored_as == "f32" else {"precision": self._stored_as})

    @property
    def _stored_as(self) -> str:
        """The precision in one word; of stored integers their form and group."""
        if self.storage is None or not self.storage.bits:
            return self.precision
        return f"{self.storage.name}g{self.storage.group}" + "z" * self.storage.zero_points


def compile_candidate(function: PrimFunc, machine: CpuModel, path: str) -> dict[str, Any]:
    """A shared library with one kernel, for measuring on another machine."""
    name = str(function.attrs["global_symbol"])
    target = tvm.target.Target(machine.codegen_target())
    export_library(compile_kernels(tvm.IRModule({name: function}), target), path)
    return {}
