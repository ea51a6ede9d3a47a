"""Forms in which models have few bits: each makes a random case of its kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper

from tests.campaign.few_bits.cases import FLOAT32, STEP, Arrays, Case, Product, Steps

_DRAWS = 2
_RATIOS = {"bf16": 2.0**-7, "f16": 2.0**-9}
"""Error of a product whose operands and result are rounded beside the sum of magnitudes."""


def _product(rng: np.random.Generator, convolutions: bool = True) -> Product:
    if not convolutions or rng.random() < 0.5:
        k = int(rng.choice([1, 3, 7, 16, 31, 64, 65, 130, 257, 600]))
        n = int(rng.choice([1, 2, 5, 16, 17, 33, 64, 100]))
        rows = int(rng.choice([1, 2, 3, 7, 16, 33]))
        batch = [(), (1,), (2,), (2, 3)][int(rng.integers(4))]
        return Product((*batch, rows, k), (k, n), None)
    group = int(rng.choice([1, 1, 1, 2, 4]))
    into, out = (int(rng.choice([1, 2, 3, 5, 8, 16, 20])) * group for _ in range(2))
    if rng.random() < 0.2:  # depthwise
        group = into = out
    kernel, dilations = (
        [int(v) for v in rng.choice([1, 2, 3, 5], 2)],
        [int(v) for v in rng.choice([1, 1, 2], 2)],
    )
    size = [int(rng.integers((k - 1) * d + 1, 18)) for k, d in zip(kernel, dilations, strict=True)]
    attributes = {
        "kernel_shape": kernel,
        "strides": [int(v) for v in rng.choice([1, 1, 2, 3], 2)],
        "pads": [int(v) for v in rng.integers(0, 3, 4)],
        "dilations": dilations,
        "group": group,
    }
    return Product((int(rng.integers(1, 3)), into, *size), (out, into // group, *kernel), attributes)


def _steps(rng: np.random.Generator, dtype: str, symmetric: bool = False, size: float = 1.0) -> Steps:
    info = np.iinfo(dtype)
    zero = rng.choice(
        [info.min, info.max, (info.min + info.max + 1) // 2, rng.integers(info.min, info.max + 1)]
    )
    if symmetric:
        zero = 0
    scale = np.float32(size * rng.uniform(0.5, 2) * 10.0 ** rng.integers(-3, 2))
    return Steps(scale, np.array(zero, dtype), np.dtype(dtype))


def _whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Whole numbers of a type, some of them all at one of its ends."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    kind = rng.integers(4)
    if kind == 0:
        return np.full(shape, rng.choice([low, high]), dtype)
    if kind == 1:
        return rng.choice([low, high], shape).astype(dtype)
    return rng.integers(low, high + 1, shape).astype(dtype)


def _weights(rng: np.random.Generator, product: Product, signed: bool) -> tuple[np.ndarray, Steps]:
    """Weights of 8 bits; signed ones have a scale per channel, or one."""
    steps = _steps(rng, "int8" if signed else "uint8", symmetric=signed)
    channels = product.w[product.channel_axis]
    if signed and rng.random() < 0.6:
        scale = (steps.scale * rng.uniform(0.2, 1, channels)).astype(np.float32)
        steps = Steps(scale, np.zeros(channels, np.int8), steps.dtype)
    return _whole(rng, product.w, steps.dtype), steps


def _centred(product: Product, array: np.ndarray, steps: Steps, weights: bool = False) -> np.ndarray:
    """Whole numbers without their zero point, in float64, where sums of these extents are exact."""
    zero = steps.zero.astype(np.float64)
    if weights and zero.ndim:
        zero = zero.reshape([-1 if a == product.channel_axis else 1 for a in range(array.ndim)])
    return array.astype(np.float64) - zero


def _in_steps(
    case: Case, reals: Callable[[Arrays], tuple[np.ndarray, np.ndarray]], rng: np.random.Generator
) -> Steps:
    """Steps of a result whose real values and sums of magnitudes are given; sets what is exact."""
    steps = _steps(rng, str(rng.choice(["uint8", "int8"])))
    spread = float(np.abs(reals(case.draws[0])[0]).max()) or 1.0
    steps = steps._replace(scale=np.float32(spread / rng.choice([20, 100, 250, 1000])))
    low, high = steps.ends

    def exact(draw: Arrays) -> tuple[np.ndarray, np.ndarray]:
        real, magnitude = reals(draw)
        scale = float(steps.scale)
        return np.clip(real / scale + float(steps.zero), low, high), STEP + FLOAT32 * magnitude / scale

    case.exact = exact
    case.result = helper.np_dtype_to_tensor_dtype(steps.dtype)
    return steps


def _quantisers(rng: np.random.Generator) -> Case:
    """A product between dequantisers and a quantiser: bias, residual, bounds."""
    case, product = Case(), _product(rng)
    x_steps = _steps(rng, str(rng.choice(["uint8", "int8"])))
    w, w_steps = _weights(rng, product, signed=rng.random() < 0.8)
    case.draws = [{"x": _whole(rng, product.x, x_steps.dtype)} for _ in range(_DRAWS)]
    scale = product.along_channels(float(x_steps.scale) * w_steps.scale.astype(np.float64))
    centred_w = _centred(product, w, w_steps, weights=True)

    def sums(draw: Arrays) -> tuple[np.ndarray, np.ndarray]:
        x = _centred(product, draw["x"], x_steps)
        return product.of(x, centred_w) * scale, product.of(abs(x), abs(centred_w)) * scale

    shape, typical = sums(case.draws[0])[0].shape, float(np.abs(sums(case.draws[0])[0]).mean()) or 1.0
    bias = product.along_channels(np.zeros(product.w[product.channel_axis]))
    inputs = [_dequantised(case, "x", x_steps), _dequantised(case, case.const("w", w), w_steps, product)]
    if rng.random() < 0.6:
        values = rng.standard_normal(product.w[product.channel_axis]).astype(np.float32) * np.float32(typical)
        bias = product.along_channels(values.astype(np.float64))
        name = case.const("b", values)
        if product.attributes is not None:
            inputs.append(name)
    value = case.node(product.op, inputs, "product", **(product.attributes or {}))
    if "b" in case.weights and product.attributes is None:
        value = case.node("Add", [value, "b"], "biased")
    r_steps = None
    if rng.random() < 0.4:
        r_steps = _steps(rng, str(x_steps.dtype))._replace(scale=np.float32(typical / 50))
        for draw in case.draws:
            draw["r"] = _whole(rng, shape, r_steps.dtype)
        value = case.node("Add", [value, _dequantised(case, "r", r_steps)], "added")
    low, high = -np.inf, np.inf
    bounds = rng.integers(3)
    if bounds == 1:
        low, value = 0.0, case.node("Relu", [value], "relu")
    elif bounds == 2:
        low, high = (
            float(np.float32(v * typical)) for v in (rng.choice([-1.0, 0.0, 0.3]), rng.choice([0.6, 2.0]))
        )
        ends = [case.const(name, np.float32(v)) for name, v in (("low", low), ("high", high))]
        value = case.node("Clip", [value, *ends], "clip")

    def reals(draw: Arrays) -> tuple[np.ndarray, np.ndarray]:
        real, magnitude = sums(draw)
        real, magnitude = real + bias, magnitude + abs(bias)
        if r_steps is not None:
            residual = (draw["r"].astype(np.float64) - float(r_steps.zero)) * float(r_steps.scale)
            real, magnitude = real + residual, magnitude + abs(residual)
        return np.clip(real, low, high), magnitude

    steps = _in_steps(case, reals, rng)
    case.node("QuantizeLinear", [value, case.const("ys", steps.scale), case.const("yz", steps.zero)], "y")
    return case


def _dequantised(case: Case, name: str, steps: Steps, product: Product | None = None) -> str:
    scale, zero = case.const(f"{name}_scale", steps.scale), case.const(f"{name}_zero", steps.zero)
    axis = {} if product is None or not steps.scale.ndim else {"axis": product.channel_axis}
    return case.node("DequantizeLinear", [name, scale, zero], f"{name}_real", **axis)


def _operators(rng: np.random.Generator) -> Case:
    """``QLinearMatMul`` and ``QLinearConv``."""
    case, product = Case(), _product(rng)
    x_steps = _steps(rng, "uint8" if rng.random() < 0.6 else "int8")
    w, w_steps = _weights(rng, product, signed=x_steps.dtype == np.int8 or rng.random() < 0.7)
    case.draws = [{"x": _whole(rng, product.x, x_steps.dtype)} for _ in range(_DRAWS)]
    centred_w = _centred(product, w, w_steps, weights=True)
    scale = product.along_channels(float(x_steps.scale) * w_steps.scale.astype(np.float64))
    whole_bias = np.zeros(product.w[product.channel_axis], np.int32)
    if product.attributes is not None and rng.random() < 0.6:
        whole_bias = rng.integers(-20000, 20000, whole_bias.shape).astype(np.int32)
    bias = product.along_channels(whole_bias.astype(np.float64))

    def reals(draw: Arrays) -> tuple[np.ndarray, np.ndarray]:
        x = _centred(product, draw["x"], x_steps)
        sums = product.of(x, centred_w) + bias
        return sums * scale, abs(sums) * scale

    y_steps = _in_steps(case, reals, rng)
    if x_steps.dtype != y_steps.dtype:  # ONNX Runtime has one type of both
        y_steps = y_steps._replace(zero=np.array(int(x_steps.zero), x_steps.dtype), dtype=x_steps.dtype)
        low, high = y_steps.ends
        case.result = helper.np_dtype_to_tensor_dtype(y_steps.dtype)
        size, zero = float(y_steps.scale), float(y_steps.zero)
        case.exact = lambda draw: (
            np.clip(reals(draw)[0] / size + zero, low, high),
            STEP + FLOAT32 * reals(draw)[1] / size,
        )
    inputs = ["x"]
    for name, array, steps in (("x", None, x_steps), ("w", w, w_steps)):
        if array is not None:
            inputs.append(case.const(name, array))
        inputs += [case.const(f"{name}_scale", steps.scale), case.const(f"{name}_zero", steps.zero)]
    inputs += [case.const("y_scale", y_steps.scale), case.const("y_zero", y_steps.zero)]
    if product.attributes is not None and whole_bias.any():
        inputs.append(case.const("b", whole_bias))
    case.node(f"QLinear{product.op}", inputs, "y", **(product.attributes or {}))
    return case


def _integers(rng: np.random.Generator) -> Case:
    """``MatMulInteger`` and ``ConvInteger``: the sums."""
    case, product = Case(), _product(rng)
    x_steps = _steps(rng, "uint8")
    w, w_steps = _weights(rng, product, signed=rng.random() < 0.6)
    w_steps = w_steps._replace(zero=np.array(w_steps.zero.reshape(-1)[0], w_steps.dtype))
    case.draws = [{"x": _whole(rng, product.x, x_steps.dtype)} for _ in range(_DRAWS)]
    centred_w = _centred(product, w, w_steps, weights=True)

    def exact(draw: Arrays) -> tuple[np.ndarray, np.ndarray]:
        sums = product.of(_centred(product, draw["x"], x_steps), centred_w)
        return sums, np.zeros(sums.shape)

    case.exact, case.result = exact, TensorProto.INT32
    inputs = ["x", case.const("w", w), case.const("x_zero", x_steps.zero), case.const("w_zero", w_steps.zero)]
    case.node(f"{product.op}Integer", inputs, "y", **(product.attributes or {}))
    return case


def _dynamic(rng: np.random.Generator) -> Case:
    """``DynamicQuantizeLinear`` before ``MatMulInteger``, as dynamic quantisation writes it."""
    case, product = Case(), _product(rng, convolutions=False)
    w, w_steps = _weights(rng, product, signed=True)
    shift = rng.choice([0.0, 0.0, 3.0, -3.0])
    case.draws = [{"x": (rng.standard_normal(product.x) + shift).astype(np.float32)} for _ in range(_DRAWS)]
    centred_w = _centred(product, w, w_steps, weights=True)

    def exact(draw: Arrays) -> tuple[np.ndarray, np.ndarray]:
        x = draw["x"]
        low, high = np.minimum(x.min(), np.float32(0)), np.maximum(x.max(), np.float32(0))
        scale = np.float32((high - low) / np.float32(255)) or np.float32(1)
        zero = np.clip(np.rint(-low / scale), 0, 255)
        places = x.astype(np.float64) / float(scale)
        whole = np.clip(np.rint(places) + zero, 0, 255) - zero
        unsure = (abs(abs(places - np.floor(places)) - 0.5) < 1e-4).astype(np.float64)
        factor = float(scale) * w_steps.scale.astype(np.float64)
        room = unsure @ abs(centred_w) + FLOAT32 * (abs(whole) @ abs(centred_w))
        return whole @ centred_w * factor, room * factor

    case.exact = exact
    case.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "quantise"))
    ends = [case.const("w", w), "z", case.const("w_zero", np.array(0, np.int8))]
    whole = case.node(
        "Cast", [case.node("MatMulInteger", ["q", *ends], "sums")], "floats", to=TensorProto.FLOAT
    )
    scales = case.node("Mul", ["s", case.const("w_scale", w_steps.scale)], "scales")
    case.node("Mul", [whole, scales], "y")
    return case


def _blocks(rng: np.random.Generator) -> Case:
    """``MatMulNBits``: weights of 4 or 8 bits with a scale per block."""
    case, bits, block = Case(), int(rng.choice([4, 8])), int(rng.choice([16, 32, 64, 128]))
    k, n = block * int(rng.integers(1, 6)), int(rng.choice([1, 5, 16, 17, 32, 70]))
    rows = int(rng.choice([1, 2, 7, 17]))
    parts = k // block
    whole = rng.integers(0, 1 << bits, (n, parts, block)).astype(np.uint8)
    packed = whole if bits == 8 else whole[..., ::2] | (whole[..., 1::2] << 4)
    scales = (rng.uniform(0.01, 0.1, (n, parts)) * rng.choice([-1, 1], (n, parts))).astype(np.float32)
    zeros = np.full((n, parts), 1 << (bits - 1), np.uint8)
    inputs = ["x", case.const("w", packed), case.const("scales", scales.reshape(-1))]
    if rng.random() < 0.6:
        zeros = rng.integers(0, 1 << bits, (n, parts)).astype(np.uint8)
        even = np.pad(zeros, ((0, 0), (0, parts % 2)))
        stored = zeros if bits == 8 else even[:, ::2] | (even[:, 1::2] << 4)
        inputs.append(case.const("zeros", stored.reshape(-1)))
    w = ((whole.astype(np.float64) - zeros[..., None]) * scales[..., None]).reshape(n, k).T
    case.draws = [{"x": rng.standard_normal((rows, k)).astype(np.float32)} for _ in range(_DRAWS)]
    level = int(rng.choice([0, 1, 4]))

    def exact(draw: Arrays) -> tuple[np.ndarray, np.ndarray]:
        x = draw["x"].astype(np.float64)
        moved = 2 * FLOAT32 * abs(x)
        if level == 4:
            blocks = abs(x).reshape(rows, parts, block).max(-1, keepdims=True)
            moved = moved + np.repeat(blocks, block, -1).reshape(rows, k) / 250
        return x @ w, moved @ abs(w)

    case.exact = exact
    sizes = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": level}
    case.node("MatMulNBits", inputs, "y", domain="com.microsoft", **sizes)
    return case


def _narrow(rng: np.random.Generator) -> Case:
    """A model of float32 that is compiled with ``--precision`` bf16 or f16."""
    case, product = Case(precision=str(rng.choice(["bf16", "f16"]))), _product(rng)
    w = (rng.standard_normal(product.w) * rng.choice([0.05, 1.0])).astype(np.float32)
    bias = rng.standard_normal(product.w[product.channel_axis]).astype(np.float32)
    along = product.along_channels(bias.astype(np.float64))
    case.draws = [{"x": rng.standard_normal(product.x).astype(np.float32)} for _ in range(_DRAWS)]
    relu = rng.random() < 0.5

    def exact(draw: Arrays) -> tuple[np.ndarray, np.ndarray]:
        x, wide = draw["x"].astype(np.float64), w.astype(np.float64)
        real = product.of(x, wide) + along
        room = _RATIOS[case.precision or ""] * (product.of(abs(x), abs(wide)) + abs(along))
        return np.maximum(real, 0) if relu else real, room + 1e-6

    case.exact = exact
    inputs = ["x", case.const("w", w)] + ([case.const("b", bias)] if product.attributes is not None else [])
    value = case.node(product.op, inputs, "product", **(product.attributes or {}))
    if product.attributes is None:
        value = case.node("Add", [value, case.const("b", bias)], "biased")
    case.node("Relu" if relu else "Identity", [value], "y")
    return case


FORMS: dict[str, Callable[[np.random.Generator], Case]] = {
    "quantisers": _quantisers,
    "operators": _operators,
    "integers": _integers,
    "dynamic": _dynamic,
    "blocks": _blocks,
    "narrow": _narrow,
}
