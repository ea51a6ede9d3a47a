"""ONNX -> a ``torch.nn.Module`` (an FX graph), so that PyTorch can run the model under test.

For comparison only: it takes models after import (fixed shapes, folded shape arithmetic) and
covers the operators of the model zoo and their near relatives.  One function per operator, its
parameters named like the operator's inputs and attributes.
"""

from __future__ import annotations

import collections
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

from hetero_tvm.errors import UnsupportedOperatorError

# Inputs that PyTorch wants as Python numbers or lists; they must be constants.
_STATIC = {
    "Clip": (1, 2),
    "CumSum": (1,),
    "Expand": (1,),
    "Pad": (1, 2, 3),
    "ReduceL2": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceSum": (1,),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "Unsqueeze": (1,),
}

# Operators that take a constant scalar as a number.  Inductor's pattern for attention wants it so.
_TAKES_NUMBERS = {"Add", "Sub", "Mul", "Div", "Pow", "Equal", "Where"}


def to_torch(model: onnx.ModelProto, half: bool = False) -> torch.fx.GraphModule:
    """Convert; the result takes the inputs in order (``.input_names``) and returns a tuple.

    With ``half`` everything that is float32 in the model is float16, casts on the way included (which
    ``module.half()`` leaves alone), and constants beyond its range are the largest that it has.

    Raises :class:`UnsupportedOperatorError` that lists every operator without a counterpart.
    """
    graph = model.graph
    missing = collections.Counter(node.op_type for node in graph.node if node.op_type not in _OPERATORS)
    if missing:
        raise UnsupportedOperatorError(
            "the comparison with PyTorch does not cover all operators of this model",
            problems=[f"{name} ({count} nodes)" for name, count in sorted(missing.items())],
            hint="compare without torch: --vs onnxruntime,openvino",
        )
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    root = torch.nn.Module()
    fx = torch.fx.Graph()
    narrow = _halved if half else (lambda array: array)
    arrays = {tensor.name: narrow(numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    values: dict[str, torch.fx.Node] = {}
    for value in graph.input:
        if value.name not in arrays:
            values[value.name] = fx.placeholder(f"input_{len(values)}")
    input_names = list(values)

    def tensor(name: str) -> torch.fx.Node:
        if name not in values:
            attribute = f"weight_{len(list(root.parameters()))}"
            parameter = torch.nn.Parameter(torch.from_numpy(arrays[name].copy()), requires_grad=False)
            root.register_parameter(attribute, parameter)
            values[name] = fx.get_attr(attribute)
        return values[name]

    for node in graph.node:
        attributes = {a.name: _plain(helper.get_attribute_value(a)) for a in node.attribute}
        if node.op_type == "Constant":
            arrays[node.output[0]] = narrow(numpy_helper.to_array(node.attribute[0].t))
            continue
        if half and attributes.get("to") == onnx.TensorProto.FLOAT:
            attributes["to"] = onnx.TensorProto.FLOAT16
        function = _OPERATORS[node.op_type]
        static = _STATIC.get(node.op_type, ())
        scalars = node.op_type in _TAKES_NUMBERS
        args: list[Any] = []
        for index, name in enumerate(node.input):
            if name and (index in static or (scalars and _is_number(arrays.get(name)))):
                args.append(arrays[name].tolist())
            else:
                args.append(tensor(name) if name else None)
        known = _parameters(function)
        if "opset" in known:
            attributes["opset"] = opset
        if "count" in known:
            attributes["count"] = len(node.output)
        result = fx.call_function(function, tuple(args), attributes)
        if len(node.output) == 1:
            values[node.output[0]] = result
        for index, name in enumerate(node.output if len(node.output) > 1 else ()):
            values[name] = fx.call_function(operator.getitem, (result, index))
    fx.output(tuple(tensor(value.name) for value in graph.output))
    module = torch.fx.GraphModule(root, fx)
    module.input_names = input_names
    return module


def _halved(array: np.ndarray) -> np.ndarray:
    if array.dtype != np.float32:
        return array
    most = float(np.finfo(np.float16).max)
    return np.where(np.isinf(array), array, array.clip(-most, most)).astype(np.float16)


def _is_number(array: np.ndarray | None) -> bool:
    return array is not None and array.ndim == 0


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Parameter names of an operator written here; PyTorch's own functions have none to offer."""
    return tuple(inspect.signature(function).parameters) if inspect.isfunction(function) else ()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if hasattr(value, "__len__") and not isinstance(value, str) else value


# --- operators -------------------------------------------------------------------------------


def _cast(x, to, saturate=1):
    return x.to(torch.from_numpy(np.empty(0, helper.tensor_dtype_to_np_dtype(to))).dtype)


def _clip(x, low=None, high=None, min=None, max=None):
    return torch.clamp(x, low if low is not None else min, high if high is not None else max)


def _gather(x, indices, axis=0):
    axis = axis % x.dim()
    if axis == 0 and indices.dim() > 0:
        return F.embedding(indices, x.reshape(x.shape[0], -1)).reshape(*indices.shape, *x.shape[1:])
    picked = torch.index_select(x, axis, indices.reshape(-1))
    return picked.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _gemm(a, b, c=None, alpha=1.0, beta=1.0, transA=0, transB=0):
    a = a.t() if transA else a
    if transB and alpha == 1.0 and beta == 1.0 and (c is None or c.dim() == 1):
        return F.linear(a, b, c)
    b = b.t() if transB else b
    y = a @ b if alpha == 1.0 else alpha * (a @ b)
    return y if c is None else y + (c if beta == 1.0 else beta * c)


def _gelu(x, approximate="none"):
    return F.gelu(x, approximate=approximate)


def _layer_norm(x, scale, bias=None, axis=-1, epsilon=1e-5, stash_type=1):
    return F.layer_norm(x, x.shape[axis % x.dim() :], scale, bias, epsilon)


def _batch_norm(x, scale, bias, mean, variance, epsilon=1e-5, momentum=0.9, training_mode=0, spatial=1):
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)


def _padded(x, pads, auto_pad, kernel, strides, dilations, value=0.0):
    """(input, symmetric padding): PyTorch pads both sides alike, the rest is padded here."""
    rank = len(kernel)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        pads = [0] * (2 * rank)
        for i in range(rank):
            size = x.shape[2 + i]
            reach = (kernel[i] - 1) * dilations[i] + 1
            total = max((-(-size // strides[i]) - 1) * strides[i] + reach - size, 0)
            low = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            pads[i], pads[rank + i] = low, total - low
    pads = list(pads) if pads else [0] * (2 * rank)
    if pads[:rank] == pads[rank:]:
        return x, pads[:rank]
    flat = [side for i in reversed(range(rank)) for side in (pads[i], pads[rank + i])]
    return F.pad(x, flat, value=value), [0] * rank


def _conv(
    x, w, b=None, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, pads=None, strides=None
):
    kernel = list(w.shape[2:])
    strides, dilations = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    x, padding = _padded(x, pads, auto_pad, kernel, strides, dilations)
    convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(kernel)]
    return convolve(x, w, b, strides, padding, dilations, group)


def _max_pool(
    x, kernel_shape, auto_pad="NOTSET", ceil_mode=0, dilations=None, pads=None, storage_order=0, strides=None
):
    rank = len(kernel_shape)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    x, padding = _padded(x, pads, auto_pad, kernel_shape, strides, dilations, float("-inf"))
    pool = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[rank]
    return pool(x, kernel_shape, strides, padding, dilations, bool(ceil_mode))


def _average_pool(
    x, kernel_shape, auto_pad="NOTSET", ceil_mode=0, count_include_pad=0, pads=None, strides=None
):
    rank = len(kernel_shape)
    strides = strides or [1] * rank
    x, padding = _padded(x, pads, auto_pad, kernel_shape, strides, [1] * rank)
    pool = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[rank]
    return pool(x, kernel_shape, strides, padding, bool(ceil_mode), bool(count_include_pad))


def _global_average_pool(x):
    return x.mean(dim=tuple(range(2, x.dim())), keepdim=True)


def _argmax(x, axis=0, keepdims=1, select_last_index=0):
    if select_last_index:
        raise NotImplementedError("ArgMax of the last of equal ones")
    return torch.argmax(x, axis, bool(keepdims))


def _cumsum(x, axis, exclusive=0, reverse=0):
    axis = axis[0] if isinstance(axis, list) else axis
    x = x.flip(axis) if reverse else x
    sums = x.cumsum(axis) - x if exclusive else x.cumsum(axis)
    return sums.flip(axis) if reverse else sums


def _depth_to_space(x, blocksize, mode="DCR"):
    n, c, h, w = x.shape
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    parts = x.reshape(n, blocksize, blocksize, c // blocksize**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // blocksize**2, h * blocksize, w * blocksize)


def _gather_nd(x, indices, batch_dims=0):
    if batch_dims:
        raise NotImplementedError("GatherND of batches")
    return x[indices.unbind(-1)]


def _pad(x, pads=None, value=None, axes=None, mode="constant"):
    rank = x.dim()
    axes = [axis % rank for axis in axes] if axes else list(range(rank))
    ends = {axis: (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    value = value[0] if isinstance(value, list) else value
    if mode == "constant":
        flat = [size for axis in reversed(range(rank)) for size in ends.get(axis, (0, 0))]
        return F.pad(x, flat, value=value or 0)
    first = min((axis for axis, sizes in ends.items() if any(sizes)), default=rank - 1)
    flat = [size for axis in reversed(range(max(first, 1), rank)) for size in ends.get(axis, (0, 0))]
    if first == 0 or rank - first > 3:
        raise NotImplementedError(f"Pad, {mode}, of these axes")
    shape = x.shape  # PyTorch repeats what lies behind two leading dimensions
    padded = F.pad(
        x.reshape(1, -1, *shape[first:]), flat, {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    )
    return padded.reshape(*shape[:first], *padded.shape[2:])


def _prelu(x, slope):
    return torch.where(x < 0, x * slope, x)


def _reduce(torch_function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x, axes=None, keepdims=1, noop_with_empty_axes=0):
        if not axes and noop_with_empty_axes:
            return x
        return torch_function(x, dim=tuple(axes) if axes else tuple(range(x.dim())), keepdim=bool(keepdims))

    return reduce


def _reshape(x, shape, allowzero=0):
    sizes = [x.shape[i] if size == 0 and not allowzero else size for i, size in enumerate(shape)]
    return x.reshape(sizes)


def _slice(x, starts, ends, axes=None, steps=None):
    index = [slice(None)] * x.dim()
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = axes[i] if axes else i
        step = steps[i] if steps else 1
        if step < 0:
            raise NotImplementedError("Slice with a negative step")
        index[axis] = slice(start, end, step)
    return x[tuple(index)]


def _softmax(x, axis=None, opset=13):
    if opset >= 13:
        return torch.softmax(x, -1 if axis is None else axis)
    # Before opset 13 everything from the axis on is one dimension.
    shape = x.shape
    first = (1 if axis is None else axis) % x.dim()
    return torch.softmax(x.reshape(*shape[:first], -1), -1).reshape(shape)


def _split(x, split=None, axis=0, num_outputs=None, count=1):
    return torch.split(x, split or -(-x.shape[axis] // (num_outputs or count)), axis)


def _squeeze(x, axes=None):
    return torch.squeeze(x, tuple(axes) if axes else tuple(i for i, size in enumerate(x.shape) if size == 1))


def _unsqueeze(x, axes):
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _transpose(x, perm=None):
    if perm == [0, 2, 3, 1]:
        # The keys of an attention, as PyTorch code writes them.  Inductor takes one permutation
        # for the other and then fails on the shapes (seen with 2.13).
        return x.permute(0, 2, 1, 3).transpose(-1, -2)
    return x.permute(perm or list(reversed(range(x.dim()))))


def _div(a, b):
    whole = all(
        isinstance(x, int) or isinstance(x, torch.Tensor) and not x.is_floating_point() for x in (a, b)
    )
    return torch.div(a, b, rounding_mode="trunc") if whole else a / b


def _expand(x, shape):
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape)))


_OPERATORS: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs,
    "Add": operator.add,
    "And": torch.logical_and,
    "ArgMax": _argmax,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Ceil": torch.ceil,
    "Clip": _clip,
    "Concat": lambda *parts, axis: torch.cat(parts, axis),
    "Constant": lambda: None,
    "Conv": _conv,
    "Cos": torch.cos,
    "CumSum": _cumsum,
    "DepthToSpace": _depth_to_space,
    "Div": _div,
    "Dropout": lambda x, *_, **__: x,
    "Elu": lambda x, alpha=1.0: F.elu(x, alpha),
    "Equal": torch.eq,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Expand": _expand,
    "Flatten": lambda x, axis=1: x.reshape(int(np.prod(x.shape[:axis])), -1),
    "Floor": torch.floor,
    "Gather": _gather,
    "GatherElements": lambda x, indices, axis=0: torch.take_along_dim(x, indices, axis),
    "GatherND": _gather_nd,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": lambda x: x.amax(dim=tuple(range(2, x.dim())), keepdim=True),
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0, 1),
    "HardSwish": F.hardswish,
    "Identity": lambda x: x,
    "InstanceNormalization": lambda x, scale, bias, epsilon=1e-5: F.instance_norm(
        x, None, None, scale, bias, eps=epsilon
    ),
    "IsNaN": torch.isnan,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda x, alpha=0.01: F.leaky_relu(x, alpha),
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Log": torch.log,
    "MatMul": torch.matmul,
    "Max": torch.maximum,
    "MaxPool": _max_pool,
    "Min": torch.minimum,
    "Mish": F.mish,
    "Mul": operator.mul,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Or": torch.logical_or,
    "PRelu": _prelu,
    "Pad": _pad,
    "Pow": torch.pow,
    "Reciprocal": torch.reciprocal,
    "ReduceL2": _reduce(torch.linalg.vector_norm),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceMin": _reduce(torch.amin),
    "ReduceSum": _reduce(torch.sum),
    "Relu": F.relu,
    "Reshape": _reshape,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Slice": _slice,
    "Softmax": _softmax,
    "Softplus": F.softplus,
    "Split": _split,
    "Sqrt": torch.sqrt,
    "Squeeze": _squeeze,
    "Sub": operator.sub,
    "Sum": lambda *parts: functools.reduce(operator.add, parts),
    "Tanh": torch.tanh,
    "Tile": lambda x, repeats: x.repeat(*repeats),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": torch.where,
    "Xor": torch.logical_xor,
}
