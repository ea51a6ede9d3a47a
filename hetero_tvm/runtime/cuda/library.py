"""Libraries whose kernels run on an NVIDIA GPU."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.errors import InputError, LibraryError
from hetero_tvm.runtime.binding import BoundCall
from hetero_tvm.runtime.cuda import cudart
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from hetero_tvm.runtime.cuda.pipeline import Pending, Pipeline, Staging
from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.manifest import Manifest, refuse_flagged
from hetero_tvm.runtime.observing import Observer
from hetero_tvm.runtime.profiling import profile_calls
from hetero_tvm.runtime.signature import TensorSpec
from hetero_tvm.runtime.threads import ThreadPinning

_POOLED = 2
GRAPH_VARIABLE = "HETERO_TVM_CUDA_GRAPH"


class CudaLibrary(Library):
    """A model on a GPU: called like every :class:`Library`, or on device memory.

    Weights go to the device once, when the library is loaded, and stay there; kernels between planned
    buffers run as CUDA graphs.

    ``net(x)`` takes and gives NumPy arrays.  :meth:`submit` does the same without waiting, so that the
    copies of one call run beside the kernels of another.  Called with tensors that are on the GPU (PyTorch,
    CuPy, anything with DLPack) it copies nothing, queues its work on the caller's stream and gives tensors
    of the caller's framework (:meth:`on_device`).  All of it may be used from any thread.

    Parameters
    ----------
    device : number of the GPU.
    cuda_graph : see :func:`hetero_tvm.runtime.opening.load`.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        pinning: ThreadPinning,
        device: int = 0,
        cuda_graph: bool | None = None,
    ):
        self.device = cuda_runtime.device(device)
        """The GPU: number, name, compute capability."""
        self.arch = cuda_runtime.choose_arch(manifest.target.archs, device)
        """The architecture whose machine code runs."""
        if cuda_graph is None:
            cuda_graph = os.environ.get(GRAPH_VARIABLE, "1") not in ("", "0")
        self._graph_wanted = cuda_graph
        self.cuda_graph = "on"
        """``on``, or ``off: `` and the reason."""
        super().__init__(path, manifest, pinning)
        self._pipeline: Pipeline | None = None
        self._place = self._runtime.ffi.device("cuda", device)
        self._flagged: deque[tuple[cudart.Event, list[Staging]]] = deque()
        self._ran: cudart.Event | None = None  # after the last kernel of the last call

    def _initialize(self, machine: Any) -> Any:
        index = self.device.index
        machine["vm_initialization"](cuda_runtime.CUDA, index, _POOLED, 1, 0, _POOLED)
        entry = f"main_{self.arch}"
        try:
            eager = machine[entry + cuda_runtime.EAGER]
        except (AttributeError, KeyError, RuntimeError):  # what was built holds nothing to capture
            self.cuda_graph = "off: no kernel has planned buffers only"
            return machine[entry]
        if not self._graph_wanted:
            self.cuda_graph = "off: as asked"
            return eager
        return machine[entry]

    def profile_call(self, call: Callable[[], Any], seconds: float = 1.0) -> Any:
        """Profile of ``call`` without CUDA graphs, each kernel waited for: its time includes its launch."""
        graph, self._graph_wanted = (self._graph_wanted, self.cuda_graph), False
        self._start()
        try:
            symbols = self.manifest.kernel_symbols
            observer = Observer(
                self._machine, self._runtime.ffi, self.loaded_path, cudart.synchronize, symbols
            )
            return profile_calls(observer, self.manifest, call, 1, seconds)
        finally:
            self._graph_wanted, self.cuda_graph = graph
            self._start()

    def __repr__(self) -> str:
        return f"<CudaLibrary {self.manifest.name!r} {self.signature} on {self.device.name} ({self.arch})>"

    # calls -------------------------------------------------------------------------------------
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model.

        NumPy arrays (or what becomes one) in, NumPy arrays out; or tensors on this GPU in, tensors on it
        out (see :meth:`on_device`).  See :meth:`Library.__call__` for errors.
        """
        given = [*args, *kwargs.values()]
        if given and all(map(_is_on_gpu, given)):
            results = self.on_device(*self._in_order(args, kwargs))
            return results[0] if len(results) == 1 else results
        return self.submit(*args, **kwargs).wait()

    def bind(self) -> BoundCall:
        """Refused: memory of the host is not where a GPU reads."""
        raise InputError(
            f"{self.manifest.name} runs on a GPU, which reads no memory that is bound on the host",
            hint="call it with tensors on the GPU, or queue calls with submit",
        )

    def submit(self, *args: Any, **kwargs: Any) -> Pending:
        """Queue a call with NumPy arrays and return at once; ``wait()`` of what comes back gives the results.

        Two calls are in flight at a time: one's inputs and results are copied while the other runs.  A
        third waits for the first.

        >>> first, second = net.submit(a), net.submit(b)
        >>> y, z = first.wait(), second.wait()
        """
        arrays = self._bind(args, kwargs)
        with self._lock:
            cudart.use(self.device.index)
            if self._pipeline is None:
                specs = self.manifest.signature
                flags = [TensorSpec(text, (), "int32") for text in self.manifest.checks]
                self._pipeline = Pipeline(
                    self.device.index, specs.inputs, [*specs.outputs, *flags], self._on_gpu, self._queue
                )
            return self._pipeline.submit(arrays, self._checked)

    def _checked(self, results: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """The results without the numbers that follow them.  :class:`LibraryError`: one of these is not 0."""
        count = len(self.manifest.signature.outputs)
        refuse_flagged(self.manifest.name, self.manifest.checks, map(int, results[count:]))
        return self.signature.trimmed(results[:count])

    def raise_pending(self, wait: bool = True) -> None:
        """Raise what :meth:`on_device` found wrong with the indices of an earlier call.

        ``wait`` : until all calls have run; else only of those that have.

        Raises
        ------
        LibraryError : an index outside of its tensor, a division by zero.
        """
        while self._flagged and (wait or self._flagged[0][0].has_happened()):
            event, staged = self._flagged.popleft()
            event.synchronize()
            refuse_flagged(self.manifest.name, self.manifest.checks, (int(s.array) for s in staged))

    def on_device(self, *tensors: Any, stream: int | None = None) -> tuple[Any, ...]:
        """Run on tensors that are on the GPU already; the results stay there.

        Parameters
        ----------
        tensors : one per input, in order: DLPack tensors on this GPU (``torch.Tensor``, CuPy arrays),
            dense and of the signature's shapes and dtypes.
        stream : CUDA stream handle to run on; None for PyTorch's current stream where the inputs are
            PyTorch's, else for the default stream.

        Returns
        -------
        Tensors of the framework of the first input, through its ``from_dlpack``.  The work is queued, not
        done: later work of the same stream sees the results, other streams and the host must synchronise.
        An index outside of its tensor is clamped, and raised by a later call or by :meth:`raise_pending`.
        Results belong to the caller, who keeps them until what reads them has been queued on that stream.

        Raises
        ------
        InputError : wrong number, place, shape, dtype or layout; lists everything wrong.
        """
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
        if stream is None:
            stream = _current_stream(tensors, self.device.index)
        with self._lock:
            self.raise_pending(wait=False)
            results = self._queue(stream, given)
            if self.manifest.checks:
                results = self._note_flags(stream, results)
        back = _from_dlpack_of(tensors)
        return tuple(results if back is None else map(back, results))

    def _note_flags(self, stream: int, results: list[Any]) -> list[Any]:
        """Queue copies of the numbers behind the results, for :meth:`raise_pending`; the results alone."""
        count = len(self.manifest.signature.outputs)
        staged = [Staging((), np.dtype("int32")) for _ in results[count:]]
        for place, flag in zip(staged, results[count:], strict=True):
            cudart.copy(stream, place.address, flag.data_ptr(), place.nbytes, cudart.TO_HOST)
        event = cudart.Event()
        event.record(stream)
        self._flagged.append((event, staged))
        return results[:count]

    def _queue(self, stream: int, tensors: list[Any]) -> list[Any]:
        """Queue the model on a stream, behind the last call on any: they share buffers."""
        cudart.use(self.device.index)
        if self._ran is None:
            self._ran = cudart.Event()
        else:
            cudart.wait(stream, self._ran)
        try:
            result = self._call_on(stream, tensors)
        except LibraryError as error:
            result = self._without_graphs(error, stream, tensors)
        self._ran.record(stream)
        return [result] if hasattr(result, "data_ptr") else list(result)

    def _call_on(self, stream: int, tensors: list[Any]) -> Any:
        with self._runtime.ffi.use_raw_stream(self._place, stream):
            return self._call_main(tensors)

    def _without_graphs(self, error: LibraryError, stream: int, tensors: list[Any]) -> Any:
        """Run again without graphs, which not every device and driver can capture; other errors recur."""
        if self.cuda_graph != "on":
            raise error
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        self._graph_wanted = False
        self._start()  # the virtual machine in which a capture has failed is of no more use
        result = self._call_on(stream, tensors)
        self.cuda_graph = f"off: {reason}"
        text = f"{self.path.name} runs without CUDA graphs: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=5)
        return result

    def _on_gpu(self, spec: TensorSpec) -> Any:
        """A new tensor on the device."""
        ffi = self._runtime.ffi
        make = self._runtime.function("runtime.TVMTensorAllocWithScope")
        return make(ffi.Shape(tuple(spec.shape)), ffi.dtype(spec.dtype), self._place, None)

    # what is given -----------------------------------------------------------------------------
    def _in_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Arguments in the order of the inputs.  :class:`InputError`: some are missing, or too many."""
        given = dict(zip(self._names, args, strict=False))
        wrong = [name for name in kwargs if name in given or name not in self._names]
        missing = [name for name in self._names if name not in given and name not in kwargs]
        if wrong or missing or len(args) > len(self._names):
            problems = [f"{name}: given twice, or no input has this name" for name in wrong]
            raise self._input_error([*problems, *(f"{name}: missing" for name in missing)])
        given |= kwargs
        return [given[name] for name in self._names]

    def _borrow(self, tensor: Any) -> Any:
        """A DLPack tensor as one of TVM's runtime, over the same memory."""
        try:
            return tensor if hasattr(tensor, "__chandle__") else self._runtime.ffi.from_dlpack(tensor)
        except Exception as error:
            raise InputError(f"this is no DLPack tensor: {error}") from error

    def _wrong(self, spec: TensorSpec, tensor: Any) -> list[str]:
        """Faults of a device tensor as an input."""
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


def _is_on_gpu(value: Any) -> bool:
    """Whether a value is a tensor on a CUDA device."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return False
    with contextlib.suppress(Exception):  # it will be refused by name, as an array
        return int(value.__dlpack_device__()[0]) == cuda_runtime.CUDA
    return False


def _framework(tensor: Any) -> Any:
    """The module that a tensor's type comes from (``torch``, ``cupy``); None where it is unknown."""
    return sys.modules.get(type(tensor).__module__.partition(".")[0])


def _from_dlpack_of(tensors: tuple[Any, ...]) -> Any:
    """The function that makes tensors of the caller's framework; None for TVM's own."""
    if not tensors or hasattr(tensors[0], "__chandle__"):
        return None
    return getattr(_framework(tensors[0]), "from_dlpack", None)


def _current_stream(tensors: tuple[Any, ...], device: int) -> int:
    """Handle of PyTorch's current stream where the tensors are PyTorch's; else 0, the default stream."""
    torch = _framework(tensors[0]) if tensors else None
    if torch is not None and torch.__name__ == "torch":
        return int(torch.cuda.current_stream(device).cuda_stream)
    return 0


def open_library(
    path: Path, manifest: Manifest, pinning: ThreadPinning, device: int, cuda_graph: bool | None
) -> CudaLibrary:
    """A library for GPUs, opened; one that cannot run here is refused before any of its code is loaded.

    Raises
    ------
    LibraryError : no driver, no GPU, or machine code for other architectures only.
    """
    check_can_run(manifest, device)
    return CudaLibrary(path, manifest, pinning, device, cuda_graph)


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
