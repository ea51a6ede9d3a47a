"""Blocks of convolutions with every epilogue, on images and signals of odd and open sizes."""

from __future__ import annotations

import numpy as np

from tests.campaign.blocks.block import F32, Block, kind


def _fit(b: Block, rank: int) -> list[int | str]:
    """Open extents of an image, a signal or a volume."""
    most = {1: 41, 2: 19, 3: 7}[rank]
    return [b.size(name, b.pick(1, 2, 5), most, 0.3) for name in "dhw"[3 - rank :]]


def activation(b: Block, x: str, channels: int, rank: int = 2) -> str:
    form = b.pick(
        *("relu", "relu6", "clip", "silu", "hswish", "hswish by hand", "prelu", "prelu1", "leaky", "mish"),
        *("gelu", "quick", "tanh", "elu", "none", "abs", "hsigmoid", "softplus", "selu", "square", "exp neg"),
    )
    if form == "relu":
        return b.node("Relu", x)
    if form == "relu6":
        return b.node("Clip", x, b.scalar(0.0), b.scalar(6.0))
    if form == "clip":
        ends = b.pick((-1.0, None), (None, 0.3), (-0.2, 0.4), (0.1, 2.0))
        low, high = ("" if end is None else b.scalar(end) for end in ends)
        return b.node("Clip", x, low, high)
    if form == "silu":
        return b.node("Mul", x, b.node("Sigmoid", x))
    if form == "hswish":
        return b.node("HardSwish", x)
    if form == "hswish by hand":
        six = b.node("Clip", b.node("Add", x, b.scalar(3.0)), b.scalar(0.0), b.scalar(6.0))
        return b.node("Div", b.node("Mul", x, six), b.scalar(6.0))
    if form == "prelu":
        return b.node("PRelu", x, b.weight(channels, *[1] * rank))
    if form == "prelu1":
        return b.node("PRelu", x, b.weight(1))
    if form == "leaky":
        return b.node("LeakyRelu", x, alpha=b.pick(0.01, 0.3, -0.5, 1.5))
    if form == "mish":
        return b.node("Mul", x, b.node("Tanh", b.node("Softplus", x)))
    if form == "gelu":
        erf = b.node("Add", b.node("Erf", b.node("Div", x, b.scalar(2**0.5))), b.scalar(1.0))
        return b.node("Mul", b.node("Mul", x, b.scalar(0.5)), erf)
    if form == "quick":
        return b.node("Mul", x, b.node("Sigmoid", b.node("Mul", x, b.scalar(1.702))))
    if form == "hsigmoid":
        return b.node("HardSigmoid", x, alpha=b.pick(1 / 6, 0.2), beta=0.5)
    if form == "square":
        return b.node("Pow", b.node("Relu", x), b.scalar(2.0))
    if form == "exp neg":
        return b.node("Div", b.scalar(1.0), b.node("Add", b.node("Exp", b.node("Neg", x)), b.scalar(1.0)))
    one = {"tanh": "Tanh", "elu": "Elu", "abs": "Abs", "softplus": "Softplus", "selu": "Selu"}
    return b.node(one[form], x) if form in one else x


def normalized(b: Block, x: str, channels: int) -> str:
    form = b.pick("batch", "batch", "none", "instance", "affine", "group")
    if form == "batch":
        spread = b.constant(b.rng.uniform(0.5, 1.5, channels).astype(np.float32))
        return b.node(
            "BatchNormalization", x, b.weight(channels), b.weight(channels), b.weight(channels), spread
        )
    if form == "instance":
        return b.node("InstanceNormalization", x, b.weight(channels), b.weight(channels))
    if form == "group" and channels % 2 == 0:
        shape = b.node("Shape", x)
        y = b.node("InstanceNormalization", b.reshape(x, 0, 2, -1), b.weight(2), b.weight(2))
        return b.node("Reshape", y, shape)
    return x


def conv(b: Block, x: str, inside: int, outside: int, rank: int = 2, same: bool = True) -> str:
    """A convolution that keeps the sizes, unless it is told otherwise."""
    group = 1
    if inside == outside and b.chance(0.25):
        group = inside
    elif inside % 2 == 0 and outside % 2 == 0 and b.chance(0.25):
        group = 2
    kernel = [b.pick(1, 3, 3, 5) for _ in range(rank)] if b.chance(0.3) else [b.pick(1, 3, 3, 5, 7)] * rank
    dilation = b.pick(1, 1, 1, 2)
    pads = [dilation * (k - 1) // 2 for k in kernel]
    stride = [1] * rank if same else [b.pick(1, 2, 2, 3)] * rank
    args = [x, b.weight(outside, inside // group, *kernel)]
    if b.chance(0.6):
        args.append(b.weight(outside))
    ways = dict(kernel_shape=kernel, pads=pads * 2, strides=stride, dilations=[dilation] * rank)
    return b.node("Conv", *args, group=group, **ways)


def excited(b: Block, x: str, channels: int, rank: int) -> str:
    """Squeeze and excitation."""
    form = b.pick("pool", "mean", "linear")
    few = max(1, channels // 2)
    ones = [1] * rank
    if form == "linear":
        y = b.node("Flatten", b.node("GlobalAveragePool", x))
        y = b.node("Relu", b.node("Gemm", y, b.weight(few, channels), b.weight(few), transB=1))
        y = b.node("Gemm", y, b.weight(few, channels), b.weight(channels))
        y = b.reshape(y, -1, channels, *ones)
    else:
        mean = dict(axes=list(range(2, 2 + rank)), keepdims=1)
        y = b.node("GlobalAveragePool", x) if form == "pool" else b.node("ReduceMean", x, **mean)
        y = b.node("Conv", y, b.weight(few, channels, *ones), b.weight(few))
        y = activation(b, y, few, rank)
        y = b.node("Conv", y, b.weight(channels, few, *ones), b.weight(channels))
    gate = b.node("Sigmoid", y) if b.chance() else b.node("HardSigmoid", y)
    return b.node("Mul", *b.pick((x, gate), (gate, x)))


@kind
def conv_blocks(b: Block) -> None:
    """Some layers that keep the sizes, each with what comes behind convolutions."""
    rank = b.pick(1, 2, 2, 2, 2, 3)
    b.size("b", 1, 3)
    channels = b.pick(1, 3, 6, 8, 16, 18, 32)
    x = b.feed("x", F32, ("b", channels, *_fit(b, rank)))
    skips = [(x, channels)]
    for _ in range(int(b.rng.integers(2, 5))):
        form = b.pick(
            *("plain", "residual", "preact", "se", "concat", "split", "shuffle", "two", "gate", "scale")
        )
        if form in ("plain", "two", "se", "scale", "concat"):
            outside = b.pick(channels, 5, 8, 16, 24)
            y = activation(b, normalized(b, conv(b, x, channels, outside, rank), outside), outside, rank)
            if form == "two":
                b.result(y)
            elif form == "se":
                y = excited(b, y, outside, rank)
            elif form == "scale":
                y = b.node("Mul", y, b.weight(outside, *[1] * rank))
            elif form == "concat":
                other, more = b.pick(*skips)
                y, outside = b.node("Concat", *b.pick((y, other), (other, y)), axis=1), outside + more
            x, channels = y, outside
        elif form in ("residual", "preact", "gate"):
            y = conv(b, x, channels, channels, rank)
            if form == "residual":
                y = normalized(b, y, channels)
                y = b.node("Add", *b.pick((x, y), (y, x)))
                x = activation(b, y, channels, rank)
            elif form == "preact":
                x = b.node("Add", x, activation(b, y, channels, rank))
            else:
                x = b.node("Mul", y, b.node("Sigmoid", conv(b, x, channels, channels, rank)))
        elif form == "split" and channels >= 2:
            first = channels // 2
            more = channels - first
            out = b.node("Split", x, b.ints(first, more), axis=1, results=2)
            y = activation(b, conv(b, f"{out}_1", more, more, rank), more, rank)
            x = b.node("Concat", *b.pick((out, y), (y, out), (out, f"{out}_1", y)), axis=1)
            channels = channels if len(b.nodes[-1].input) == 2 else 2 * channels - first
        elif form == "shuffle" and channels % 2 == 0:
            sizes = [b.extent(x, 2 + n) for n in range(rank)]
            y = b.reshape(x, b.extent(x, 0), 2, channels // 2, *sizes)
            y = b.node("Transpose", y, perm=[0, 2, 1, *range(3, 3 + rank)])
            x = b.reshape(y, b.extent(y, 0), channels, *sizes)
        skips.append((x, channels))
    b.result(x)


@kind
def pyramids(b: Block) -> None:
    """Down, up again by resizes or transposed convolutions, joined with what was there: U-Net, FPN."""
    b.size("b", 1, 2)
    b.size("h", b.pick(3, 6, 8), 25, 0.3)
    b.size("w", b.pick(3, 6, 8), 25, 0.3)
    channels = b.pick(3, 8, 12)
    x = b.feed("x", F32, ("b", channels, "h", "w"))
    levels = [(x, channels)]
    for _ in range(b.pick(1, 2)):
        form = b.pick("conv", "max", "mean", "ceil")
        if form == "conv":
            weights = b.weight(channels, channels, 3, 3), b.weight(channels)
            y = b.node("Conv", x, *weights, pads=[1] * 4, strides=[2, 2])
        elif form == "mean":
            ways = dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
            y = b.node("AveragePool", x, **ways, count_include_pad=b.pick(0, 1))
        else:
            y = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=int(form == "ceil"))
        outside = b.pick(8, 16, 10)
        y = activation(b, normalized(b, conv(b, y, channels, outside), outside), outside)
        x, channels = y, outside
        levels.append((x, channels))
    for other, more in reversed(levels[:-1]):
        form = b.pick("resize", "resize", "transposed", "scales")
        target = b.node("Slice", b.node("Shape", other), b.ints(2), b.ints(4))
        if form == "resize":
            four = b.node("Concat", b.node("Slice", b.node("Shape", x), b.ints(0), b.ints(2)), target, axis=0)
            way = b.pick(
                dict(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
                dict(mode="linear", coordinate_transformation_mode="half_pixel"),
                dict(mode="linear", coordinate_transformation_mode="align_corners"),
                dict(mode="linear", coordinate_transformation_mode="pytorch_half_pixel"),
                dict(mode="cubic", coordinate_transformation_mode="half_pixel", cubic_coeff_a=-0.75),
            )
            y = b.node("Resize", x, "", "", four, **way)
        else:
            if form == "scales":
                scales = b.constant(np.array([1, 1, 2, 2], np.float32))
                y = b.node("Resize", x, "", scales, mode=b.pick("nearest", "linear"))
            else:
                size = b.pick(2, 3, 4)
                pads = {2: [0] * 4, 3: [0, 0, 1, 1], 4: [1] * 4}[size]
                weights = b.weight(channels, channels, size, size)
                y = b.node("ConvTranspose", x, weights, strides=[2, 2], pads=pads)
            # as large as the other one: what is missing is padded, what is too much cut off
            y = b.node("Pad", y, b.ints(0, 0, 0, 0, 0, 0, 2, 2), mode="constant")
            y = b.node("Slice", y, b.ints(0, 0), target, b.ints(2, 3))
        if b.chance():
            y = b.node("Concat", other, y, axis=1)
            outside = b.pick(6, 8)
            x = activation(b, conv(b, y, channels + more, outside), outside)
            channels = outside
        else:
            lateral = b.node("Conv", other, b.weight(channels, more, 1, 1), b.weight(channels))
            x = b.node("Add", *b.pick((lateral, y), (y, lateral)))
    b.result(x)


@kind
def pixels(b: Block) -> None:
    """Pixels to channels and back, patches, positions, global pools, heads."""
    b.size("b", 1, 3)
    form = b.pick("shuffle", "unshuffle", "patches", "spp", "cbam", "coordinates", "focus", "unfold")
    if form == "shuffle":
        r = b.pick(2, 3)
        b.size("h", 1, 13), b.size("w", 1, 13)
        x = b.feed("x", F32, ("b", 4, "h", "w"))
        y = conv(b, x, 4, 3 * r * r)
        y = b.node("DepthToSpace", y, blocksize=r, mode=b.pick("CRD", "DCR"))
        y = b.node("Clip", y, b.scalar(0.0), b.scalar(1.0)) if b.chance() else y
        base = b.node("Resize", x, "", b.constant(np.array([1, 1, r, r], np.float32)), mode="linear")
        base = b.node("Slice", base, b.ints(0), b.ints(3), b.ints(1))
        b.result(b.node("Add", y, base))
    elif form == "unshuffle":
        x = b.feed("x", F32, ("b", 3, 8, 6))
        y = b.node("SpaceToDepth", x, blocksize=2)
        b.result(activation(b, conv(b, y, 12, 9), 9))
    elif form == "focus":
        x = b.feed("x", F32, ("b", 3, 10, 14))
        parts = []
        for first, second in ((0, 0), (1, 0), (0, 1), (1, 1)):
            ends = b.ints(1 << 62, 1 << 62)
            parts.append(b.node("Slice", x, b.ints(first, second), ends, b.ints(2, 3), b.ints(2, 2)))
        b.result(activation(b, conv(b, b.node("Concat", *parts, axis=1), 12, 8), 8))
    elif form in ("patches", "unfold"):
        p = b.pick(2, 4)
        x = b.feed("x", F32, ("b", 3, 3 * p, 5 * p))
        if form == "patches":
            y = b.node("Conv", x, b.weight(12, 3, p, p), b.weight(12), strides=[p, p])
            y = b.node("Transpose", b.reshape(y, 0, 12, -1), perm=[0, 2, 1])
        else:
            y = b.node("Transpose", b.reshape(x, -1, 3, 3, p, 5, p), perm=[0, 2, 4, 3, 5, 1])
            y = b.node("MatMul", b.reshape(y, -1, 15, 3 * p * p), b.weight(3 * p * p, 12))
        token = b.node("Expand", b.weight(1, 1, 12), b.node("Concat", b.extent(y, 0), b.ints(1, 12), axis=0))
        y = b.node("Add", b.node("Concat", token, y, axis=1), b.weight(1, 16, 12))
        b.result(b.node("LayerNormalization", y, b.weight(12), b.weight(12)))
    elif form == "spp":
        b.size("h", 1, 17), b.size("w", 1, 17)
        x = b.feed("x", F32, ("b", 6, "h", "w"))
        y = activation(b, conv(b, x, 6, 6), 6)
        parts = [y]
        for _ in range(3):
            parts.append(b.node("MaxPool", parts[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
        b.result(activation(b, conv(b, b.node("Concat", *parts, axis=1), 24, 7), 7))
    elif form == "cbam":
        b.size("h", 1, 15), b.size("w", 1, 15)
        x = b.feed("x", F32, ("b", 8, "h", "w"))
        first, second = b.weight(4, 8, 1, 1), b.weight(8, 4, 1, 1)
        gates = []
        for pool in ("GlobalAveragePool", "GlobalMaxPool"):
            y = b.node("Conv", b.node("Relu", b.node("Conv", b.node(pool, x), first)), second)
            gates.append(y)
        x = b.node("Mul", x, b.node("Sigmoid", b.node("Add", *gates)))
        y = b.node("Concat", b.node("ReduceMean", x, axes=[1]), b.node("ReduceMax", x, axes=[1]), axis=1)
        y = b.node("Conv", y, b.weight(1, 2, 7, 7), pads=[3] * 4)
        b.result(b.node("Mul", x, b.node("Sigmoid", y)))
    else:
        b.size("h", 1, 15), b.size("w", 1, 15)
        x = b.feed("x", F32, ("b", 5, "h", "w"))
        pools = []
        for axis in (3, 2):
            pools.append(b.node("ReduceMean", x, axes=[axis], keepdims=1))
        across = b.node("Transpose", pools[1], perm=[0, 1, 3, 2])
        y = b.node("Concat", pools[0], across, axis=2)
        y = activation(b, b.node("Conv", y, b.weight(4, 5, 1, 1), b.weight(4)), 4)
        tall = b.node("Concat", b.extent(x, 2), b.extent(x, 3), axis=0)
        out = b.node("Split", y, tall, axis=2, results=2)
        up = b.node("Sigmoid", b.node("Conv", out, b.weight(5, 4, 1, 1)))
        side = b.node("Transpose", f"{out}_1", perm=[0, 1, 3, 2])
        side = b.node("Sigmoid", b.node("Conv", side, b.weight(5, 4, 1, 1)))
        b.result(b.node("Mul", b.node("Mul", x, up), side))


@kind
def strided(b: Block) -> None:
    """Lone strided, dilated, transposed convolutions and pools with unequal pads, in ranges of sizes."""
    rank = b.pick(1, 2, 2, 3)
    b.size("b", 1, 2)
    sizes = []
    inside, outside = b.pick(1, 3, 4, 8, 17), b.pick(1, 4, 8, 16, 33)
    kernel = [b.pick(1, 2, 3, 4, 5) for _ in range(rank)]
    dilation = [b.pick(1, 1, 2, 3) for _ in range(rank)]
    stride = [b.pick(1, 2, 3) for _ in range(rank)]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    for name, far in zip("dhw"[3 - rank :], reach, strict=True):
        sizes.append(b.size(name, far, far + {1: 40, 2: 14, 3: 5}[rank], 0.3))
    x = b.feed("x", F32, ("b", inside, *sizes))
    pads = [int(b.rng.integers(0, far)) for far in reach] + [int(b.rng.integers(0, far)) for far in reach]
    ways = dict(kernel_shape=kernel, strides=stride, dilations=dilation)
    form = b.pick("conv", "conv", "transposed", "max", "mean", "lp", "same")
    if form in ("conv", "same"):
        group = b.pick(*(g for g in (1, 2, inside) if inside % g == 0))
        outside *= group
        if form == "same":
            ways |= dict(auto_pad=b.pick("SAME_UPPER", "SAME_LOWER", "VALID"), dilations=[1] * rank)
        else:
            ways |= dict(pads=pads)
        weights = b.weight(outside, inside // group, *kernel), b.weight(outside)
        y = b.node("Conv", x, *weights, group=group, **ways)
    elif form == "transposed":
        group = b.pick(*(g for g in (1, inside) if inside % g == 0))
        extra = [int(b.rng.integers(0, s)) for s in stride]
        small = [min(p, d * (k - 1) // 2) for p, d, k in zip(pads, dilation * 2, kernel * 2, strict=True)]
        y = b.node(
            "ConvTranspose",
            *(x, b.weight(inside, outside, *kernel), b.weight(outside * group)),
            **(dict(group=group, pads=small, output_padding=extra) | ways),
        )
        outside *= group
    else:
        outside = inside
        small = [min(p, k - 1) for p, k in zip(pads, kernel * 2, strict=True)]
        if form == "lp":
            y = b.node("LpPool", x, kernel_shape=kernel, strides=stride, pads=small, p=b.pick(1, 2, 3))
        elif form == "mean":
            y = b.node(
                "AveragePool",
                x,
                **dict(kernel_shape=kernel, strides=stride, pads=small, count_include_pad=b.pick(0, 1)),
                ceil_mode=b.pick(0, 0, 1),
            )
        else:
            y = b.node("MaxPool", x, pads=small, ceil_mode=b.pick(0, 1), **ways)
    b.result(activation(b, y, outside, rank))
