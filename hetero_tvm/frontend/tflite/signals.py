"""TensorFlow Lite's Fourier transforms as ONNX nodes: complex numbers are pairs along one more axis."""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.frontend.tflite.op import Op


def _transformed(op: Op) -> None:
    """``RFFT2D``: of the last two axes, cut or filled with zeros to given lengths."""
    lengths, shape = op.ints(1), list(op.shape())
    x = op.raw()
    for axis, length in zip((-2, -1), lengths, strict=True):
        extent = shape[axis]
        if length < extent:
            x = op.emit("Slice", x, op.const([0]), op.const([length]), op.const([axis]))
        elif length > extent:
            x = op.emit("Pad", x, op.const([0, length - extent]), "", op.const([axis]))
        shape[axis] = length
    rank = len(shape)
    x = op.reshaped(x, [*shape, 1])
    x = op.emit("DFT", x, "", op.const(rank - 1), onesided=1)
    if lengths[0] != 1:
        x = op.emit("DFT", x, "", op.const(rank - 2))
    op.give_raw(x)


def _part(index: int) -> Callable[[Op], None]:
    """``REAL`` and ``IMAG``."""
    return lambda op: op.give_raw(op.emit("Gather", op.raw(), op.const(index), axis=len(op.shape())))


def _magnitude(op: Op) -> None:
    """``COMPLEX_ABS``."""
    op.give_raw(op.emit("ReduceL2", op.raw(), op.const([len(op.shape())]), keepdims=0))


SIGNALS: dict[str, Callable[[Op], None]] = {
    "RFFT2D": _transformed,
    "REAL": _part(0),
    "IMAG": _part(1),
    "COMPLEX_ABS": _magnitude,
}
"""Translations of Fourier transforms and of what reads their results."""
