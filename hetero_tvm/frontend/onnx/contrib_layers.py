"""ONNX Runtime's layers with activations, and those over images in channel blocks, written out in plain ONNX.

With all its optimisations on, ONNX Runtime keeps images as [N, C/b, H, W, b] between convolutions and
writes that into the files that it saves (domain ``com.microsoft.nchwc``): weights in the order of its
kernels, channels filled up to whole blocks with zeros.  Here such an image is a plain [N, C, H, W] with all
channels of its blocks.
Semantics: ONNX Runtime, core/optimizer/nchwc_transformer.cc and core/mlas/lib/reorder.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.body import Body, as_text
from hetero_tvm.host.cpu import cpu_features

BLOCKED_DOMAIN = "com.microsoft.nchwc"


_PARAMETERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign"), ()),
    **dict.fromkeys(("LeakyRelu", "Elu", "ThresholdedRelu"), ("alpha",)),
    **dict.fromkeys(("HardSigmoid", "HardSwish", "ScaledTanh", "ParametricSoftplus"), ("alpha", "beta")),
    "Selu": ("alpha", "gamma"),
    "Silu": (),
    "Clip": ("min", "max"),
}
"""Activation -> its parameters, in the order in which FusedConv gives them; FusedGemm gives them by name."""


def _activated(b: Body, y: str) -> str:
    """``y`` behind the activation that a fused operator names."""
    kind = as_text(b.attributes.get("activation", ""))
    if not kind:
        return y
    names = _PARAMETERS.get(kind, ())
    given = dict(zip(names, map(float, b.attributes.get("activation_params", ())), strict=False))
    for name in names:
        if f"activation_{name}" in b.attributes:
            given.setdefault(name, float(b.attributes[f"activation_{name}"]))
    lacking = kind in ("Clip", "ScaledTanh", "ParametricSoftplus") and len(given) < len(names)
    if kind not in _PARAMETERS or lacking:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} ({b.node.op_type}) has the activation {kind}"
            f"{' without its parameters' if lacking else ''}, which is not supported.",
            hint="Optimise the file with ONNX Runtime's level 'basic', or take the file it was made from.",
        )
    if kind == "Clip":
        return b.op("Min", b.op("Max", y, b.const(given["min"])), b.const(given["max"]))
    if kind == "Silu":
        return b.op("Mul", y, b.op("Sigmoid", y))
    if kind == "HardSwish":  # whatever parameters it has
        return b.op("Mul", y, b.op("HardSigmoid", y, alpha=1 / 6, beta=0.5))
    if kind in ("ScaledTanh", "ParametricSoftplus"):
        curve = "Tanh" if kind == "ScaledTanh" else "Softplus"
        return b.op("Mul", b.op(curve, b.op("Mul", y, b.const(given["beta"]))), b.const(given["alpha"]))
    return b.op(kind, y, **given)


def fused_layer(b: Body) -> None:
    """FusedConv and FusedGemm: the plain operator, what FusedConv adds, and an activation."""
    kind = b.node.op_type.removeprefix("Fused")
    own = {key: value for key, value in b.attributes.items() if not key.startswith("activation")}
    y = b.op(kind, *[b.input(n) for n in range(3) if b.input(n)], **own)
    if kind == "Conv" and b.input(3):
        _refuse_other_image(b)
        y = b.op("Add", y, b.input(3))
    b.end(0, _activated(b, y))


def _refuse_other_image(b: Body) -> None:
    """Refuse what FusedConv adds where it is known to have another shape than the result."""
    x, weights, added = (b.certain(b.input(n)) for n in (0, 1, 3))
    if x is None or weights is None or added is None:
        return
    wanted: list[int | None] = [x[0], weights[0], *[None] * (len(x) - 2)]
    if as_text(b.attributes.get("auto_pad", "NOTSET")) == "NOTSET":
        count = len(x) - 2
        pads = b.attributes.get("pads", [0] * 2 * count)
        gaps, strides = (b.attributes.get(name, [1] * count) for name in ("dilations", "strides"))
        for n, (extent, taps) in enumerate(zip(x[2:], weights[2:], strict=True)):
            if extent is not None and taps is not None:
                room = extent + pads[n] + pads[n + count] - gaps[n] * (taps - 1) - 1
                wanted[n + 2] = room // strides[n] + 1
    if len(added) != len(wanted) or any(
        None not in pair and pair[0] != pair[1] for pair in zip(added, wanted, strict=True)
    ):
        raise ModelError(
            f"Node {b.node.name!r} (FusedConv) adds {b.input(3)!r} of the shape {list(added)} to a result of "
            f"the shape {wanted}.".replace("None", "?"),
            hint="Check the program that wrote the file.",
        )


# ---- images in channel blocks ------------------------------------------------------------------


def _block(channels: int) -> int:
    """Channels of a block: files do not say, they are for machines like the one that wrote them."""
    return 16 if "avx512f" in cpu_features() and channels % 16 == 0 else 8


def _weights(b: Body) -> np.ndarray:
    """Weights [O, I, *kernel] of a convolution from those in the order of ONNX Runtime's kernels."""
    stored = b.array(b.input(1))
    if stored is None:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (Conv in channel blocks) has weights that are not stored in the file.",
            hint="Take the file that ONNX Runtime optimised, or optimise it with level 'extended'.",
        )
    outer, inner, *kernel = stored.shape
    block = _block(outer)
    if inner % block:  # images in plain order, or one channel for each group: [O/b, I, *kernel, b]
        return np.moveaxis(stored.reshape(outer // block, inner, *kernel, block), -1, 1).reshape(stored.shape)
    ordered = stored.reshape(outer // block, inner // block, *kernel, block, block)  # [..., I, O]
    return np.moveaxis(ordered, (-1, -2), (1, 3)).reshape(stored.shape)


def _blocked_conv(b: Body) -> None:
    """Conv with bias, what is added, and an activation."""
    own = {key: value for key, value in b.attributes.items() if not key.startswith("activation")}
    weights = b.constant(np.ascontiguousarray(_weights(b)))
    y = b.op("Conv", b.input(0), weights, *[name for name in [b.input(2)] if name], **own)
    if b.input(3):
        y = b.op("Add", y, b.input(3))
    b.end(0, _activated(b, y))


def _reorder_input(b: Body) -> None:
    """A plain image, its channels filled up with zeros."""
    x, shape = b.input(0), b.shape(b.input(0))
    if b.attributes.get("channels_last", 0):
        x = b.op("Transpose", x, perm=[0, 3, 1, 2])
        shape = shape and (shape[0], shape[3], shape[1], shape[2])
    block = _block(16)
    if shape and shape[1] and shape[1] % block == 0:
        b.end(0, x)
        return
    none = b.const([0], "int64")
    # The rest of -C is what a whole block lacks.
    lacking = b.op("Mod", b.op("Neg", b.extent(x, 1)), b.const([block], "int64"))
    pads = b.op("Concat", *[none] * 5, lacking, none, none, axis=0)
    b.end(0, b.op("Pad", x, pads))


def _reorder_output(b: Body) -> None:
    """A plain image, without the channels that fill its last block up."""
    x = b.cut(b.input(0), 1, 0, int(b.attributes["channels"]))
    last = b.attributes.get("channels_last", 0)
    b.end(0, b.op("Transpose", x, perm=[0, 2, 3, 1]) if last else x)


def _blocked_upsample(b: Body) -> None:
    """Resize by whole factors."""
    scales = b.const([float(scale) for scale in b.attributes["scales"]])
    modes = {name: as_text(b.attributes.get(name, "")) for name in ("mode", "coordinate_transformation_mode")}
    modes = {name: mode for name, mode in modes.items() if mode}
    if modes.get("mode", "nearest") == "nearest":
        modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    b.end(0, b.op("Resize", b.input(0), "", scales, **modes))


def _blocked_pool(b: Body) -> None:
    """Pooling, as ONNX has it."""
    b.end(0, b.op(b.node.op_type, b.input(0), **b.attributes))


BLOCKED: dict[str, Callable[[Body], None]] = {
    "Conv": _blocked_conv,
    "ReorderInput": _reorder_input,
    "ReorderOutput": _reorder_output,
    "Upsample": _blocked_upsample,
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), _blocked_pool),
}
"""Operator of ``BLOCKED_DOMAIN`` -> function that writes it out."""
