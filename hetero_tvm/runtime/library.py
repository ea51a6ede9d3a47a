"""An exported library as a function: inputs in, its virtual machine run, results out."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.errors import HeteroTVMError, InputError, LibraryError, of_ending_python
from hetero_tvm.host.peaks import ARITHMETICS, FLOAT32, measure_bandwidth, measure_caches, measure_peak
from hetero_tvm.host.terminal import number_of
from hetero_tvm.pages import views
from hetero_tvm.runtime import tvm_runtime
from hetero_tvm.runtime.arrays import InputSlot, allocate, named_indices, numpy_dtype, result_array
from hetero_tvm.runtime.binding import BoundCall, checked_outputs, copied
from hetero_tvm.runtime.code import load_code, loading
from hetero_tvm.runtime.forking import CallGuard
from hetero_tvm.runtime.manifest import Manifest
from hetero_tvm.runtime.observing import DeviceCost, Observer
from hetero_tvm.runtime.profiling import profile_calls
from hetero_tvm.runtime.quiet import quiet_fd2
from hetero_tvm.runtime.sessions import Buffer, InPlace, Session, State, states_of
from hetero_tvm.runtime.signature import STEP, Signature, Step, TensorSpec
from hetero_tvm.runtime.threads import ThreadPinning

LOAD = "hetero_tvm_load"
"""Function of a library that reads its large constants (``cpp/constants.cc``)."""
_MOST_ACCEPTED = 1024
"""Shapes of inputs that are remembered as fitting."""

_CPU, _POOLED = 1, 2  # device type, allocator of the virtual machine


class Library(views.Shown):
    """An exported model: call it with arrays, in order or by name, and get arrays.

    ``net(x)``, ``net(input_ids=ids, attention_mask=mask)`` and mixtures.  Inputs may have any
    alignment and stride; their dtype must be the model's (Python numbers and lists convert when
    their values survive).  One output comes as a NumPy array, several as a tuple; results belong
    to the caller and stay as they are.

    Threads: calls are safe from any thread and run one after another, in the thread that calls and on
    the process's one pool (``cpp/pool/``, ``docs/threads.md``).  To serve in parallel, load several times:
    the libraries share the pool.

    Forks: a child may call what its parent has loaded.  A fork waits for calls that run in other
    threads, 5 s at most; a child of a fork in the middle of a call gets a :class:`LibraryError`.

    Pickles (for processes that are spawned, and ``copy.deepcopy``) hold the path and the options of
    ``load``, not the model: whoever reads one loads the file again.
    """

    reopen: Callable[[], Library] | None = None
    """Loads the same file with the same options; None where nothing was loaded by :func:`load`."""
    _of_ending_python = staticmethod(of_ending_python)

    def __init__(self, path: Path, manifest: Manifest, pinning: ThreadPinning):
        self.path = path
        self.manifest = manifest
        self._pinning = pinning
        self._runtime = tvm_runtime.start()
        self._limits = pinning.limits()
        self._limits_at = ctypes.addressof(self._limits)
        self._lock = CallGuard(f"a call of {manifest.name}")
        self._start()
        alignment = manifest.target.alignment
        self._slots = [InputSlot(self._runtime, spec, alignment) for spec in manifest.signature.inputs]
        self._names = [spec.name for spec in manifest.signature.inputs]
        self._symbolic = bool(manifest.signature.symbols)
        self._accepted: set[tuple[tuple[int, ...], ...]] = set()  # shapes of inputs that were found to fit
        self._last = threading.local()  # shapes of the last call of each thread, where sizes are open
        self._counted = bool(manifest.signature.counted)
        self._output_dtypes = [numpy_dtype(spec.dtype) for spec in manifest.signature.outputs]

    def _start(self) -> None:
        """Load the code and give it a virtual machine."""
        # What a library of another kind registers with TVM or a driver outlives its last user.
        self._shared_code = load_code(self._runtime, self.path, free=type(self) is Library)
        self._code = self._shared_code.open
        self.loaded_path = self._code.path
        try:
            with loading, quiet_fd2():
                self._machine = self._code.module["vm_load_executable"]()
                self._main = self._initialize(self._machine)
        except Exception as error:
            raise LibraryError(f"cannot load {self.path}: {error}", hint="export the model again") from error

    def _initialize(self, machine: Any) -> Any:
        """Give a virtual machine its devices; returns the entry function."""
        machine["vm_initialization"](_CPU, 0, _POOLED)
        with contextlib.suppress(AttributeError):  # a library without large constants
            machine[LOAD]()
        return machine["main"]

    @property
    def signature(self) -> Signature:
        """Names, shapes and dtypes of inputs and outputs."""
        return self.manifest.signature

    @property
    def threads(self) -> int:
        """Threads that a call runs on, the calling one included."""
        return self._pinning.threads

    @property
    def cores(self) -> tuple[int, ...] | None:
        """Core of each thread, or None when they are not pinned."""
        return self._pinning.cores

    def device_cost(self) -> DeviceCost | None:
        """Cost of the last call on a device that counts its own time; None where wall time is the latency."""
        return None

    def profile(self, *args: Any, seconds: float = 1.0, **kwargs: Any) -> Any:
        """Profile of calls with these inputs: kernels, source nodes, speed, balance of the threads.

        ``print(net.profile(x).to_json())``; ``.write_trace(path)`` for a timeline.

        Parameters
        ----------
        seconds : about how long to call; at least five calls are observed.

        Raises
        ------
        InputError : wrong inputs.
        """
        self._bind(args, kwargs)
        return self.profile_call(lambda: self(*args, **kwargs), seconds)

    def profile_call(self, call: Callable[[], Any], seconds: float = 1.0, one_row: bool = False) -> Any:
        """Profile of ``call``, which calls this library once (see :meth:`profile`).

        Parameters
        ----------
        one_row : the call is one token of a language model, whose manifest tells the work of that.
        """
        manifest = self.manifest
        if manifest.language and not one_row:
            unknown = {"flops": 0, "bytes": 0}
            manifest = replace(manifest, kernels=[{**row, **unknown} for row in manifest.kernels])
        if self._symbolic:
            call()
            shapes = dict(zip(self._names, self._last.shapes, strict=True))
            rows = manifest.kernels_at(self.signature.sizes(shapes))
            manifest = replace(manifest, kernels=rows)
        symbols = self.manifest.kernel_symbols
        machine, code, missing = self._machine, self._code, ""
        observer = Observer(machine, self._runtime.ffi, code.path, kernels=symbols, module=code.module)
        kinds = {FLOAT32, *(row.get("arithmetic", FLOAT32) for row in self.manifest.kernels)}
        try:
            peaks = {kind: measure_peak(self.threads, kind) for kind in sorted(kinds & set(ARITHMETICS))}
            bandwidth, cached = measure_bandwidth(self.threads), measure_caches(self.threads)
        except ImportError:
            peaks, bandwidth, cached, missing = {}, None, None, "the whole package measures them"
        except HeteroTVMError as error:  # no C++ compiler here, or no place for what it compiles
            peaks, bandwidth, cached = {}, None, None
            missing = "; ".join(filter(None, [error.message, error.hint]))
        profile = profile_calls(observer, manifest, call, self.threads, seconds, peaks, bandwidth, cached)
        return profile if peaks else replace(profile, no_roofs=missing)

    def __reduce__(self) -> tuple[Callable[[], Library], tuple[()]]:
        if self.reopen is None:
            raise LibraryError(f"{self.path} cannot be pickled", hint="hand on its path, and load() it there")
        return self.reopen, ()

    def __repr__(self) -> str:
        return f"<Library {self.manifest.name!r} {self.signature} on {number_of(self.threads, 'thread')}>"

    def _view(self) -> views.View:
        ends = views.ends(self.signature.inputs, self.signature.outputs)
        facts = [("target", self.manifest.target.kind), ("threads", self.threads)]
        return views.View(self.manifest.name, facts, (ends,))

    def __call__(self, *args: Any, **kwargs: Any) -> np.ndarray | tuple[np.ndarray, ...]:
        """Run the model: arrays in order, by name, or in one mapping of names to arrays.

        ``out=array`` (a list where there are several outputs) has the results copied to arrays of the
        caller's and gives those back; unless an input has that name.

        Raises :class:`InputError` that lists everything wrong with the inputs, and
        :class:`LibraryError` when the library itself fails.
        """
        try:
            out = kwargs.pop("out", None) if "out" not in self._names else None
            into = None if out is None else checked_outputs(out, self.signature.outputs)
            arrays = self._bind(args, kwargs)
            self._lock.admit()
            with self._lock.lock:
                tensors = [slot.tensor(array) for slot, array in zip(self._slots, arrays, strict=True)]
                results = self._results(self._run(tensors), self._slots)
            return results if into is None else copied(results, into, self.signature.outputs)
        except Exception as error:
            if ended := self._of_ending_python(error):
                raise ended from error
            raise

    def run(self, names: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[np.ndarray]:
        """Outputs of these names, or all, in a list: a call as ``InferenceSession.run`` of ONNX Runtime.

        Raises
        ------
        InputError : wrong inputs, or no output has one of the names.
        """
        known = [spec.name for spec in self.signature.results]
        for value, kinds, what in (
            (names, (Sequence, type(None)), "names of outputs are a list, or None for all"),
            (inputs, (Mapping, type(None)), "inputs are arrays by name, as in {'x': array}"),
        ):
            if not isinstance(value, kinds) or isinstance(value, str):
                raise InputError(f"{what}, not {type(value).__name__}")
        if unknown := [name for name in names or () if name not in known]:
            problems = [f"{name}: no output has this name" for name in unknown]
            hint = f"outputs: {', '.join(known)}; None gives them all"
            raise InputError(f"wrong outputs for {self.manifest.name}", problems=problems, hint=hint)
        results = self(dict(inputs)) if inputs else self()
        by_name = dict(zip(known, results if isinstance(results, tuple) else (results,), strict=True))
        return [by_name[name] for name in names or known]

    def get_inputs(self) -> list[TensorSpec]:
        """Inputs with ``name``, ``shape`` and ``type``, as ONNX Runtime lists them."""
        return list(self.signature.inputs)

    def get_outputs(self) -> list[TensorSpec]:
        """Outputs with ``name``, ``shape`` and ``type``, as ONNX Runtime lists them."""
        return list(self.signature.results)

    def session(
        self, states: Mapping[str, str] | None = None, initial: Mapping[str, Any] | None = None
    ) -> Session:
        """The library with what comes back from call to call: a cache of keys and values, a recurrent state.

        Parameters
        ----------
        states : output by input; by default ``past...`` with ``present...``, ``NAME`` with ``NAME_out``.
        initial : arrays to begin with, by name of the input; otherwise zeros, and nothing where a state
            grows.

        Raises
        ------
        InputError : there are no states, or they do not fit.
        """
        found = states_of(self.signature, states)
        if not found:
            raise InputError(
                f"{self.manifest.name} has no input that comes back as an output",
                hint="name them: net.session({'hidden': 'hidden_next'})",
            )
        in_place = None if self.manifest.step is None else self._step(self.manifest.step, found)
        return Session(self, self.signature, found, initial, in_place)

    def _step(self, step: Step, states: Sequence[State]) -> InPlace | None:
        """The function that keeps states in place; None where these are not all among ``states``."""
        room = step.room
        if not room.keys() <= {state.input.name for state in states}:
            return None
        kept = {place for place, spec in enumerate(self.signature.results) if spec.name in step.outputs}
        dtypes = [dtype for place, dtype in enumerate(self._output_dtypes) if place not in kept]
        slots = [slot for slot in self._slots if slot.spec.name not in room]
        function = self._machine[STEP]

        def tell(size: int) -> Any:
            """A tensor whose extent is ``size``; its elements are not read."""
            return allocate(self._runtime, (size,), "uint8", np.dtype("uint8"))[0]

        def buffer(shape: tuple[int, ...], dtype: str) -> Buffer:
            tensor, array, _ = allocate(self._runtime, shape, dtype, numpy_dtype(dtype), owned=True)
            return Buffer(tensor, array)

        def run(inputs: Mapping[str, Any], buffers: Mapping[str, Buffer]) -> list[np.ndarray]:
            arrays = dict(zip(self._names, self._bind((), dict(inputs)), strict=True))
            sizes = {
                name: size
                for spec in self.signature.inputs
                for name, size in zip(spec.shape, arrays[spec.name].shape, strict=True)
            }
            self._lock.admit()
            with self._lock.lock:
                tensors = [slot.tensor(arrays[slot.spec.name]) for slot in slots]
                tensors += [buffers[name].tensor for name in room]
                tensors += [tell(sizes[name]) for name in step.sizes]
                result = self._call_function(function, tensors)
                found = _flat(result)
                return [result_array(t, dtype, slots) for t, dtype in zip(found, dtypes, strict=True)]

        return InPlace(room, buffer, run)

    def bind(self) -> BoundCall:
        """A call with memory of its own for the inputs, which kernels read without a check or a copy.

        Raises :class:`InputError` where an input's shape is open.
        """
        return BoundCall(self._runtime, self.signature, self._run_bound)

    def _run_bound(self, tensors: list[Any], spans: Sequence[Any], out: Any) -> Any:
        into = None if out is None else checked_outputs(out, self.signature.outputs)
        self._lock.admit()
        with self._lock.lock:
            results = self._results(self._run(tensors), spans)
        return results if into is None else copied(results, into, self.signature.outputs)

    def call_tensors(self, tensors: list[Any]) -> list[Any]:
        """Run the model on tensors of the runtime or of PyTorch, in the order of the signature.

        They are dense, on the CPU, at the manifest's alignment, of the right shapes and dtypes: nothing is
        checked.  Gives tensors of the same package, which may lie in memory of an input or of the library.

        Raises :class:`LibraryError` when the library itself fails.
        """
        self._lock.admit()
        with self._lock.lock:
            result = self._run(tensors)
            return [result] if hasattr(result, "data_ptr") else list(_flat(result))

    def function(self, name: str, inputs: Sequence[TensorSpec], dtype: str) -> Callable[..., np.ndarray]:
        """Another function of the library as a function of arrays, in order; they fit ``inputs``.

        Raises
        ------
        LibraryError : there is none of this name.
        """
        try:
            function = self._machine[name]
        except AttributeError:
            raise LibraryError(
                f"{self.path.name} has no function {name}", hint="export the model again"
            ) from None
        slots = [InputSlot(self._runtime, spec, self.manifest.target.alignment) for spec in inputs]

        def call(*arrays: np.ndarray) -> np.ndarray:
            self._lock.admit()
            with self._lock.lock:
                tensors = [slot.tensor(array) for slot, array in zip(slots, arrays, strict=True)]
                return result_array(self._call_function(function, tensors), numpy_dtype(dtype), slots)

        return call

    def _run(self, tensors: list[Any]) -> Any:
        return self._call_main(tensors)

    def _call_main(self, tensors: list[Any]) -> Any:
        return self._call_function(self._main, tensors, self.signature.inputs)

    def _call_function(self, function: Any, tensors: list[Any], specs: Sequence[TensorSpec] = ()) -> Any:
        """The result of a function; ``specs`` of its operands, where they are inputs of the model alone."""
        try:
            return self._code.call(function, self._limits_at, *tensors)
        except Exception as error:
            if _is_of_the_caller(error):
                raise
            message = named_indices(str(error), specs, tensors) if specs else str(error)
            raise LibraryError(f"{self.path.name} failed: {message}") from error

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[np.ndarray]:
        """Check the arguments of a call; gives arrays in the order of the signature."""
        if len(args) == 1 and not isinstance(args[0], np.ndarray) and isinstance(args[0], Mapping):
            args, kwargs = (), {**args[0], **kwargs}
        values: list[Any] | tuple[Any, ...] = args
        if kwargs or len(args) != len(self._slots):
            values = self._by_name(args, kwargs)
        shapes = self._shapes_of(values)
        if shapes in self._accepted:
            self._last.shapes = shapes
            return list(values)
        arrays, problems = [], []
        for slot, value in zip(self._slots, values, strict=True):
            array, problem = slot.check(value)
            arrays.append(array)
            if problem:
                problems.append(problem)
        if not problems:
            shapes = tuple(array.shape for array in arrays)
            problems = self.signature.misfits(dict(zip(self._names, shapes, strict=True)))
        if problems:
            raise self._input_error(problems)
        if len(self._accepted) >= _MOST_ACCEPTED:
            self._accepted.clear()
        self._accepted.add(shapes)
        self._last.shapes = shapes
        return arrays

    def _shapes_of(self, values: Sequence[Any]) -> tuple[tuple[int, ...], ...] | None:
        """Shapes of values that are arrays of the inputs' types."""
        for slot, value in zip(self._slots, values, strict=True):
            if type(value) is not np.ndarray or value.dtype != slot.dtype:
                return None
        return tuple([value.shape for value in values])

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        if not args and len(kwargs) == len(self._names) and all(map(kwargs.__contains__, self._names)):
            return [kwargs[name] for name in self._names]
        given = dict(zip(self._names, args, strict=False))
        problems = [f"{name}: given twice, in order and by name" for name in kwargs if name in given]
        problems += [f"{name}: no input has this name" for name in kwargs if name not in self._names]
        if len(args) > len(self._names):
            problems.append(f"arrays given in order: {len(args)}; inputs: {len(self._names)}")
        given |= kwargs
        for slot in self._slots:
            if slot.spec.name not in given:
                problems.append(f"{slot.spec.name}: missing")
            elif problem := slot.check(given[slot.spec.name])[1]:
                problems.append(problem)
        if problems:
            raise self._input_error(problems)
        return [given[name] for name in self._names]

    def _input_error(self, problems: list[str]) -> InputError:
        inputs = ", ".join(map(str, self.signature.inputs))
        symbols = ", ".join(map(str, self.signature.symbols))
        hint = f"call it with ({inputs}){f' for {symbols}' if symbols else ''}"
        return InputError(f"wrong inputs for {self.manifest.name}", problems=problems, hint=hint)

    def _results(self, result: Any, inputs: Sequence[Any]) -> np.ndarray | tuple[np.ndarray, ...]:
        dtypes = self._output_dtypes
        if len(dtypes) == 1 and hasattr(result, "data_ptr"):
            return result_array(result, dtypes[0], inputs)
        parts = _flat(result)
        arrays = tuple([result_array(part, dtype, inputs) for part, dtype in zip(parts, dtypes, strict=True)])
        if self._counted:
            arrays = self.signature.trimmed(arrays)
            return arrays[0] if len(arrays) == 1 else arrays
        return arrays[0] if len(dtypes) == 1 else arrays


def _is_of_the_caller(error: Exception) -> bool:
    """Whether an error comes of Python code that ran within a call: a signal handler that raises, say."""
    within = error.__traceback__ and error.__traceback__.tb_next
    if within is None or hasattr(error, "__tvm_ffi_error__"):
        return False
    while within.tb_next is not None:
        within = within.tb_next
    return not within.tb_frame.f_code.co_filename.endswith((".pxi", ".pyx"))  # the runtime's own, compiled


def _flat(result: Any) -> list[Any]:
    if hasattr(result, "data_ptr"):
        return [result]
    parts = result[:]  # at once: each step of an iteration asks for the length
    return [tensor for part in parts for tensor in _flat(part)]
