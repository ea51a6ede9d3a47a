"""Moves of whole tensors: copies, paddings and repetitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_tvm.frontend.onnx.graph.body import as_text
from hetero_tvm.frontend.onnx.operators.common import Inputs, static_shape
from hetero_tvm.host.tvm import Expr, relax, tvm

_PADS = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
"""Mode of ONNX -> that of Relax."""


_FARTHEST_DIAGONAL = 1 << 30
"""Diagonal beside all elements of any matrix; sums with extents are int32 numbers."""


def _pad(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Relax's own pad; TVM's converter leaves kernels, at which no pass can look."""
    x, *given = inputs
    arrays = [g.value.numpy() if isinstance(g, tvm.ir.GenericConst) else None for g in given]
    pads, value, axes = (arrays + [None] * 3)[:3]
    mode = as_text(attrs.get("mode", "constant"))
    if mode not in _PADS or pads is None or pads.min(initial=0) < 0:
        return None
    told = given[1] if len(given) > 1 and value is None else None
    if any(g is not None and a is None and g is not told for g, a in zip(given, arrays, strict=True)):
        return None
    rank = len(x.ty.shape)
    axes = range(rank) if axes is None else [int(axis) % rank for axis in axes]
    width = np.zeros((rank, 2), "int64")
    width[list(axes)] = pads.reshape(2, -1).T
    shape = static_shape(x)
    if mode == "wrap" and (shape is None or (width.max(axis=1) > shape).any()):
        return None
    if told is not None and mode == "constant":
        return _filled(x, width, told)
    constant = 0.0 if value is None else float(value.reshape(()))
    if value is not None and value.dtype.kind in "iu" and int(constant) != int(value.reshape(())):
        return _filled(x, width, given[1])  # an attribute of a pad is a float64
    return relax.op.nn.pad(x, [int(w) for w in width.reshape(-1)], _PADS[mode], constant)


def _filled(x: Expr, width: np.ndarray, value: Expr) -> Expr | None:
    """``x`` between elements of ``value``, known at run time, or a byte that a quantiser wrote."""
    shape = static_shape(x)
    if shape is None:
        return None
    padded = width.any(axis=1)
    inside = relax.op.full(
        [e if w else 1 for e, w in zip(shape, padded, strict=True)], relax.const(1.0), "float32"
    )
    amounts = [int(amount) for amount in width.reshape(-1)]
    mask = relax.op.greater(relax.op.nn.pad(inside, amounts, "constant", 0.0), relax.const(0.0))
    filled = relax.op.reshape(value, [1] * len(shape))
    return relax.op.where(mask, relax.op.nn.pad(x, amounts, "constant", 0.0), filled)


def _tiled(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Repetitions as one operator; TVM's converter leaves a kernel, at which no pass can look."""
    x, repeats = inputs
    if not isinstance(repeats, tvm.ir.GenericConst):
        return None
    counts = [int(count) for count in repeats.value.numpy()]
    return relax.op.tile(x, counts) if all(count > 0 for count in counts) else None


def _triangle(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """A triangle beside a diagonal that lies farther away than any element, of which TVM overflows."""
    x, *given = inputs
    if not given or not isinstance(given[0], tvm.ir.GenericConst):
        return None
    diagonal = int(given[0].value.numpy().reshape(-1)[0])
    if abs(diagonal) <= _FARTHEST_DIAGONAL:
        return None
    diagonal = max(-_FARTHEST_DIAGONAL, min(diagonal, _FARTHEST_DIAGONAL))
    return relax.op.triu(x, diagonal) if attrs.get("upper", 1) else relax.op.tril(x, diagonal)


def _dropped_out(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """Dropout outside of training, inside of branches and rounds: a copy, and a mask that holds everywhere.

    TVM's converter makes one of any, in training too, with a mask of the data's type.
    """
    x, ratio, training = (*inputs, None, None)[:3]
    on = training is not None
    if isinstance(training, tvm.ir.GenericConst):
        on = bool(training.value.numpy().any())
    if on and not (isinstance(ratio, tvm.ir.GenericConst) and float(ratio.value.numpy().item()) == 0.0):
        raise ValueError(
            "training_mode must be known to be false, or the ratio to be 0: export for inference"
        )
    if attrs["tvm_custom"]["num_outputs"] == 1:
        return x
    return relax.Tuple([x, relax.const(np.ones(static_shape(x) or (), "bool"))])


MOVES: dict[str, Callable[[Inputs, dict[str, Any]], Expr | None]] = {
    "Dropout": _dropped_out,
    "Pad": _pad,
    "Tile": _tiled,
    "Trilu": _triangle,
}
"""Operator -> our converter."""
