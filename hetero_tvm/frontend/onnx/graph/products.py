"""Products with matrices of mostly zeros, in which NaN and infinity reach no further than their weights."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from hetero_tvm.frontend.onnx.graph.body import Body


def sparse_product(b: Body, x: str, weights: str, dtype: str) -> str:
    """``x @ weights`` of floats, where ``0 * NaN`` and ``0 * infinity`` count for nothing.

    What is finite is multiplied; what is not is counted beside it, by the signs that it arrives with.
    """

    def where(test: str, value: float) -> str:
        return b.op("Where", test, b.const(value, dtype), b.const(0, dtype))

    def places(test: str) -> str:
        return b.op("Cast", test, to=TensorProto.FLOAT)

    nan, infinite = b.op("IsNaN", x), b.op("IsInf", x)
    finite = b.op("Where", b.op("Or", nan, infinite), b.const(0, dtype), x)
    y = b.op("MatMul", finite, weights)
    zero = b.const(0, dtype)
    positive, negative = places(b.op("Greater", weights, zero)), places(b.op("Less", weights, zero))
    upper = places(b.op("IsInf", x, detect_negative=0))
    lower = places(b.op("IsInf", x, detect_positive=0))
    counts = (
        (np.nan, b.op("MatMul", places(nan), b.op("Add", positive, negative))),
        (np.inf, b.op("Add", b.op("MatMul", upper, positive), b.op("MatMul", lower, negative))),
        (-np.inf, b.op("Add", b.op("MatMul", upper, negative), b.op("MatMul", lower, positive))),
    )
    for value, count in counts:  # both infinities make NaN
        y = b.op("Add", y, where(b.op("Greater", count, b.const(0.0)), value))
    return y
