"""Inputs whose value never changes (a sample rate, a switch), made constants of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hetero_tvm.errors import UsageError
from hetero_tvm.frontend.onnx.graph.constants import tensor_type


def fix_values(model: onnx.ModelProto, values: Mapping[str, Any]) -> onnx.ModelProto:
    """The model itself, or a copy without the inputs that ``values`` names: they are initializers of it.

    Parameters
    ----------
    values : numbers or arrays by input name.  A number fills an input of known extents.

    Raises
    ------
    UsageError : names that are no inputs, values of another shape or that the input's type cannot hold (all
        are listed).
    """
    if not values:
        return model
    inputs = {value.name: value for value in model.graph.input}
    problems = []
    tensors = []
    for name, value in values.items():
        if name not in inputs:
            problems.append(f"there is no input {name!r}; inputs are {', '.join(inputs)}")
            continue
        try:
            tensors.append(numpy_helper.from_array(_fitted(inputs[name], value), name))
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise UsageError(
            "these values do not fit the model",
            problems=problems,
            hint="a value is --value NAME=NUMBER, or NAME=[1,2] for an array",
        )
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    kept = [value for value in model.graph.input if value.name not in values]
    # A value stands for the default that an initializer of an input's name is.
    weights = [tensor for tensor in model.graph.initializer if tensor.name not in values]
    del fixed.graph.input[:], fixed.graph.initializer[:]
    fixed.graph.input.extend(kept)
    fixed.graph.initializer.extend([*weights, *tensors])
    return fixed


def _fitted(declared: onnx.ValueInfoProto, value: Any) -> np.ndarray:
    """The value as an array of an input's type; ValueError says what does not fit."""
    element, dims = tensor_type(declared.type.tensor_type)
    if not element:
        raise ValueError("it is no tensor")
    given = np.asarray(value)
    if given.dtype == object:
        raise ValueError("its rows have different lengths")
    if dims is not None and given.ndim == 0 and None not in dims:
        given = np.broadcast_to(given, dims)
    if dims is not None and (
        len(dims) != given.ndim or any(d not in (None, n) for d, n in zip(dims, given.shape, strict=True))
    ):
        wanted = ", ".join("?" if dim is None else str(dim) for dim in dims)
        raise ValueError(f"its shape is [{', '.join(map(str, given.shape))}], the input's [{wanted}]")
    dtype = helper.tensor_dtype_to_np_dtype(element)
    with np.errstate(all="ignore"):
        made = np.array(given, dtype)
    whole = made.dtype.kind in "iub"
    if (given.dtype.kind not in "iufb") or (whole and not np.array_equal(made, given)):
        raise ValueError(f"the input is {dtype}, which does not hold {value!r}")
    return made
