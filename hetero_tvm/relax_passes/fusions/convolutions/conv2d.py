"""Convolutions: batch normalisation folded into weights, epilogues fused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import BIAS, GATE
from hetero_tvm.relax_passes.fusions.elementwise import activation_of
from hetero_tvm.relax_passes.fusions.epilogue import Found, joining_tensor
from hetero_tvm.relax_passes.fusions.linear import constant_of
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule, check_float32


class _Normalized(NamedTuple):
    conv: Call
    weight: np.ndarray
    bias: np.ndarray | None
    statistics: list[np.ndarray]
    """Scale, shift, mean and variance."""
    eps: float
    top: Var
    absorbed: list[Var]


class FoldBatchNorm(Rule):
    """``batch_norm(conv2d(x, W) + b)`` with constants -> ``conv2d(x, W') + b'``."""

    name = "conv_bn"
    anchors = ("relax.nn.batch_norm",)

    def match(self, graph: Graph, var: Var) -> _Normalized | None:
        call = graph.value(var)
        x, *statistics = call.args
        first = graph.only_user(var)
        if first is None or not isinstance(graph.value(first), relax.TupleGetItem):
            raise Miss("the running statistics are used as well")
        if graph.value(first).index != 0 or int(call.attrs.axis) != 1:
            return None
        bias, bias_var = None, None
        conv_var = x
        if graph.op_name(x) == "relax.add":
            bias_var, (bias, conv_var) = x, channel_vector(graph, x)
            if bias is None:
                return None
        if graph.op_name(conv_var) != "relax.nn.conv2d":
            return None
        conv = graph.value(conv_var)
        weight = array_of(graph.value(conv.args[1]))
        values = [array_of(graph.value(s)) for s in statistics]
        if weight is None or any(v is None for v in values):
            raise Miss("weights or statistics are not constant")
        if graph.only_user(conv_var) is None or (bias_var is not None and graph.only_user(bias_var) is None):
            raise Miss("the convolution's result is used before normalisation as well")
        if str(conv.attrs.data_layout) != "NCHW" or str(conv.attrs.kernel_layout) != "OIHW":
            raise Miss(f"layout is {conv.attrs.data_layout}, expected NCHW")
        check_float32(conv_var)
        absorbed = [v for v in (var, conv_var, bias_var) if v is not None]
        return _Normalized(conv, weight, bias, values, float(call.attrs.epsilon), first, absorbed)

    def rewrite(self, graph: Graph, var: Var, found: _Normalized) -> None:
        conv, weight, bias, (gamma, beta, mean, variance), eps, top, absorbed = found
        # float64: the folded weights should round once.
        factor = gamma.astype("float64") / np.sqrt(variance.astype("float64") + eps)
        folded = weight * factor[:, None, None, None]
        shift = beta + ((bias if bias is not None else 0.0) - mean) * factor
        replace_by_biased(graph, top, with_filters(conv, folded), shift, absorbed)


class BatchNormAsScale(Rule):
    """``batch_norm(x)`` with constants that no convolution has taken -> ``x * factor + shift``."""

    name = "batch_norm"
    counted = False
    anchors = ("relax.nn.batch_norm",)

    def match(self, graph: Graph, var: Var) -> tuple[np.ndarray, np.ndarray, Var] | None:
        call = graph.value(var)
        x, *statistics = call.args
        values, first = [array_of(graph.value(s)) for s in statistics], graph.only_result(var)
        if first is None or dtype_of(x) != "float32":
            return None
        if call.attrs.training or any(value is None for value in values):
            return None
        gamma, beta, mean, variance = (value.astype("float64") for value in values)
        factor = gamma / np.sqrt(variance + float(call.attrs.epsilon))
        along = [1] * len(shape_of(x))
        along[int(call.attrs.axis)] = -1
        return factor.reshape(along), (beta - mean * factor).reshape(along), first

    def rewrite(self, graph: Graph, var: Var, found: tuple[np.ndarray, np.ndarray, Var]) -> None:
        factor, shift, top = found
        scaled = relax.op.multiply(graph.value(var).args[0], constant(factor, "float32"))
        scaled = graph.insert_before(top, scaled, f"{top.name}#scaled", [var])
        graph.replace(top, relax.op.add(scaled, constant(shift, "float32")), [var])


class FoldPad(Rule):
    """``conv2d(pad(x))`` with zeros -> ``conv2d(x)`` with more padding of its own."""

    name = "conv_pad"
    counted = False
    anchors = ("relax.nn.conv2d",)

    def match(self, graph: Graph, var: Var) -> tuple[Expr, Call, list[int]] | None:
        conv = graph.value(var)
        pad = graph.call(conv.args[0], "relax.nn.pad")
        if pad is None or str(conv.attrs.data_layout) != "NCHW":
            return None
        width = [int(w) for w in pad.attrs.pad_width]
        if str(pad.attrs.pad_mode) != "constant" or float(pad.attrs.pad_value) != 0.0:
            raise Miss("the convolution's input is padded with something else than zeros")
        if any(width[:4]):
            raise Miss("the batch or the channels are padded")
        return pad.args[0], conv, [width[4], width[6], width[5], width[7]]

    def rewrite(self, graph: Graph, var: Var, found: tuple[Expr, Call, list[int]]) -> None:
        x, conv, more = found
        graph.replace(var, with_padding(conv, x, more))


def with_padding(conv: Call, x: Expr, more: Sequence[int], dilation: Sequence[int] | None = None) -> Call:
    """The convolution of ``x`` with more zeros around it: above, left, below and right; with its own dilation
    where no other is given."""
    attrs = conv.attrs
    return relax.op.nn.conv2d(
        x,
        conv.args[1],
        strides=list(attrs.strides),
        padding=[int(p) + m for p, m in zip(attrs.padding, more, strict=True)],
        dilation=list(attrs.dilation if dilation is None else dilation),
        groups=int(attrs.groups),
        data_layout=str(attrs.data_layout),
        kernel_layout=str(attrs.kernel_layout),
        out_dtype=attrs.out_dtype,
    )


class FuseConv2d(Rule):
    """``epilogue(conv2d(x, W))`` as one ``ops.Conv2d``; W is constant, or the target ``claims`` kernels for
    one that is computed."""

    name = "conv_epilogue"
    anchors = ("relax.nn.conv2d",)

    def __init__(self, claims: Claims = lambda op: False):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> Found | None:
        call = graph.value(var)
        attrs = call.attrs
        x, w = call.args
        weight = array_of(graph.value(w))
        if {dtype_of(var), dtype_of(x), dtype_of(w)} != {"float32"}:
            raise Miss(f"dtype is {dtype_of(var)}, expected float32")
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCHW", "OIHW"):
            raise Miss(f"layouts are {attrs.data_layout} and {attrs.kernel_layout}, expected NCHW and OIHW")
        integers = {
            name: tuple(int(v) for v in getattr(attrs, name)) for name in ("strides", "padding", "dilation")
        }
        op = Conv2d(
            *shape_of(x),
            filters=shape_of(w)[0],
            kernel=shape_of(w)[2:],
            groups=int(attrs.groups),
            constant_weight=weight is not None,
            **integers,
        )
        gates = self._claims(dataclasses.replace(op, epilogue=(GATE,)))
        steps, operands, absorbed, top = [], [x, w if weight is None else constant(weight)], [], var
        while (user := graph.only_user(top)) is not None:
            step, operand, last = _step(graph, user, top, gates)
            if step is None:
                break
            steps.append(step)
            if operand is not None:
                operands.append(operand)
            absorbed.append(top)
            if last is not user:
                absorbed.append(user)
            top = last
        op = dataclasses.replace(op, epilogue=tuple(steps))
        if weight is None and not self._claims(op):
            raise Miss("the weight is not constant")
        return Found(op, operands, top, absorbed)

    def rewrite(self, graph: Graph, var: Var, found: Found) -> None:
        found.replace(graph)


def plain_filters(graph: Graph, var: Expr) -> np.ndarray | None:
    """The constant float32 filters of a convolution whose layouts are the plain ones."""
    call = graph.call(var, "relax.nn.conv2d")
    if call is None or (str(call.attrs.data_layout), str(call.attrs.kernel_layout)) != ("NCHW", "OIHW"):
        return None
    weight = array_of(graph.value(call.args[1]))
    return weight if weight is not None and weight.dtype == np.float32 else None


def with_filters(conv: Call, weight: np.ndarray, x: Expr | None = None) -> Call:
    """A convolution with other filters, in float32, and of another image where one is given."""
    image = conv.args[0] if x is None else x
    return relax.Call(conv.op, [image, constant(weight.astype("float32"))], conv.attrs)


def by_channel(vector: np.ndarray) -> Expr:
    """A constant per channel as an operand of images, in float32."""
    return relax.const(vector.astype("float32").reshape(1, -1, 1, 1))


def replace_by_biased(graph: Graph, var: Var, conv: Call, bias: np.ndarray, absorbed: list[Var]) -> None:
    """Bind ``var`` to a convolution and a constant per channel."""
    product = graph.insert_before(var, conv, f"{var.name}#conv", absorbed)
    graph.replace(var, relax.op.add(product, by_channel(bias)), absorbs=absorbed)


def channel_vector(graph: Graph, addition: Var) -> tuple[np.ndarray | None, Expr | None]:
    """The constant [1, C, 1, 1] of an addition, as a vector, and the other operand."""
    channels = shape_of(addition)[1]
    for arg, other in (graph.value(addition).args, reversed(list(graph.value(addition).args))):
        array = constant_of(graph, arg)
        if array is not None and array.size == channels and array.ndim >= 3 and array.shape[-3] == channels:
            return array.reshape(-1), other
    return None, None


def _step(graph: Graph, user: Var, top: Var, gates: bool) -> tuple[str | None, Expr | None, Var]:
    """The epilogue step that starts at ``user``: its name, operand and last binding."""
    name = graph.op_name(user)
    if (activation := activation_of(graph, user)) is not None:
        return activation, None, user
    if name == "relax.clip":
        bounds = [getattr(bound, "value", None) for bound in graph.value(user).args[1:]]
        return ("relu6", None, user) if bounds == [0, 6] else (None, None, user)
    if name == "relax.maximum" and _bound(graph, user) == 0.0:
        above = graph.only_user(user)
        if above is not None and graph.op_name(above) == "relax.minimum" and _bound(graph, above) == 6.0:
            return "relu6", None, above
        return "relu", None, user
    if name == "relax.add" and shape_of(user) == shape_of(top):
        vector, other = channel_vector(graph, user)
        if vector is not None and other.same_as(top):
            return BIAS, relax.const(vector.astype("float32")), user
    return (*joining_tensor(graph, user, top, gates), user)


def _bound(graph: Graph, var: Var) -> float | None:
    found = [scalar_of(graph.value(a)) for a in graph.value(var).args]
    return next((value for value in found if value is not None), None)
