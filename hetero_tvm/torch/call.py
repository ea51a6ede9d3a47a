"""Calls of a library with PyTorch's tensors, in and out without copies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hetero_tvm.errors import ModelError
from hetero_tvm.runtime.arrays import numpy_dtype
from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.signature import TensorSpec
from hetero_tvm.torch.examine import Source


class TensorCall:
    """A library as the function that a graph is: all arguments in, all outputs out.

    Parameters
    ----------
    library : what computes the results.
    inputs : number of the argument that each input of the library is.
    outputs : where each output comes from.
    orders : order of the dimensions in which the library gives a result, by its number, where it is another.

    Tensors are lent to the library where they are dense and aligned, and copied where not.  Results are
    memory of their own: never that of an argument, of the library, or of another result, unless the output is
    a view of it.
    """

    def __init__(
        self,
        library: Library,
        inputs: Sequence[int],
        outputs: Sequence[Source],
        orders: Mapping[int, Sequence[int]] | None = None,
    ):
        if counted := library.signature.counted:
            raise ModelError(
                f"how many elements {', '.join(counted)} have depends on values, and tensors are handed over "
                "whole",
                hint="build the exported program with hetero_tvm.import_model: its library gives what counts",
            )
        self.library = library
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._own = library.manifest.constant_results
        self._mask = library.manifest.target.alignment - 1
        self._call = library.call_tensors
        signature = library.signature
        # Of inputs, whose views a result may be, and of results, of which another may be the same tensor.
        self._sizes = [max(1, _nbytes(s)) for s in signature.inputs] + [1] * len(signature.outputs)
        results = [place for kind, place in outputs if kind == "result"]
        self._back = [
            (place, [order.index(axis) for axis in range(len(order))])
            for place, order in (orders or {}).items()
        ]
        self._plain = len(results) == len(outputs) and results == list(range(len(results)))

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Outputs of the graph for ``arguments``."""
        mask, tensors, addresses = self._mask, [], []
        for index in self._inputs:
            tensor = arguments[index]
            if tensor.requires_grad:
                tensor = tensor.detach()
            if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
                tensor = tensor.resolve_conj().resolve_neg().contiguous()
            address = tensor.data_ptr()
            if address & mask:
                tensor = tensor.clone(memory_format=torch.contiguous_format)
                address = tensor.data_ptr()
            tensors.append(tensor)
            addresses.append(address)
        results = self._call(tensors)
        for place, result in enumerate(results):
            if not isinstance(result, torch.Tensor):  # of a library without inputs
                result = results[place] = torch.from_dlpack(result)
            address = result.data_ptr()
            if place in self._own:
                results[place] = result.clone()
            else:  # memory of an argument, or of a result before
                for start, size in zip(addresses, self._sizes, strict=False):
                    if start <= address < start + size:
                        results[place] = result.clone()
                        break
            addresses.append(address)
        for place, axes in self._back:
            results[place] = results[place].permute(axes)
        if self._plain:
            return results
        return [self._output(kind, place, results, arguments) for kind, place in self._outputs]

    @staticmethod
    def _output(kind: str, place: Any, results: Sequence[torch.Tensor], arguments: Sequence[Any]) -> Any:
        if kind == "view":
            base = results[place.result]
            return base.as_strided(place.size, place.stride, base.storage_offset() + place.first)
        return results[place] if kind == "result" else arguments[place] if kind == "argument" else place


def _nbytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * numpy_dtype(spec.dtype).itemsize
