"""Converters of operators that read and write at places that a tensor tells (GatherND, ScatterND)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_tvm.frontend.onnx.graph.body import as_text
from hetero_tvm.frontend.onnx.operators.common import Inputs, static_shape
from hetero_tvm.host.tvm import Expr, relax, tvm


def _checked_indices(inputs: Inputs, attrs: dict[str, Any]) -> None:
    """Leave an operator with an index per element to TVM, but check extents, and indices that are constants.

    Along other axes than its own an element is read or written where its index lies: beyond the data is
    foreign memory.
    """
    data, indices = inputs[0], inputs[1]
    shape, given = static_shape(data), static_shape(indices)
    if shape is None or given is None:
        return
    axis = attrs.get("axis", 0) % len(shape)
    wider = (there > size for n, (there, size) in enumerate(zip(given, shape, strict=False)) if n != axis)
    if len(given) != len(shape) or any(wider):
        raise ValueError(f"indices of {tuple(given)} reach beyond data of {tuple(shape)}")
    if not isinstance(indices, tvm.ir.GenericConst):
        return
    size, values = shape[axis], indices.value.numpy()
    if values.size and not -size <= values.min() <= values.max() < size:
        raise ValueError(f"an index lies outside [{-size}, {size})")


def _gather_nd(inputs: Inputs, attrs: dict[str, Any]) -> None:
    """Leave the operator to TVM, but check batches, and indices that are constants."""
    shape, indices = static_shape(inputs[0]), inputs[1]
    given, first = static_shape(indices), attrs.get("batch_dims", 0)
    if shape is not None and given is not None and shape[:first] != given[:first]:
        raise ValueError(f"batches of {shape[:first]} and of {given[:first]}")
    if shape is None or not isinstance(indices, tvm.ir.GenericConst):
        return
    values = indices.value.numpy()
    _check(values, np.array(shape[first : first + values.shape[-1]], values.dtype))


def _check(values: np.ndarray, extents: np.ndarray) -> None:
    """Refuses places (the last axis has an index for each of ``extents``) that lie outside of a tensor."""
    if values.size and not ((values >= -extents) & (values < extents)).all():
        raise ValueError("an index lies outside the tensor")


def _of_truths(
    convert: Callable[[Inputs, dict[str, Any]], Expr | None],
) -> Callable[[Inputs, dict[str, Any]], Expr | None]:
    """Converter of scatters that writes truth values as numbers: a sum is "or", the larger one, and a product
    "and"; TVM's kernels of them do not compile."""

    def converted(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
        data, indices, updates = inputs[0], inputs[1], inputs[2]
        reduction = as_text(attrs.get("reduction", "none"))
        if str(data.ty.dtype) != "bool" or reduction == "none":
            return convert(inputs, attrs)
        emit = relax.BlockBuilder.current().emit
        numbers = [emit(relax.op.astype(data, "int8")), indices, emit(relax.op.astype(updates, "int8"))]
        kind = "max" if reduction in ("add", "max") else "min"
        result = convert(numbers, {**attrs, "reduction": kind})
        return None if result is None else relax.op.astype(result, "bool")

    return converted


def _scatter_nd(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Scatter by constant indices, counted from the beginning; of others by the larger or smaller of two.

    TVM's converter writes seven bindings for constants, behind which nobody sees that they are known.
    """
    data, indices, updates = inputs[0], inputs[1], inputs[2]
    shape, given = static_shape(data), static_shape(indices)
    reduction = as_text(attrs.get("reduction", "none"))
    known = isinstance(indices, tvm.ir.GenericConst)
    if shape is None or given is None or not (known or reduction in ("max", "min")):
        return None
    extents = np.array(shape[: given[-1]], "int64")
    if known:
        values = indices.value.numpy().astype("int64")
        _check(values, extents)
        places = relax.const(np.where(values < 0, values + extents, values))
    else:
        rising = relax.op.add(indices, relax.const(extents, "int64"))
        places = relax.op.where(relax.op.less(indices, relax.const(0, "int64")), rising, indices)
    return relax.op.scatter_nd(data, places, updates, "update" if reduction == "none" else reduction)


def _scatter_elements(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Scatter into the part of the data that the indices span; TVM's takes them for as wide as the data."""
    _checked_indices(inputs, attrs)
    data, indices, updates = inputs[0], inputs[1], inputs[2]
    shape, given = static_shape(data), static_shape(indices)
    if shape is None or given is None:
        return None
    axis = attrs.get("axis", 0) % len(shape)
    short = [n for n in range(len(shape)) if n != axis and given[n] < shape[n]]
    reduction = as_text(attrs.get("reduction", "none"))
    if not short and reduction in ("max", "min"):  # PyTorch's tracing exporter has them before opset 18 too
        return relax.op.scatter_elements(data, indices, updates, axis=axis, reduction=reduction)
    if not short:
        return None
    if 0 in given:
        return data
    part = relax.op.strided_slice(data, short, [0] * len(short), [given[n] for n in short])
    reduction = "update" if reduction == "none" else reduction
    result = relax.op.scatter_elements(part, indices, updates, axis=axis, reduction=reduction)
    for n in reversed(short):  # what lies behind the part along one axis after the other
        begin = [given[n] if m == n else 0 for m in short]
        end = [given[m] if m < n else shape[m] for m in short]
        result = relax.op.concat([result, relax.op.strided_slice(data, short, begin, end)], axis=n)
    return result


PLACES: dict[str, Callable[[Inputs, dict[str, Any]], Expr | None]] = {
    "GatherElements": _checked_indices,
    "GatherND": _gather_nd,
    "Scatter": _of_truths(_scatter_elements),
    "ScatterElements": _of_truths(_scatter_elements),
    "ScatterND": _of_truths(_scatter_nd),
}
"""Operator -> our converter."""
