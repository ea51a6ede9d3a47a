"""Layer and RMS normalisation, as operators or written out -> ``ops.Normalize``.

``(x - mean(x)) / sqrt(mean((x - mean(x))**2) + eps) * scale + shift`` over the last axes; without the
subtraction it is RMS normalisation.  The variance may be an operator of its own, the mean a sum times
``1 / n``, the reciprocal a division, ``rsqrt``, or a product with ``1 / sqrt``; scale and shift may be
missing.  Rules: ``layer_norm`` and ``rms_norm``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import relax  # noqa: E402

from hetero_tvm.ops.normalization import Normalize  # noqa: E402
from hetero_tvm.relax_passes.graph import Graph, array_of, dtype_of, scalar_of, shape_of  # noqa: E402
from hetero_tvm.relax_passes.rule import Miss, Rule  # noqa: E402


@dataclass
class _Found:
    """``top`` becomes the norm of x over its last ``axes`` axes; scale and shift cover those."""

    x: Any
    axes: int
    eps: float
    scale: np.ndarray | None
    shift: np.ndarray | None
    top: Any
    absorbed: list[Any]


class _Norm(Rule):
    centered = True
    operator = ""

    def match(self, graph: Graph, var: Any) -> _Found | None:
        written_out = graph.op_name(var) != self.operator
        found = self._parts(graph, var) if written_out else _operator(graph, var)
        if found is not None and (dtype_of(found.x) != "float32" or dtype_of(found.top) != "float32"):
            raise Miss(f"dtype is {dtype_of(found.x)}, expected float32")
        return found

    def _parts(self, graph: Graph, var: Any) -> _Found | None:
        parts = variance_under(graph, var)
        if parts is None:
            return None
        eps, x, base, axes = parts
        if (x is not None) != self.centered:
            return None
        top, absorbed, base = divided(graph, var, base, x)
        x = x if self.centered else base
        trailing = _trailing(axes, len(shape_of(x)))
        (scale, shift), chain = _affine(graph, top, shape_of(x)[len(shape_of(x)) - trailing :])
        return _Found(x, trailing, eps, scale, shift, chain[-1], [var, *absorbed, *chain[:-1]])

    def rewrite(self, graph: Graph, var: Any, found: _Found) -> None:
        shape = shape_of(found.x)
        lead, n = shape[: len(shape) - found.axes], math.prod(shape[len(shape) - found.axes :])
        op = Normalize(lead, n, found.eps, self.centered, found.shift is not None)
        scale = np.ones(n, "float32") if found.scale is None else found.scale
        vectors = [relax.const(v.reshape(n).astype("float32")) for v in (scale, found.shift) if v is not None]
        x, name = found.x, found.top.name
        if found.axes != 1:
            x = graph.insert_before(found.top, relax.op.reshape(x, (*lead, n)), f"{name}#rows", [])
        call = relax.call_tir(
            graph.add_function(op.workload(), op.label),
            [x, *vectors],
            out_ty=relax.TensorType(op.output.shape, "float32"),
        )
        if found.axes != 1:
            norm = graph.insert_before(found.top, call, f"{name}#norm", [*found.absorbed, found.top])
            call = relax.op.reshape(norm, shape)
        graph.replace(found.top, call, absorbs=found.absorbed)


class LayerNorm(_Norm):
    """Mean subtracted."""

    name = "layer_norm"
    operator = "relax.nn.layer_norm"
    anchors = ("relax.nn.layer_norm", "relax.sqrt", "relax.rsqrt")


class RmsNorm(_Norm):
    """No mean subtracted."""

    name = "rms_norm"
    centered = False
    operator = "relax.nn.rms_norm"
    anchors = ("relax.nn.rms_norm", "relax.sqrt", "relax.rsqrt")


def _operator(graph: Graph, var: Any) -> _Found:
    call = graph.value(var)
    x, *weights = call.args
    rank = len(shape_of(x))
    trailing = _trailing([int(axis) % rank for axis in call.attrs.axes], rank)
    arrays = [array_of(graph.value(weight)) for weight in weights]
    if any(array is None for array in arrays):
        raise Miss("scale or shift is not constant")
    # The operator's flags say whether its weights count at all.
    used = [bool(getattr(call.attrs, flag, True)) for flag in ("scale", "center")]
    scale, shift = (a if flag else None for a, flag in zip([*arrays, None][:2], used, strict=True))
    return _Found(x, trailing, float(call.attrs.epsilon), scale, shift, var, [])


def _trailing(axes: list[int], rank: int) -> int:
    if sorted(axes) != list(range(rank - len(axes), rank)) or not axes:
        raise Miss(f"the mean is over axes {sorted(axes)} of {rank}, expected the last")
    return len(axes)


def variance_under(graph: Graph, root: Any) -> tuple[float, Any | None, Any, list[int]] | None:
    """``(eps, x, x - mean(x), axes)`` of a root of variance plus eps; see :func:`_variance`."""
    addition = graph.call(graph.value(root).args[0], "relax.add")
    if addition is None:
        return None
    for epsilon, variance in (addition.args, reversed(list(addition.args))):
        eps = scalar_of(graph.value(epsilon))
        parts = _variance(graph, variance) if eps is not None else None
        if parts is not None:
            return eps, *parts
    return None


def _variance(graph: Graph, expr: Any) -> tuple[Any | None, Any, list[int]] | None:
    """``(x, x - mean(x), axes)`` of a variance, ``(None, x, axes)`` of a mean of squares; else None.

    The second entry is None for the operator, which does not show the centred value.
    """
    call = graph.call(expr, "relax.variance")
    if call is not None and call.attrs.keepdims:
        return call.args[0], None, _axes(call)
    mean = _mean(graph, expr)
    base = _square_root_of(graph, mean[0]) if mean is not None else None
    if base is None:
        return None
    return _centered(graph, base, mean[1]), base, mean[1]


def _mean(graph: Graph, expr: Any) -> tuple[Any, list[int]] | None:
    """``(y, axes)`` when ``expr`` is the mean of y that keeps the axes, also as a sum times ``1 / n``."""
    call = graph.call(expr, "relax.mean")
    if call is not None:
        return (call.args[0], _axes(call)) if call.attrs.keepdims else None
    product = graph.call(expr, "relax.multiply", "relax.divide")
    if product is None:
        return None
    total = graph.call(product.args[0], "relax.sum")
    factor = scalar_of(graph.value(product.args[1]))
    if total is None or not factor or not total.attrs.keepdims:
        return None
    shape, axes = shape_of(total.args[0]), _axes(total)
    n = math.prod(shape[axis] for axis in axes)
    share = factor if product.op.name == "relax.multiply" else 1 / factor
    return (total.args[0], axes) if math.isclose(share * n, 1, rel_tol=1e-6) else None


def _axes(call: Any) -> list[int]:
    rank = len(shape_of(call.args[0]))
    return list(range(rank)) if call.attrs.axis is None else [int(axis) % rank for axis in call.attrs.axis]


def _square_root_of(graph: Graph, expr: Any) -> Any | None:
    """y when ``expr`` is y squared, in any spelling."""
    power = graph.call(expr, "relax.power")
    if power is not None:
        return power.args[0] if scalar_of(graph.value(power.args[1])) == 2.0 else None
    square = graph.call(expr, "relax.square")
    if square is not None:
        return square.args[0]
    product = graph.call(expr, "relax.multiply")
    if product is not None and _same(graph, *product.args):
        return product.args[0]
    return None


def _same(graph: Graph, a: Any, b: Any) -> bool:
    return a.same_as(b) or graph.value(a).same_as(graph.value(b))


def _centered(graph: Graph, expr: Any, axes: list[int]) -> Any | None:
    """x when ``expr`` is ``x - mean(x)`` over the same axes."""
    subtraction = graph.call(expr, "relax.subtract")
    if subtraction is None:
        return None
    mean = _mean(graph, subtraction.args[1])
    if mean is None or not _same(graph, mean[0], subtraction.args[0]) or mean[1] != axes:
        return None
    return subtraction.args[0]


def divided(graph: Graph, root: Any, base: Any, x: Any) -> tuple[Any, list[Any], Any]:
    """The binding of ``base / root``, what lies between, and the base (found there when not given)."""
    user = graph.only_user(root)
    if user is None:
        raise Miss("the standard deviation is used more than once")

    def is_base(expr: Any) -> bool:
        if base is not None:
            return _same(graph, expr, base)
        subtraction = graph.call(expr, "relax.subtract")
        mean = _mean(graph, subtraction.args[1]) if subtraction is not None else None
        return mean is not None and _same(graph, mean[0], x) and _same(graph, subtraction.args[0], x)

    call, name = graph.value(user), graph.op_name(user)
    if name == "relax.divide" and graph.op_name(root) == "relax.sqrt":
        if is_base(call.args[0]) and call.args[1].same_as(root):
            return user, [user], call.args[0]
        if scalar_of(graph.value(call.args[0])) == 1.0:
            product = graph.only_user(user)
            factors = _factors(graph, product)
            for one, other in (factors, factors[::-1]) if factors else ():
                if one.same_as(user) and is_base(other):
                    return product, [user, product], other
    factors = _factors(graph, user) if graph.op_name(root) == "relax.rsqrt" else []
    for one, other in (factors, factors[::-1]) if factors else ():
        if one.same_as(root) and is_base(other):
            return user, [user], other
    raise Miss("the centred value is not divided by its standard deviation")


def _factors(graph: Graph, var: Any) -> list[Any]:
    return list(graph.value(var).args) if var is not None and graph.op_name(var) == "relax.multiply" else []


def _affine(
    graph: Graph, var: Any, shape: tuple[int, ...]
) -> tuple[tuple[np.ndarray | None, np.ndarray | None], list[Any]]:
    """Constant scale and shift that follow ``var`` alone, and the bindings from it to the last of them."""
    found: dict[str, np.ndarray | None] = {"relax.multiply": None, "relax.add": None}
    chain = [var]
    for op in found:
        user = graph.only_user(chain[-1])
        if user is None or graph.op_name(user) != op or shape_of(user) != shape_of(var):
            continue
        arrays = [array_of(graph.value(arg)) for arg in graph.value(user).args]
        fitting = [a for a in arrays if a is not None and _covers(a, shape)]
        if fitting:
            array = fitting[0].reshape(shape if fitting[0].size > 1 else ())
            found[op] = np.broadcast_to(array, shape)
            chain.append(user)
    return (found["relax.multiply"], found["relax.add"]), chain


def _covers(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether a constant holds one value, or one for each place in the normalised axes."""
    if array.size == 1:
        return True
    return array.size == math.prod(shape) and array.ndim >= len(shape) and array.shape[-len(shape) :] == shape
