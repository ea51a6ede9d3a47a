"""Libraries whose kernels run on an NVIDIA GPU."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from hetero_tvm.errors import InputError, LibraryError
from hetero_tvm.runtime import cuda_runtime
from hetero_tvm.runtime.arrays import allocate
from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.manifest import Manifest
from hetero_tvm.runtime.threads import Placement

_POOLED = 2


class CudaLibrary(Library):
    """A model on a GPU: called like every :class:`Library`, or on device memory.

    Weights go to the device once, when the library is loaded, and stay there; kernels between
    planned buffers run as CUDA graphs.  ``net(x)`` takes and gives NumPy arrays (two copies);
    :meth:`on_device` takes and gives DLPack tensors on the GPU (no copies), on the caller's stream.

    Parameters
    ----------
    device : number of the GPU.
    """

    def __init__(self, path: Path, manifest: Manifest, placement: Placement, device: int = 0):
        self.device = cuda_runtime.device(device)
        """The GPU: number, name, compute capability."""
        self.arch = cuda_runtime.choose_arch(manifest.target.archs, device)
        """The architecture whose machine code runs."""
        super().__init__(path, manifest, placement)
        self._buffers: list[Any] | None = None

    def _initialize(self, machine: Any) -> Any:
        index = self.device.index
        machine["vm_initialization"](cuda_runtime.CUDA, index, _POOLED, 1, 0, _POOLED)
        entry = f"main_{self.arch}"
        return machine[entry]

    def __repr__(self) -> str:
        return f"<CudaLibrary {self.manifest.name!r} {self.signature} on {self.device.name} ({self.arch})>"

    def _call_main(self, tensors: list[Any]) -> Any:
        copy = self._runtime.function("runtime.TVMTensorCopyFromTo")
        if self._buffers is None:
            self._buffers = [self._on_gpu(tensor) for tensor in tensors]
        for tensor, buffer in zip(tensors, self._buffers, strict=True):
            copy(tensor, buffer)
        result = super()._call_main(self._buffers)
        if hasattr(result, "data_ptr"):
            return self._to_host(result, copy, 0)
        return [self._to_host(tensor, copy, index) for index, tensor in enumerate(result)]

    def _on_gpu(self, tensor: Any) -> Any:
        ffi = self._runtime.ffi
        make = self._runtime.function("runtime.TVMTensorAllocWithScope")
        device = ffi.device("cuda", self.device.index)
        return make(ffi.Shape(tuple(tensor.shape)), ffi.dtype(str(tensor.dtype)), device, None)

    def _to_host(self, tensor: Any, copy: Any, index: int) -> Any:
        spec = self.manifest.signature.outputs[index]
        host = allocate(self._runtime, tuple(tensor.shape), spec.dtype, self._output_dtypes[index])[0]
        copy(tensor, host)
        self._runtime.function("runtime.Device_StreamSync")(tensor.device, 0)
        return host

    def on_device(self, *tensors: Any, stream: int | None = None) -> tuple[Any, ...]:
        """Run on tensors that are on the GPU already; the results stay there.

        Parameters
        ----------
        tensors : one per input, in order: DLPack tensors on this GPU (``torch.Tensor``, CuPy arrays),
            dense and of the signature's shapes and dtypes.
        stream : CUDA stream handle to run on (``torch.cuda.current_stream().cuda_stream``); None for
            the default stream.  Work is queued: synchronise the stream before reading results.

        Returns
        -------
        DLPack tensors (``torch.from_dlpack(y)``), valid until the library is called again.

        Raises
        ------
        InputError : wrong number, place, shape, dtype or layout; lists everything wrong.
        """
        ffi = self._runtime.ffi
        given = [self._borrow(tensor) for tensor in tensors]
        problems = [] if len(given) == len(self._slots) else [f"{len(given)} tensors given"]
        for slot, tensor in zip(self._slots, given, strict=False):
            problems += [f"{slot.spec.name}: {text}" for text in self._wrong(slot.spec, tensor)]
        if problems:
            raise InputError(
                f"wrong inputs for {self.manifest.name} on {self.device.name}",
                problems=problems,
                hint=f"it takes ({', '.join(map(str, self.signature.inputs))}) on cuda:{self.device.index}",
            )
        place = ffi.device("cuda", self.device.index)
        scope = contextlib.nullcontext() if stream is None else ffi.use_raw_stream(place, stream)
        with self._lock, scope:
            result = super()._call_main(given)
        return (result,) if hasattr(result, "data_ptr") else tuple(result)

    def _borrow(self, tensor: Any) -> Any:
        try:
            return tensor if hasattr(tensor, "__chandle__") else self._runtime.ffi.from_dlpack(tensor)
        except Exception as error:
            raise InputError(f"this is no DLPack tensor: {error}") from error

    def _wrong(self, spec: Any, tensor: Any) -> list[str]:
        found = []
        if (
            tensor.device.dlpack_device_type() != cuda_runtime.CUDA
            or tensor.device.index != self.device.index
        ):
            found.append(f"it is on {tensor.device}, not on cuda:{self.device.index}")
        if tuple(tensor.shape) != tuple(spec.shape):
            found.append(f"the shape is {tuple(tensor.shape)}, expected {tuple(spec.shape)}")
        if str(tensor.dtype) != spec.dtype:
            found.append(f"the dtype is {tensor.dtype}, expected {spec.dtype}")
        if not tensor.is_contiguous():
            found.append("it is not dense in row-major order")
        return found


def check_can_run(manifest: Manifest, device: int = 0) -> None:
    """Refuse a library for GPUs on a machine that cannot run it, before any of its code is loaded.

    Raises
    ------
    LibraryError : no driver, no GPU, or machine code for other architectures only.
    """
    try:
        cuda_runtime.choose_arch(manifest.target.archs, device)
    except LibraryError as error:
        raise LibraryError(
            f"{manifest.name}: {error.message}", problems=error.problems, hint=error.hint
        ) from error
