"""Arithmetic in float64, float16, bfloat16 and whole numbers that overflow, fused as chains are."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.campaign.blocks.block import BOOL, F32, Block, kind


def _whole(dtype: np.dtype):
    info = np.iinfo(dtype)

    def make(rng, shape, sizes):
        ends = np.array([info.min, info.max, info.min + 1, 0, 1, 2], dtype=dtype)
        usual = rng.integers(0, 99, shape).astype(dtype)
        return np.where(rng.random(shape) < 0.5, rng.choice(ends, shape), usual)

    return make


@kind
def whole_numbers(b: Block) -> None:
    """Chains of whole numbers of one type, with casts, comparisons, reductions and shifts between."""
    name = b.pick("int8", "uint8", "int16", "uint16", "int32", "int64", "uint32", "uint64")
    kind_ = helper.np_dtype_to_tensor_dtype(np.dtype(name))
    small = name not in ("int32", "int64")
    b.size("n", 1, 19)
    x = b.feed("x", kind_, ("n", 6), _whole(np.dtype(name)))
    y = b.feed("y", kind_, (b.pick("n", 1), 6), _whole(np.dtype(name)))
    unsigned = name.startswith("u")
    for _ in range(int(b.rng.integers(2, 6))):
        form = b.pick("Add", "Sub", "Mul", "Min", "Max", "constant", "shift", "where", "neg", "wide", "mod")
        if form in ("Add", "Sub", "Mul", "Min", "Max"):
            if form in ("Add", "Sub", "Mul") and name in ("int8", "uint8", "int16", "uint16"):
                wide = TensorProto.INT32
                z = b.node(form, *(b.node("Cast", t, to=wide) for t in (x, y)))
                x = b.node("Cast", z, to=kind_) if b.chance() else x
                b.result(z, wide)
            else:
                x = b.node(form, x, y)
        elif form == "constant" and name in ("int32", "int64", "uint32", "uint64"):
            x = b.node(b.pick("Add", "Mul", "Sub"), x, b.constant(np.array(b.pick(3, 127, 1 << 30), name)))
        elif form == "shift" and unsigned:
            amount = b.constant(np.array(b.pick(0, 1, 7), name))
            x = b.node("BitShift", x, amount, direction=b.pick("LEFT", "RIGHT"))
        elif form == "where":
            x = b.node("Where", b.node("Less", x, y), x, y) if name in ("int32", "int64") or b.chance() else x
        elif form == "neg" and not unsigned:
            x = b.node(b.pick("Neg", "Abs", "Sign"), x)
        elif form == "wide":
            b.result(b.node("Cast", x, to=TensorProto.DOUBLE), TensorProto.DOUBLE)
        elif form == "mod":
            x = b.node("Mod", x, b.constant(np.array(b.pick(3, 7, 10), name)))
    b.result(x, kind_)
    if not small:
        b.result(b.node("ReduceSum", x, b.ints(1), keepdims=0), kind_)
    b.result(b.node("Greater", x, y), BOOL)
    b.result(b.node("Cast", x, to=F32), F32)


@kind
def other_floats(b: Block) -> None:
    """A small network in float64, float16 or bfloat16, with casts to float32 and back."""
    name = b.pick("float64", "float16", "float16", "bfloat16")
    types = dict(float64=TensorProto.DOUBLE, float16=TensorProto.FLOAT16, bfloat16=TensorProto.BFLOAT16)
    kind_ = types[name]
    b.size("b", 1, 3)
    b.size("s", 1, 13)
    width = b.pick(7, 16)
    x = b.node("Cast", b.feed("x", F32, ("b", "s", width)), to=kind_)

    def typed(*shape: int) -> str:
        if name == "bfloat16":
            return b.node("Cast", b.weight(*shape), to=kind_)
        return b.weight(*shape, dtype=name)

    for _ in range(b.pick(1, 2, 3)):
        form = b.pick("linear", "softmax", "norm", "gelu", "sum", "sigmoid", "mean")
        if form == "linear":
            y = b.node("MatMul", x, typed(width, width))
            x = b.node("Add", y, typed(width)) if b.chance() else y
        elif form == "softmax":
            x = b.node("Softmax", x, axis=b.pick(-1, 1))
        elif form == "norm":
            wide = b.node("Cast", x, to=F32)
            mean = b.node("ReduceMean", b.node("Mul", wide, wide), axes=[-1])
            y = b.node("Div", wide, b.node("Sqrt", b.node("Add", mean, b.scalar(1e-5))))
            x = b.node("Mul", b.node("Cast", y, to=kind_), typed(width))
        elif form == "gelu":
            x = b.node("Mul", x, b.node("Sigmoid", b.node("Mul", x, typed(1))))
        elif form == "sum":
            x = b.node("Add", x, b.node("ReduceSum", x, b.ints(-1)))
        elif form == "sigmoid":
            x = b.node("Tanh", x)
        else:
            x = b.node("Sub", x, b.node("ReduceMax", x, axes=[1]))
    if name == "bfloat16" or b.chance():
        b.result(b.node("Cast", x, to=F32))
    else:
        b.result(x, kind_)
