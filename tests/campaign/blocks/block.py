"""A block in the making: an ONNX graph whose inputs have named sizes, each with a range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from hetero_tvm import Span
from tests.campaign.odd_files import Case

F32, F64, F16, BF16 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16
I64, I32, I8, U8, BOOL = (
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.BOOL,
)
Maker = Callable[[np.random.Generator, tuple[int, ...], Mapping[str, int]], np.ndarray]
Dims = "Iterable[int | str]"


@dataclass
class Block(Case):
    """An odd file whose shapes may hold names of sizes."""

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Least and greatest extent by name of a size; equal ones are fixed."""
    makers: dict[str, Maker] = field(default_factory=dict)
    shapes: dict[str, tuple[int | str, ...]] = field(default_factory=dict)

    def size(self, name: str, low: int, high: int, fixed: float = 0.25) -> str:
        """A size that is open, or with the probability ``fixed`` one number of its range."""
        if self.rng.random() < fixed:
            low = high = int(self.rng.integers(low, high + 1))
        self.ranges[name] = (low, high)
        return name

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(0, len(choices)))]

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def feed(self, name: str, dtype: int, shape: Dims, make: Maker | None = None) -> str:
        """An input; ``make`` draws its values."""
        self.shapes[name] = tuple(shape)
        if make:
            self.makers[name] = make
        dims = [self._declared(dim) for dim in self.shapes[name]]
        return self.input(name, dtype, dims)

    def _declared(self, dim: int | str) -> int | str:
        if isinstance(dim, int):
            return dim
        low, high = self.ranges[dim]
        return low if low == high else dim

    def rename(self, old: str, new: str) -> None:
        """Calls a size of the inputs by another one's name."""
        self.ranges.pop(old, None)
        for name, dims in self.shapes.items():
            self.shapes[name] = tuple(new if dim == old else dim for dim in dims)
        for value in self.inputs:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param == old:
                    dim.dim_param = new

    def scalar(self, value: float, dtype: str = "float32") -> str:
        return self.constant(np.asarray(value, dtype))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def extent(self, tensor: str, axis: int) -> str:
        """The extent along an axis as a vector of one element, as PyTorch's exporter spells it."""
        gathered = self.node("Gather", self.node("Shape", tensor), self.constant(np.int64(axis)))
        return self.node("Unsqueeze", gathered, self.ints(0))

    def reshape(self, tensor: str, *dims: int | str) -> str:
        """A reshape to numbers and vectors of one element."""
        if all(isinstance(dim, int) for dim in dims):
            return self.node("Reshape", tensor, self.ints(*dims))
        parts = [self.ints(dim) if isinstance(dim, int) else dim for dim in dims]
        return self.node("Reshape", tensor, self.node("Concat", *parts, axis=0))

    def result(self, name: str, dtype: int = F32) -> None:
        self.output(name, dtype)

    def built(self) -> onnx.ModelProto:
        model = self.model()
        for domain in sorted({node.domain for node in self.nodes} - {""}):
            model.opset_import.append(helper.make_opsetid(domain, 1))
        if self.opset >= 24:
            model.ir_version = 11
        inferred = onnx.shape_inference.infer_shapes(model)
        types = {v.name: v.type for v in (*inferred.graph.value_info, *inferred.graph.output)}
        for output in model.graph.output:
            if types[output.name].tensor_type.HasField("shape"):
                output.type.CopyFrom(types[output.name])
        return model

    def asked(self) -> dict[str, tuple[Any, ...]]:
        """Shapes as they are asked for, with ranges."""
        return {
            name: tuple(self._asked(dim) for dim in dims)
            for name, dims in self.shapes.items()
            if any(isinstance(dim, str) for dim in dims)
        }

    def _asked(self, dim: int | str) -> Any:
        if isinstance(dim, int):
            return dim
        low, high = self.ranges[dim]
        return low if low == high else Span(low, high)

    def corners(self) -> list[dict[str, int]]:
        """Sizes at which it is run: the least, the greatest, a mixture of both, and some between."""
        low = {name: ends[0] for name, ends in self.ranges.items()}
        high = {name: ends[1] for name, ends in self.ranges.items()}
        if low == high:
            return [low, low]
        mixed = {name: ends[int(self.rng.integers(0, 2))] for name, ends in self.ranges.items()}
        between = {name: int(self.rng.integers(a, b + 1)) for name, (a, b) in self.ranges.items()}
        return [low, high, mixed, between]

    def drawn(self, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        draw = {}
        for value in self.inputs:
            dims = self.shapes[value.name]
            shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in dims)
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            if make := self.makers.get(value.name):
                array = np.asarray(make(rng, shape, sizes))
            elif dtype.kind == "b":
                array = rng.random(shape) < 0.7
            elif dtype.kind in "iu":
                info = np.iinfo(dtype)
                array = rng.integers(info.min if dtype.itemsize == 1 else 0, min(info.max, 127) + 1, shape)
            else:
                array = rng.standard_normal(shape)
            draw[value.name] = np.asarray(array).astype(dtype)
        return draw


KINDS: dict[str, Callable[[Block], None]] = {}


def kind(make: Callable[[Block], None]) -> Callable[[Block], None]:
    KINDS[make.__name__] = make
    return make


def below(limit: int | str, least: int = 0) -> Maker:
    """Whole numbers below a limit, which may be a size."""

    def make(rng: np.random.Generator, shape: tuple[int, ...], sizes: Mapping[str, int]) -> np.ndarray:
        return rng.integers(least, sizes[limit] if isinstance(limit, str) else limit, shape)

    return make
