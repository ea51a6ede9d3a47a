"""The CUDA target: one or several GPU architectures, with or without a GPU in this machine."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from hetero_tvm.codegen.c_names import with_c_names
from hetero_tvm.errors import LibraryError, TargetError, UsageError
from hetero_tvm.host.tvm import IRModule, PrimFunc, TVMTarget, tvm
from hetero_tvm.machines.gpu import MODELS, GpuModel, model_named
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.ops.tensor_program import TensorProgram
from hetero_tvm.relax_passes.forms.conv1d import Conv1dAsConv2d
from hetero_tvm.relax_passes.forms.conv_transpose import ConvTransposeAsPhases
from hetero_tvm.relax_passes.forms.run_time_flags import FlagAtRunTime
from hetero_tvm.relax_passes.forms.scan import RecurrenceAsSteps, ScanAsKernel
from hetero_tvm.relax_passes.forms.split import SplitAsSlices
from hetero_tvm.relax_passes.forms.topk import SuppressionAsKernel
from hetero_tvm.relax_passes.pipeline import fusions
from hetero_tvm.relax_passes.rewriting.rule import GraphPass
from hetero_tvm.relax_passes.storage.layout import BlockImages
from hetero_tvm.relax_passes.storage.precision import DTYPES
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.schedules.cuda.tensor_program.scan import scan
from hetero_tvm.schedules.nests.program import program_nests
from hetero_tvm.search.measure.device_client import DeviceDoor
from hetero_tvm.targets.base import Compiled, Target
from hetero_tvm.targets.cuda import codegen, compilers, cuda_graphs, device, generic_schedule, kernel_facts
from hetero_tvm.targets.cuda.spaces import CUDA_SPACES
from hetero_tvm.targets.cuda.tuner import CudaTuner

_BLOCK = 8
"""Channels of an image that lie together: 16 bytes of half precision."""

# What rounding weights and activations (to 11 bits, 8 bits, or only as factors) may cost a whole model:
# error relative to the largest output, cosine.
_ACCEPTED = {"f16": (2e-2, 0.9995), "bf16": (1.2e-1, 0.99), "tf32": (2e-2, 0.9995)}


class CudaTarget(Target):
    """NVIDIA GPUs.

    Parameters
    ----------
    archs : architectures to hold machine code for; the first is the one that is tuned for.
    precision : ``f32``: float32 throughout; ``tf32``: the same, but tensor cores multiply, which round
        the factors of products to 11 bits; ``f16``, ``bf16``: fused operators take and give these, and
        tensor cores multiply.
    """

    kind = "cuda"
    in_place = False  # the analysis knows loops in order, not blocks of threads that run in any order

    def __init__(self, archs: Sequence[str], precision: str = "f32"):
        features = ("tf32",) if precision == "tf32" else ()
        self.models: tuple[GpuModel, ...] = tuple(
            dataclasses.replace(model_named(arch), features=features) for arch in archs
        )
        self.precision = precision
        if precision in _ACCEPTED:
            self.relative_tolerance, self.least_cosine = _ACCEPTED[precision]

    device_door = DeviceDoor(device.COMPILE, device.DEVICE)

    def tuner(self, rpc: str | None = None) -> CudaTuner:
        return CudaTuner(self.variants, self.device_door, self.devices_here, self.arch_on, rpc)

    @classmethod
    def variant_for(cls, device: Mapping[str, Any]) -> str:
        return cls.arch_for(str(device["name"]), int(device["capability"]))

    def devices_here(self) -> Sequence[int]:
        """The GPUs of the first one's name; none without a driver or GPU, or when no variant runs on it."""
        try:
            first = cuda_runtime.device()
            count = cuda_runtime.device_count()
        except LibraryError:
            return ()
        if cuda_runtime.best_of(self.archs, first.capability) is None:
            return ()
        return [index for index in range(count) if cuda_runtime.device(index).name == first.name]

    def arch_on(self, device: Mapping[str, Any]) -> str:
        """The architecture of this target whose code runs on a device.  :class:`TargetError`: none."""
        arch = cuda_runtime.best_of(self.archs, device["capability"])
        if arch is None:
            raise TargetError(
                f"{device['name']} is sm_{device['capability']}, the target has {', '.join(self.archs)}",
                hint=f"--target cuda:{','.join([*self.archs, 'sm_' + str(device['capability'])])}",
            )
        return arch

    @classmethod
    def devices_served(cls) -> str:
        """See :meth:`DescribedTarget.devices_served`.  Makes no context: sessions fork."""
        found = cuda_runtime.missing_driver() is None
        return "GPU: Found an NVIDIA driver" if found else "GPU: Not found (no NVIDIA driver)"

    @property
    def archs(self) -> tuple[str, ...]:
        return tuple(model.arch for model in self.models)

    def findings(self) -> list[str]:
        lines = []
        try:
            found = compilers.find()
            lines.append(f"CUDA compiler: Found {found.name} {found.release}".rstrip())
        except TargetError as error:
            lines.append(f"CUDA compiler: Not found ({error.hint})")
        try:
            gpu = cuda_runtime.device()
            chosen = cuda_runtime.best_of(self.archs, gpu.capability)
            use = f"runs {chosen}" if chosen else f"runs none of {', '.join(self.archs)}"
            lines.append(f"GPU: Found {gpu.name} (sm_{gpu.capability}; it {use})")
        except LibraryError as error:
            lines.append(f"GPU: Not found ({'; '.join(error.problems) or error.message})")
        return lines

    @property
    def record_kind(self) -> str:
        return "cuda-emulated" if cuda_runtime.emulating() else "cuda"

    @property
    def graph_dtype(self) -> str:
        return DTYPES.get(self.precision, "float32")

    def for_stored(self, dtype: str) -> CudaTarget:
        short = next((name for name, full in DTYPES.items() if full == dtype), self.precision)
        return self.with_precision(short) if self.precision == "f32" else self

    def with_precision(self, precision: str) -> CudaTarget:
        if precision not in ("f32", *_ACCEPTED):
            raise UsageError(
                f"--precision {precision} is not available for target cuda",
                hint=f"it has f32, {', '.join(_ACCEPTED)}",
            )
        return CudaTarget([model.arch for model in self.models], precision)

    @classmethod
    def from_variant(cls, variant: str) -> CudaTarget:
        """``cuda:sm_80,sm_90`` names architectures; ``cuda`` alone is the GPU that is here."""
        archs = [text.strip() for text in variant.split(",") if text.strip()]
        if len(set(archs)) != len(archs):
            raise TargetError(f"cuda:{variant} names an architecture twice")
        return cls(archs or [cls.detect()])

    @staticmethod
    def detect() -> str:
        """The architecture of the first GPU.  :class:`TargetError` (``Not found``) when there is none."""
        hint = "name the architectures to build for, for example --target cuda:sm_80,sm_90 (needs no GPU)"
        try:
            found = cuda_runtime.device()
        except LibraryError as error:
            raise TargetError(
                "GPU: Not found", problems=error.problems or [error.message], hint=hint
            ) from error
        return CudaTarget.arch_for(found.name, found.capability)

    @staticmethod
    def arch_for(name: str, capability: int) -> str:
        """The architecture to build for, for a GPU of that compute capability."""
        arch = cuda_runtime.best_of(tuple(MODELS), capability)
        if arch is None:
            raise TargetError(
                f"GPU: Found {name}, sm_{capability}, which is not supported",
                hint=f"supported: {', '.join(MODELS)}",
            )
        return arch

    @property
    def variants(self) -> tuple[CudaTarget, ...]:
        if len(self.models) == 1:
            return (self,)
        return tuple(CudaTarget([model.arch], self.precision) for model in self.models)

    @property
    def entry(self) -> str:
        return f"main_{self.machine.arch}"

    @property
    def machine(self) -> GpuModel:
        return self.models[0]

    @functools.cached_property
    def tvm_target(self) -> TVMTarget:
        return tvm.target.Target(self.machine.codegen_target())

    @property
    def fusions(self) -> Sequence[GraphPass]:
        def serves(op: FusedOp) -> bool:
            return self.space_for(op)[0] is not None

        def claims(op: FusedOp) -> bool:
            return isinstance(op, BatchMatmul) and serves(op)

        # TVM's own scan counts on the lanes of a warp to run in step, which nothing promises.
        # What indexes is clamped before anything becomes a kernel of ours.
        rows = (ScanAsKernel(scan), SuppressionAsKernel(None))
        forms = (RecurrenceAsSteps(), FlagAtRunTime(), Conv1dAsConv2d(), ConvTransposeAsPhases(), *rows)
        # Kernels mind the border themselves: zeros around images would cost memory, and nothing less.
        return (*forms, *fusions(claims), SplitAsSlices(), BlockImages(_BLOCK, serves, halos=False))

    @property
    def spaces(self) -> Sequence[DesignSpace]:
        return CUDA_SPACES

    def contract_of(self, function: PrimFunc, name: str, flops: int) -> FusedOp | None:
        op = TensorProgram.of(function, name, flops)
        nests = program_nests(op)
        return None if isinstance(nests, str) or len(nests.results) != 1 else op

    def schedule_generic(self, function: PrimFunc) -> PrimFunc:
        return generic_schedule.schedule(with_c_names(function), self.tvm_target, self.machine)

    def unrunnable(self) -> str | None:
        try:
            self._chosen()
        except LibraryError as error:
            return " ".join([error.message, *error.problems])
        return None

    def _chosen(self) -> str:
        """The architecture that the GPU of this machine runs.  :class:`LibraryError` when there is none."""
        return cuda_runtime.choose_arch(self.archs)

    def running(self) -> tuple[list[Any], str]:
        return [tvm.cuda(0), tvm.cpu()], f"main_{self._chosen()}"

    @property
    def device_passes(self) -> Sequence[Any]:
        return (cuda_graphs.use_cuda_graph,)

    def scope(self) -> AbstractContextManager[Any]:
        return self.tvm_target

    def stamp(self, kernel: PrimFunc) -> PrimFunc:
        return with_c_names(kernel).with_attr("target", self.tvm_target)

    def compile(self, module: IRModule) -> Compiled:
        compilers.find()  # says what is missing before the long part
        with codegen.collect() as made:
            executable = codegen.compile_executable(module, self.tvm_target)
        facts = {one.arch: kernel_facts.of_module(one) for one in made}
        return Compiled(executable, facts, {f"{one.arch}.cubin": one.binary for one in made})

    def describe(self) -> dict[str, Any]:
        return {"kind": "cuda", "cpu": "", "isa": [], "threads": 1, "archs": [m.arch for m in self.models]}
