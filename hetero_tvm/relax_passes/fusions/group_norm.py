"""Group and instance normalisation, as operators or written out -> ``ops.GroupNorm``.

Exporters reshape [N, C, ...] to [N, G, -1], normalise over the last axis, reshape back, and multiply
and add a constant per channel; an instance norm does the same without reshapes over all axes from the
third on.  An activation that follows alone joins in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.relax_passes.fusions.elementwise import activation_of
from hetero_tvm.relax_passes.fusions.normalization import divided, variance_under
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule, check_float32

_OPERATORS = ("relax.nn.group_norm", "relax.nn.instance_norm")


@dataclass
class _Found:
    x: Expr
    groups: int
    eps: float
    scale: np.ndarray
    shift: np.ndarray
    top: Var
    absorbed: list[Var]
    activation: str = ""


class FuseGroupNorm(Rule):
    """Statistics over groups of channels, scale and shift by channel."""

    name = "group_norm"
    anchors = (*_OPERATORS, "relax.sqrt", "relax.rsqrt")

    def match(self, graph: Graph, var: Var) -> _Found | None:
        found = _operator(graph, var) if graph.op_name(var) in _OPERATORS else _parts(graph, var)
        if found is None:
            return None
        check_float32(found.x)
        _follow(graph, found)
        user = graph.only_user(found.top)
        if user is not None and (activation := activation_of(graph, user)) is not None:
            found.absorbed.append(found.top)
            found.top, found.activation = user, activation
        return found

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        op = GroupNorm(shape_of(found.x), found.groups, found.eps, found.activation)
        vectors = [relax.const(v.astype("float32")) for v in (found.scale, found.shift)]
        call = graph.call_function(op.workload(), op.label, [found.x, *vectors], found.top)
        graph.replace(found.top, call, absorbs=found.absorbed)


def _operator(graph: Graph, var: Var) -> _Found:
    call = graph.value(var)
    x, *weights = call.args
    rank, channels = len(shape_of(x)), shape_of(x)[1]
    axes = [int(axis) % rank for axis in call.attrs.axes]
    if int(call.attrs.channel_axis) % rank != 1 or sorted(set(axes) | {1}) != list(range(1, rank)):
        raise Miss(
            f"channels are axis {int(call.attrs.channel_axis)} and statistics over {axes}, expected 1 "
            "and all that follow"
        )
    arrays = [array_of(graph.value(weight)) for weight in weights]
    if any(array is None for array in arrays):
        raise Miss("scale or shift is not constant")
    scale = arrays[0] if call.attrs.scale else np.ones(channels)
    shift = arrays[1] if call.attrs.center else np.zeros(channels)
    groups = int(call.attrs.num_groups) if call.op.name == "relax.nn.group_norm" else channels
    return _Found(x, groups, float(call.attrs.epsilon), scale, shift, var, [])


def _parts(graph: Graph, var: Var) -> _Found | None:
    parts = variance_under(graph, var)
    if parts is None or parts[1] is None:
        return None
    eps, rows, base, axes = parts
    shape = shape_of(rows)
    if len(shape) < 3 or sorted(axes) != list(range(2, len(shape))):
        return None
    view = graph.call(rows, "relax.reshape") if len(shape) == 3 else None
    whole = shape_of(view.args[0]) if view is not None else ()
    top, absorbed, _ = divided(graph, var, base, rows)
    scale, shift, top, chain = _affine(graph, top, np.ones(shape[1]), np.zeros(shape[1]))
    back = graph.only_user(top)
    if (
        back is not None
        and graph.op_name(back) == "relax.reshape"
        and len(whole) >= 2
        and (shape_of(back) == whole and whole[0] == shape[0] and whole[1] % shape[1] == 0)
    ):
        scale, shift = (np.repeat(v, whole[1] // shape[1]) for v in (scale, shift))
        return _Found(view.args[0], shape[1], eps, scale, shift, back, [var, *absorbed, *chain, rows])
    # [N, C, L] without a constant per channel is as well a layer norm over L.
    if len(shape) == 3 and (not chain or shape[1] == 1 or _uniform(scale) and _uniform(shift)):
        return None
    return _Found(rows, shape[1], eps, scale, shift, top, [var, *absorbed, *chain])


def _uniform(vector: np.ndarray) -> bool:
    return bool((vector == vector[0]).all())


def _follow(graph: Graph, found: _Found) -> None:
    """Take constants per channel that follow the norm into its scale and shift."""
    found.scale, found.shift, top, chain = _affine(graph, found.top, found.scale, found.shift)
    found.absorbed += chain
    found.top = top


def _affine(
    graph: Graph, var: Var, scale: np.ndarray, shift: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Var, list[Var]]:
    """Scale and shift with constants by axis 1 that follow ``var`` alone; the last binding; the others."""
    scale, shift, chain = scale.astype("float64"), shift.astype("float64"), []
    while (user := graph.only_user(var)) is not None:
        name, shape = graph.op_name(user), shape_of(var)
        if name not in ("relax.multiply", "relax.add") or shape_of(user) != shape:
            break
        arrays = [array_of(graph.value(arg)) for arg in graph.value(user).args]
        constant = next((a for a in arrays if a is not None and _by_channel(a, shape)), None)
        if constant is None:
            break
        vector = constant.reshape(-1).astype("float64")
        scale, shift = (
            (scale * vector, shift * vector) if name == "relax.multiply" else (scale, shift + vector)
        )
        chain.append(var)
        var = user
    return scale, shift, var, chain


def _by_channel(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether a constant has one value, or one for each place of axis 1."""
    if array.size == 1:
        return True
    axis = array.ndim - len(shape) + 1
    return axis >= 0 and array.size == shape[1] == array.shape[axis]
