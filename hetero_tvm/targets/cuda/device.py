"""Compilation of candidates for a GPU, and the GPU as a device that times them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import cycle
from time import perf_counter
from typing import Any

import numpy as np

from hetero_tvm.codegen.c_names import with_c_names
from hetero_tvm.host.tvm import DeviceTensor, PrimFunc, tvm, tvm_ffi
from hetero_tvm.machines.gpu import MODELS, GpuModel
from hetero_tvm.runtime.cuda import cudart
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from hetero_tvm.search.measure.compile_process import Refused
from hetero_tvm.search.measure.device import Kernel, MeasuredDevice
from hetero_tvm.search.measure.timing import settle
from hetero_tvm.targets.cuda import codegen, kernel_facts

_SAMPLE = 1e-3
"""Seconds of one sample: a thousand times the resolution of an event."""
_MOST_LAUNCHES = 256
"""Launches of one sample at most."""
_LEAST_SAMPLES = 3
_WARM_UP = (4e-3, 6e-2)
"""Least and most seconds of warm-up: between candidates a GPU lowers its clocks."""
_L2 = 3
"""Size of the sets of operands together, in L2 caches."""


def compile_candidate(function: PrimFunc, machine: GpuModel, path: str) -> dict[str, kernel_facts.Facts]:
    """A shared library with one kernel; no driver is needed, and no context is made.

    Returns
    -------
    Facts of its device code by kernel (see :mod:`.kernel_facts`).

    Raises
    ------
    Refused : its registers spill, or a block does not fit the multiprocessor.
    """
    target = tvm.target.Target(machine.codegen_target())
    kernel = with_c_names(function).with_attr("target", target)
    with codegen.collect() as made:
        library = codegen.compile_kernels(
            tvm.IRModule({str(function.attrs["global_symbol"]): kernel}), target
        )
    found = {name: known for module in made for name, known in kernel_facts.of_module(module).items()}
    for name, known in found.items():
        if known["stack"]:
            raise Refused(f"{name} spills: {known['stack']} bytes of stack, {known['registers']} registers")
        if known["occupancy"] == 0:
            raise Refused(f"{name} does not fit: {known['shared']} bytes of shared memory")
    library.export_library(path)
    return found


class GpuDevice(MeasuredDevice):
    """An NVIDIA GPU.

    Kernels run on a stream of their own.  Several launches, on operands that together overflow the L2
    cache, become one CUDA graph, so that the time of a launch from Python is not measured: models run
    their kernels in graphs too.
    """

    def __init__(self, index: int = 0):
        self._info = cuda_runtime.device(index)
        self._device = tvm.cuda(index)
        self._stream = cudart.Stream(index)
        arch = cuda_runtime.best_of(tuple(MODELS), self._info.capability)
        self.cache = _L2 * MODELS[arch].l2 if arch else 0
        if cuda_runtime.emulating():
            self.cache = 0

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "cuda",
            "name": self._info.name,
            "arch": f"sm_{self._info.capability}",
            "capability": self._info.capability,
        }

    def place(self, array: np.ndarray) -> DeviceTensor:
        return tvm.runtime.tensor(array, self._device)

    def copy(self, tensor: DeviceTensor) -> DeviceTensor:
        return tensor.copyto(self._device)

    def fetch(self, tensor: DeviceTensor) -> np.ndarray:
        self._stream.synchronize()
        return tensor.numpy()

    def run(self, kernel: Kernel) -> None:
        function, sets = kernel
        cudart.synchronize()  # operands are placed on the default stream
        with self._on_stream():
            function(*sets[0])
        self._stream.synchronize()

    def _on_stream(self) -> AbstractContextManager[Any]:
        return tvm_ffi.use_raw_stream(self._device, self._stream.handle)

    def times(self, kernels: Sequence[Kernel], budget: float, limit: float | None) -> list[float]:
        cudart.synchronize()
        with self._on_stream():
            samplers = [self._sampler(kernel) for kernel in kernels]
            samples: list[list[float]] = [[] for _ in kernels]
            end = perf_counter() + budget * len(kernels)
            while perf_counter() < end or len(samples[-1]) < _LEAST_SAMPLES:
                for sampler, found in zip(samplers, samples, strict=True):
                    found.append(sampler())
                slow = limit is not None and len(kernels) == 1 and min(samples[0]) > limit
                if slow and len(samples[0]) >= _LEAST_SAMPLES:
                    break
        return [statistics.median(found) for found in samples]

    def _sampler(self, kernel: Kernel) -> Callable[[], float]:
        """A function that measures once: seconds per launch, over enough launches."""
        function, sets = kernel
        turn = cycle([partial(function, *arguments) for arguments in sets])
        once = self._timed(lambda: [next(turn)() for _ in sets]) / len(sets)
        launches = max(1, min(_MOST_LAUNCHES, round(_SAMPLE / max(once, 1e-7))))

        def queue() -> None:
            for _ in range(launches):
                next(turn)()

        try:
            graph = cudart.Graph(self._stream, queue)
            queue = partial(graph.launch, self._stream)
        except Exception:
            pass  # what cannot be captured (a kernel that waits for the host) is launched as it is
        settle(lambda: self._timed(queue), *_WARM_UP)
        return lambda: self._timed(queue) / launches

    def _timed(self, work: Callable[[], Any]) -> float:
        """Seconds that the device takes for what ``work`` queues."""
        begin, end = cudart.Event(timing=True), cudart.Event(timing=True)
        begin.record(self._stream.handle)
        work()
        end.record(self._stream.handle)
        end.synchronize()
        return end.seconds_since(begin)

    def broken(self) -> bool:
        try:
            cudart.synchronize()
        except cudart.CudaError:
            return True
        return False


DEVICE = "hetero_tvm.targets.cuda.device:GpuDevice"
COMPILE = "hetero_tvm.targets.cuda.device:compile_candidate"
