"""Steps that add quantised operators."""

from __future__ import annotations

import numpy as np

from tests.campaign.graphs.builder import Builder
from tests.campaign.graphs.products import image, window
from tests.campaign.graphs.registry import operator
from tests.campaign.graphs.values import CONTRIB, Rejected, Value, onnx_type

BYTES = ("int8", "uint8")


def _steps(b: Builder, shape=()) -> Value:
    return b.const(b.rng.uniform(0.02, 0.2, shape), "float32")


def _zero(b: Builder, dtype: str, shape=()) -> Value:
    low, high = (0, 255) if dtype == "uint8" else (-20, 20)
    return b.const(
        b.rng.integers(low // 2, high // 2 + 1, shape) if b.chance(0.7) else np.zeros(shape), dtype
    )


def quantize(b: Builder, x: Value, dtype: str | None = None, axis: int | None = None) -> tuple[Value, list]:
    """A QuantizeLinear, and its scale and zero point."""
    dtype = dtype or b.one(BYTES)
    shape = () if axis is None else (x.shape[axis],)
    scale = _steps(b, shape)
    extra = [_zero(b, dtype, shape)] if dtype != "uint8" or b.chance(0.7) else []
    steps = np.asarray(x.sample, np.float64)
    wide = np.asarray(scale.sample, np.float64)
    if axis is not None:
        wide = wide.reshape([-1 if n == axis % x.rank else 1 for n in range(x.rank)])
    with np.errstate(all="ignore"):
        distance = np.abs(np.abs(steps / wide) % 1 - 0.5)
    if not np.isfinite(steps).all() or distance.min(initial=1) < 1e-4:
        raise Rejected("near a step")
    attributes = {"axis": axis} if axis is not None and b.opset >= 13 else {}
    return b.op("QuantizeLinear", [x, scale, *extra], **attributes), [scale, *extra]


@operator(5)
def there_and_back(b: Builder) -> None:
    """Quantise and dequantise, perhaps with another scale, perhaps with something between."""
    x = b.pick(("float32",))
    axis = b.axis(x) if b.opset >= 13 and x.rank and b.chance(0.3) else None
    q, parameters = quantize(b, x, axis=axis)
    attributes = {"axis": axis} if axis is not None else {}
    if b.chance(0.3):
        q = (
            b.op("Reshape", [q, b.const([-1], "int64")])
            if axis is None and b.chance(0.5)
            else b.op("Identity", [q])
        )
    if b.chance(0.25) and axis is None:
        parameters = [_steps(b), *parameters[1:]]
    y = b.op("DequantizeLinear", [q, *parameters], **attributes)
    if b.chance(0.2):
        b.output(q)
    if b.chance(0.5):
        b.op(b.one(["Relu", "Sigmoid"]), [y])


@operator(3)
def quantised_matmul(b: Builder) -> None:
    """Dequantised operands of a product, and its result quantised."""
    x = b.pick(("float32",), 2, 3, where=lambda v: 0 < v.shape[-1] <= 64)
    q, p = quantize(b, x)
    a = b.op("DequantizeLinear", [q, *p])
    n = b.extent()
    dtype = b.one(BYTES)
    w = b.weight(dtype, (x.shape[-1], n), -100 if dtype == "int8" else 0, 120)
    per = b.opset >= 13 and b.chance(0.5)
    scale = _steps(b, (n,) if per else ())
    zero = [b.const(np.zeros(scale.shape), dtype)] if b.chance(0.6) or dtype == "int8" else []
    y = b.op("DequantizeLinear", [w, scale, *zero], **({"axis": 1} if per else {}))
    y = b.op("MatMul", [a, y])
    if b.chance(0.5):
        y = b.op("Add", [y, b.weight("float32", (n,))])
    if b.chance(0.3):
        y = b.op("Relu", [y])
    if b.chance(0.3):
        b.output(y)
    if b.chance(0.6):
        scale = b.const(0.5, "float32")
        zero = b.const(b.number(0, 9), b.one(BYTES))
        b.op("DequantizeLinear", [b.op("QuantizeLinear", [y, scale, zero]), scale, zero])


@operator(2)
def quantised_conv(b: Builder) -> None:
    x = image(b, b.one([2, 2, 1]), ("float32",))
    q, p = quantize(b, x)
    kernel = [b.one([1, 3]) for _ in x.shape[2:]]
    filters, group = b.number(1, 8), 1
    if b.chance(0.3):
        group = filters = x.shape[1]
    w = b.weight("int8", (filters, x.shape[1] // group, *kernel), -100, 100)
    per = b.opset >= 13 and b.chance(0.5)
    scale = _steps(b, (filters,) if per else ())
    zero = b.const(np.zeros(scale.shape), "int8")
    wide = b.op("DequantizeLinear", [w, scale, zero], **({"axis": 0} if per else {}))
    bias = [b.weight("float32", (filters,))] if b.chance(0.5) else []
    y = b.op("Conv", [b.op("DequantizeLinear", [q, *p]), wide, *bias], group=group, **window(b, x, kernel))
    if 0 in y.shape:
        raise Rejected("nothing left")
    if b.chance(0.5):
        y = b.op("Relu", [y])
    if b.chance(0.5):
        b.op("QuantizeLinear", [y, b.const(0.3, "float32"), b.const(3, "uint8")])


@operator(2)
def integer_products(b: Builder) -> None:
    dtype = b.one(BYTES)
    kind = b.one(["MatMulInteger", "QLinearMatMul", "ConvInteger", "QLinearConv"])
    low, high = (0, 200) if dtype == "uint8" else (-100, 100)
    if "Conv" in kind:
        x = b.fresh(dtype, (1, b.number(1, 4), b.number(3, 8), b.number(3, 8)), low, high, 0.1)
        w_type = dtype if kind == "ConvInteger" or b.chance(0.5) else "int8"
        w = b.weight(w_type, (b.number(1, 5), x.shape[1], 3, 3), 0 if w_type == "uint8" else -60, 60)
        n = w.shape[0]
    else:
        m, k, n = b.number(1, 5), b.number(1, 9), b.number(1, 9)
        x = b.fresh(dtype, (*b.shape(0, 1), m, k), low, high, 0.1)
        w_type = b.one(BYTES)
        w = b.weight(w_type, (k, n), 0 if w_type == "uint8" else -60, 60)
    if kind == "MatMulInteger":
        b.op(kind, [x, w, _zero(b, dtype), *([_zero(b, w_type)] if b.chance(0.5) else [])])
    elif kind == "ConvInteger":
        b.op(kind, [x, w, *([_zero(b, dtype)] if b.chance(0.7) else [])], **window(b, x, [3, 3]))
    elif kind == "QLinearMatMul":
        out = b.one(BYTES)
        b.op(
            kind,
            [
                x,
                _steps(b),
                _zero(b, dtype),
                w,
                _steps(b),
                _zero(b, w_type),
                b.const(2.0, "float32"),
                _zero(b, out),
            ],
        )
    else:
        out = b.one(BYTES)
        shape = (n,) if b.chance(0.4) else ()
        bias = [b.weight("int32", (n,), -500, 500)] if b.chance(0.5) else []
        zero = b.const(np.zeros(shape), w_type)
        b.op(
            kind,
            [
                x,
                _steps(b),
                _zero(b, dtype),
                w,
                _steps(b, shape),
                zero,
                b.const(2.0, "float32"),
                _zero(b, out),
                *bias,
            ],
            **window(b, x, [3, 3]),
        )


@operator(1)
def dynamic_quantisation(b: Builder) -> None:
    x = b.pick(("float32",), low=1, where=lambda v: v.sample.size > 0)
    q, scale, zero = b.node("DynamicQuantizeLinear", [x], 3)
    if x.rank >= 2 and x.shape[-1] <= 64 and b.chance(0.7):
        n = b.extent()
        w = b.weight(b.one(BYTES), (x.shape[-1], n), 0, 60)
        whole = b.op("MatMulInteger", [q, w, zero])
        real = b.op("Cast", [whole], to=onnx_type("float32"))
        b.op("Mul", [real, b.op("Mul", [scale, _steps(b)])])
    else:
        b.op("DequantizeLinear", [q, scale, zero])


@operator(1.5)
def contrib(b: Builder) -> None:
    """Operators of ONNX Runtime's own domain."""
    kind = b.one(
        [
            "Gelu",
            "FastGelu",
            "BiasGelu",
            "SkipLayerNormalization",
            "SkipSimplifiedLayerNormalization",
            "SimplifiedLayerNormalization",
            "FusedMatMul",
            "QuickGelu",
            "FusedConv",
        ]
    )
    if b.opset < 9:
        raise Rejected("older than these operators, which need Erf")
    x = b.pick(("float32",), 3, 3, where=lambda v: 0 not in v.shape)
    n = x.shape[-1]
    if kind == "Gelu":
        b.op(kind, [x], CONTRIB)
    elif kind == "QuickGelu":
        b.op(kind, [x], CONTRIB, alpha=b.one([1.702, 1.0]))
    elif kind in ("FastGelu", "BiasGelu"):
        b.op(kind, [x, b.weight("float32", (n,))], CONTRIB)
    elif kind in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"):
        skip = b.fresh("float32", x.shape)
        extra = [b.weight("float32", (n,))]
        if kind == "SkipLayerNormalization":
            extra.append(b.weight("float32", (n,)) if b.chance(0.7) else None)
        if b.chance(0.4):
            extra.append(b.weight("float32", (n,)))
        results = [True, False, False, True] if b.chance(0.3) else [True]
        while extra[-1] is None:
            extra.pop()
        b.node(kind, [x, skip, *extra], results, CONTRIB, epsilon=b.one([None, 1e-3]))
    elif kind == "SimplifiedLayerNormalization":
        raise Rejected("of the default domain, which has no such operator")
    elif kind == "FusedMatMul":
        turn = b.number(0, 1)
        y = b.fresh("float32", (5, n) if turn else (n, 5), -0.7, 0.7, 0.8)
        b.op(kind, [x, y], CONTRIB, transB=turn, alpha=b.one([None, 0.5]))
    else:
        i = image(b, 2, ("float32",))
        w = b.weight("float32", (3, i.shape[1], 1, 1), -0.5, 0.5)
        b.op(kind, [i, w], CONTRIB, activation=b.one(["Relu", "Tanh", "Sigmoid"]))
