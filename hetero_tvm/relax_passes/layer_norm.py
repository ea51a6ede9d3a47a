"""Layer and RMS normalisation written out -> ``relax.nn.layer_norm`` / ``relax.nn.rms_norm``.

``(x - mean(x)) / sqrt(mean((x - mean(x))**2) + eps) * scale + shift`` over the last axis; without
the subtraction it is RMS normalisation.  The reciprocal may be a division, ``rsqrt``, or a product
with ``1 / sqrt``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import relax  # noqa: E402

from hetero_tvm.relax_passes.graph import Graph, array_of, dtype_of, scalar_of, shape_of  # noqa: E402
from hetero_tvm.relax_passes.rule import Miss, Rule  # noqa: E402


@dataclass
class _Found:
    x: Any
    eps: float
    scale: Any
    shift: Any | None
    top: Any
    absorbed: list[Any]


class _Norm(Rule):
    anchors = ("relax.sqrt", "relax.rsqrt")
    centered = True

    def match(self, graph: Graph, var: Any) -> _Found | None:
        addition = graph.call(graph.value(var).args[0], "relax.add")
        if addition is None:
            return None
        eps = next((scalar_of(a) for a in addition.args if scalar_of(a) is not None), None)
        means = [call for a in addition.args if (call := graph.call(a, "relax.mean")) is not None]
        mean = means[0] if means else None
        if eps is None or mean is None:
            return None
        base = _square_root_of(graph, mean.args[0])
        if base is None:
            return None
        x = _centered(graph, base)
        if (x is not None) != self.centered:
            return None
        x = x if self.centered else base
        rank = len(shape_of(x))
        if not _over_last_axis(mean, rank):
            raise Miss(f"the mean is over axes {[int(a) for a in mean.attrs.axis]}, expected the last")
        top, absorbed = _divide(graph, var, base)
        n = shape_of(x)[-1]
        scale_var, scale = _vector_user(graph, top, "relax.multiply", n)
        if scale is None:
            raise Miss("the normalised value is not multiplied by a constant vector")
        absorbed, top, shift = [*absorbed, scale_var], scale_var, None
        shift_var, found_shift = _vector_user(graph, top, "relax.add", n)
        if found_shift is not None:
            absorbed, top, shift = [*absorbed, shift_var], shift_var, found_shift
        return _Found(x, eps, scale, shift, top, [var, *absorbed])


class LayerNorm(_Norm):
    """Mean subtracted."""

    name = "layer_norm"
    centered = True

    def rewrite(self, graph: Graph, var: Any, found: _Found) -> None:
        n = shape_of(found.x)[-1]
        shift = found.shift if found.shift is not None else relax.const([0.0] * n, dtype_of(found.x))
        fused = relax.op.nn.layer_norm(found.x, found.scale, shift, axes=[-1], epsilon=found.eps)
        graph.replace(found.top, fused, absorbs=found.absorbed)


class RmsNorm(_Norm):
    """No mean subtracted."""

    name = "rms_norm"
    centered = False

    def rewrite(self, graph: Graph, var: Any, found: _Found) -> None:
        fused = relax.op.nn.rms_norm(found.x, found.scale, axes=[-1], epsilon=found.eps)
        if found.shift is not None:
            top = graph.insert_before(found.top, fused, found.top.name + "#norm", found.absorbed)
            graph.replace(found.top, relax.op.add(top, found.shift), absorbs=found.absorbed)
        else:
            graph.replace(found.top, fused, absorbs=found.absorbed)


def _square_root_of(graph: Graph, expr: Any) -> Any | None:
    """y when ``expr`` is y squared, in any spelling."""
    power = graph.call(expr, "relax.power")
    if power is not None:
        return power.args[0] if scalar_of(power.args[1]) == 2.0 else None
    square = graph.call(expr, "relax.square")
    if square is not None:
        return square.args[0]
    product = graph.call(expr, "relax.multiply")
    if product is not None and product.args[0].same_as(product.args[1]):
        return product.args[0]
    return None


def _centered(graph: Graph, expr: Any) -> Any | None:
    """x when ``expr`` is ``x - mean(x)``."""
    subtraction = graph.call(expr, "relax.subtract")
    if subtraction is None:
        return None
    mean = graph.call(subtraction.args[1], "relax.mean")
    return subtraction.args[0] if mean is not None and mean.args[0].same_as(subtraction.args[0]) else None


def _over_last_axis(mean: Any, rank: int) -> bool:
    axes = (
        [int(axis) % rank for axis in mean.attrs.axis] if mean.attrs.axis is not None else list(range(rank))
    )
    return axes == [rank - 1] and bool(mean.attrs.keepdims)


def _divide(graph: Graph, root: Any, base: Any) -> tuple[Any, list[Any]]:
    """The binding of ``base / root`` and what lies between."""
    user = graph.only_user(root)
    if user is None:
        raise Miss("the standard deviation is used more than once")
    call = graph.value(user)
    name = graph.op_name(user)
    if name == "relax.divide" and call.args[0].same_as(base) and call.args[1].same_as(root):
        return user, [user]
    if name == "relax.multiply" and any(a.same_as(base) for a in call.args):
        if graph.op_name(root) == "relax.rsqrt":
            return user, [user]
    if name == "relax.divide" and scalar_of(call.args[0]) == 1.0:
        product = graph.only_user(user)
        if product is not None and graph.op_name(product) == "relax.multiply":
            if any(a.same_as(base) for a in graph.value(product).args):
                return product, [user, product]
    raise Miss("the centred value is not divided by its standard deviation")


def _vector_user(graph: Graph, var: Any, op: str, n: int) -> tuple[Any, Any]:
    """The only user of ``var`` when it is ``op`` with a constant vector of length n, and that constant."""
    user = graph.only_user(var)
    if user is None or graph.op_name(user) != op:
        return None, None
    for arg in graph.value(user).args:
        array = array_of(arg)
        if array is None or shape_of(user) != shape_of(var):
            continue
        if array.ndim and array.size == n and array.shape[-1] == n:
            return user, arg if array.ndim == 1 else relax.const(array.reshape(n))
    return None, None
