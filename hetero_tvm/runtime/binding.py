"""Calls with memory bound beforehand: inputs that kernels read where they are, results in given arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.errors import InputError
from hetero_tvm.runtime.arrays import allocate, numpy_dtype
from hetero_tvm.runtime.signature import Signature, TensorSpec
from hetero_tvm.runtime.tvm_runtime import TVMRuntime


@dataclass(frozen=True)
class BoundInput:
    """Memory of one input: the runtime's tensor, the caller's view of it, its first and last address."""

    tensor: Any
    array: np.ndarray
    span: tuple[int, int]


class BoundCall:
    """A call whose inputs lie in memory that it owns, for programs that call with the same shapes for ever.

    Fill the arrays of :attr:`inputs`, call, take the results: nothing is checked, converted or copied
    between.  Made by :meth:`Library.bind`; several may stand side by side for one library.

    >>> call = net.bind()
    >>> call.inputs["x"][...] = x
    >>> y = call()
    """

    def __init__(self, runtime: TVMRuntime, signature: Signature, run: Callable[..., Any]):
        unfixed = [str(spec) for spec in signature.inputs if not spec.static]
        if unfixed:
            raise InputError(
                "inputs of an open shape have no memory to be bound to",
                problems=unfixed,
                hint="call the library itself",
            )

        def memory(spec: TensorSpec) -> BoundInput:
            dtype = numpy_dtype(spec.dtype)
            return BoundInput(*allocate(runtime, spec.shape, spec.dtype, dtype, owned=True))

        self._bound = {spec.name: memory(spec) for spec in signature.inputs}
        for bound in self._bound.values():
            bound.array[...] = np.zeros((), bound.array.dtype)
        self._tensors = [bound.tensor for bound in self._bound.values()]
        self._spans = list(self._bound.values())
        self._run = run

    def __repr__(self) -> str:
        ends = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in self.inputs.items())
        return f"<BoundCall ({ends})>"

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """Arrays by input name, which every call reads; zeros at first."""
        return {name: bound.array for name, bound in self._bound.items()}

    def __call__(self, out: Any = None) -> np.ndarray | tuple[np.ndarray, ...]:
        """Run the model on what :attr:`inputs` hold; ``out`` as in a call of the library."""
        return self._run(self._tensors, self._spans, out)


def checked_outputs(out: Any, specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """The arrays of ``out``, one per output.

    Raises
    ------
    InputError : there are more or fewer, or one has another shape or dtype or cannot be written (all are
        listed).
    """
    counted = [str(spec) for spec in specs if spec.counts]
    if counted:
        raise InputError(
            "outputs whose size depends on values come in arrays of their own",
            problems=counted,
            hint="call without out=",
        )
    given = [out] if isinstance(out, np.ndarray) else list(out) if isinstance(out, list | tuple) else None
    if given is None or len(given) != len(specs):
        count = type(out).__name__ if given is None else f"{len(given)} of them"
        raise InputError(
            f"out is one array per output, not {count}", hint=f"outputs: {', '.join(map(str, specs))}"
        )
    problems = []
    for array, spec in zip(given, specs, strict=True):
        if not isinstance(array, np.ndarray):
            problems.append(f"{spec.name}: an array is needed, not {type(array).__name__}")
        elif not _fits(array, spec):
            problems.append(f"{spec} expected, got {array.dtype}{list(array.shape)}")
        elif not array.flags.writeable:
            problems.append(f"{spec.name}: the array cannot be written")
    if problems:
        raise InputError("the arrays of out do not fit the outputs", problems=problems)
    return given


def _fits(array: np.ndarray, spec: TensorSpec) -> bool:
    """Whether an array has the dtype and the shape of an output, as far as that is known before the call."""
    if array.dtype != numpy_dtype(spec.dtype) or array.ndim != len(spec.shape):
        return False
    return all(isinstance(size, str) or size == n for size, n in zip(spec.shape, array.shape, strict=True))


def copied(results: Any, into: Sequence[np.ndarray], specs: Sequence[TensorSpec]) -> Any:
    """The caller's arrays, which :func:`checked_outputs` gave, with the results in them.

    Raises
    ------
    InputError : a result has another size along an open dimension; nothing is copied then.
    """
    several = isinstance(results, tuple)
    pairs = list(zip(into, results if several else [results], strict=True))
    problems = [
        f"{spec} is {list(result.shape)} here, got {list(array.shape)}"
        for (array, result), spec in zip(pairs, specs, strict=True)
        if array.shape != result.shape
    ]
    if problems:
        raise InputError("the arrays of out do not fit the outputs of this call", problems=problems)
    for array, result in pairs:
        np.copyto(array, result)
    return tuple(into) if several else into[0]
