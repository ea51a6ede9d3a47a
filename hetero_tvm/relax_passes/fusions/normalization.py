"""Layer and RMS normalisation, as operators or written out -> ``ops.Normalization``.

``(x - mean(x)) / sqrt(mean((x - mean(x))**2) + eps) * scale + shift`` over neighbouring axes, usually the
last; where the target has no kernel for others, they are transposed to the end.  Without the
subtraction it is RMS normalisation.  The variance may be an operator of its own, the mean a sum times
``1 / n``, the reciprocal a division, ``rsqrt``, or a product with ``1 / sqrt``; scale and shift may be
missing.  Rules: ``layer_norm`` and ``rms_norm``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, same_value, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule


@dataclass
class _Found:
    """``top`` becomes the norm of x over its axes ``first`` to ``last``; scale and shift cover those."""

    x: Expr
    first: int
    last: int
    eps: float
    scale: np.ndarray | None
    shift: np.ndarray | None
    top: Var
    absorbed: list[Var]


class _Norm(Rule):
    """A norm as an operator, or written out around a root of the variance."""

    centered = True
    operator = ""

    def __init__(self, claims: Claims = lambda op: False):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> _Found | None:
        written_out = graph.op_name(var) != self.operator
        found = self._parts(graph, var) if written_out else _operator(graph, var)
        if found is not None and (dtype_of(found.x) != "float32" or dtype_of(found.top) != "float32"):
            raise Miss(f"dtype is {dtype_of(found.x)}, expected float32")
        return found

    def _parts(self, graph: Graph, var: Var) -> _Found | None:
        parts = variance_under(graph, var)
        if parts is None:
            if self.centered and (reasons := _strange_deviation(graph, var)):
                raise Miss(reasons)
            return None
        eps, x, base, axes = parts
        if (x is not None) != self.centered:
            return None
        top, absorbed, base = divided(graph, var, base, x)
        x = x if self.centered else base
        first, last = _neighbours(axes, len(shape_of(x)))
        (scale, shift), chain = _affine(graph, top, first, last)
        return _Found(x, first, last, eps, scale, shift, chain[-1], [var, *absorbed, *chain[:-1]])

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        shape, first, behind = shape_of(found.x), found.first, found.last + 1
        lead, n, trail = shape[:first], math.prod(shape[first:behind]), shape[behind:]
        if math.prod(trail) == 1:
            lead, trail = (*lead, *trail), ()
        op = Normalization(lead, n, found.eps, self.centered, found.shift is not None, trail=trail)
        moves = bool(trail) and not self._claims(op)
        if moves:
            op = replace(op, lead=(*lead, *trail), trail=())
        scale = np.ones(n, "float32") if found.scale is None else found.scale
        vectors = [relax.const(v.reshape(n).astype("float32")) for v in (scale, found.shift) if v is not None]
        before = graph.binder(found.top, [*found.absorbed, found.top])
        x = found.x
        if shape != (*lead, n, *trail):
            x = before(relax.op.reshape(x, (*lead, n, *trail)), "rows")
        rank, axis = len(lead) + 1 + len(trail), len(lead)
        if moves:
            x = before(relax.op.permute_dims(x, [*range(axis), *range(axis + 1, rank), axis]), "last")
        function, result = graph.add_function(op.workload(), op.label), op.output.shape
        value = relax.call_tir(function, [x, *vectors], out_ty=relax.TensorType(result, "float32"))
        if moves:
            norm = before(value, "norm")
            value = relax.op.permute_dims(norm, [*range(axis), rank - 1, *range(axis, rank - 1)])
            result = (*lead, n, *trail)
        if result != shape:
            value = relax.op.reshape(before(value, "norm"), shape)
        graph.replace(found.top, value, absorbs=found.absorbed)


class FuseLayerNorm(_Norm):
    """Layer normalisation: the mean is subtracted."""

    name = "layer_norm"
    operator = "relax.nn.layer_norm"
    anchors = ("relax.nn.layer_norm", "relax.sqrt", "relax.rsqrt")


class FuseRmsNorm(_Norm):
    """RMS normalisation: no mean is subtracted."""

    name = "rms_norm"
    centered = False
    operator = "relax.nn.rms_norm"
    anchors = ("relax.nn.rms_norm", "relax.sqrt", "relax.rsqrt")


def _operator(graph: Graph, var: Var) -> _Found:
    call = graph.value(var)
    x, *weights = call.args
    rank = len(shape_of(x))
    first, last = _neighbours([int(axis) % rank for axis in call.attrs.axes], rank)
    arrays = [array_of(graph.value(weight)) for weight in weights]
    if any(array is None for array in arrays):
        raise Miss("scale or shift is not constant")
    # The operator's flags say whether its weights count at all.
    used = [bool(getattr(call.attrs, flag, True)) for flag in ("scale", "center")]
    scale, shift = (a if flag else None for a, flag in zip([*arrays, None][:2], used, strict=True))
    return _Found(x, first, last, float(call.attrs.epsilon), scale, shift, var, [])


def _neighbours(axes: list[int], rank: int) -> tuple[int, int]:
    """The first and the last of the normalised axes."""
    if not axes or sorted(axes) != list(range(min(axes), max(axes) + 1)):
        raise Miss(f"the mean is over axes {sorted(axes)} of {rank}, expected neighbours")
    return min(axes), max(axes)


def variance_under(graph: Graph, root: Var) -> tuple[float, Expr | None, Expr | None, list[int]] | None:
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


_SCALED = ("relax.multiply", "relax.divide", "relax.add", "relax.reshape", "relax.expand_dims")
"""Steps between the mean of squares and the root, those with a number first."""


def _strange_deviation(graph: Graph, root: Var) -> str | None:
    """Reasons why a value divided by a standard deviation is no norm as the field has it.

    PyTorch's ``x.std()`` divides the variance by n - 1; ``(x - mean) / (std + eps)`` adds eps too late.
    None where ``root`` is no standard deviation, or nothing is divided by it.
    """
    user, behind = graph.only_user(root), False
    if user is not None and graph.op_name(user) == "relax.add":
        user, behind = graph.only_user(user), True
    if user is None or graph.op_name(user) not in ("relax.divide", "relax.multiply"):
        return None
    expr, share, inside = graph.value(root).args[0], 1.0, False
    while (step := graph.call(expr, *_SCALED)) is not None:
        factor = scalar_of(graph.value(step.args[1])) if step.op.name in _SCALED[:3] else 1.0
        if not factor:
            return None
        inside |= step.op.name == "relax.add"
        share *= {"relax.multiply": factor, "relax.divide": 1 / factor}.get(step.op.name, 1.0)
        expr = step.args[0]
    mean = graph.call(expr, "relax.mean")
    base = _square_root_of(graph, mean.args[0]) if mean is not None else None
    if base is None or _centered(graph, base, _axes(mean)) is None:
        return None
    count = math.prod(shape_of(base)[axis] for axis in _axes(mean))
    reasons = []
    if count > 1 and math.isclose(share, count / (count - 1), rel_tol=1e-6):
        reasons.append(f"the variance is divided by {count - 1}, expected {count} (not unbiased)")
    elif not math.isclose(share, 1.0, rel_tol=1e-6):
        reasons.append(f"the variance is multiplied by {share:.6g}")
    if not inside:
        reasons.append(
            "epsilon is added behind the root, expected inside" if behind else "there is no epsilon"
        )
    return " and ".join(reasons) or None


def _variance(graph: Graph, expr: Expr) -> tuple[Expr | None, Expr | None, list[int]] | None:
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


def _mean(graph: Graph, expr: Expr) -> tuple[Expr, list[int]] | None:
    """``(y, axes)`` when ``expr`` is the mean of y that keeps the axes, also as a sum times ``1 / n``.

    Axes that the mean drops may be put back behind it, as PyTorch's ``var(keepdim=True)`` is exported.
    """
    kept = expr
    while (moved := graph.call(kept, "relax.reshape", "relax.expand_dims")) is not None:
        kept = moved.args[0]
    call, share = graph.call(kept, "relax.mean"), 1.0
    if call is None:
        product = graph.call(kept, "relax.multiply", "relax.divide")
        call = graph.call(product.args[0], "relax.sum") if product is not None else None
        factor = scalar_of(graph.value(product.args[1])) if call is not None else None
        if not factor:
            return None
        share = factor if product.op.name == "relax.multiply" else 1 / factor
    shape, axes = shape_of(call.args[0]), _axes(call)
    if call.op.name == "relax.sum":
        share *= math.prod(shape[axis] for axis in axes)
    if shape_of(expr) != tuple(1 if axis in axes else size for axis, size in enumerate(shape)):
        return None
    return (call.args[0], axes) if math.isclose(share, 1, rel_tol=1e-6) else None


def _axes(call: Call) -> list[int]:
    rank = len(shape_of(call.args[0]))
    return list(range(rank)) if call.attrs.axis is None else [int(axis) % rank for axis in call.attrs.axis]


def _square_root_of(graph: Graph, expr: Expr) -> Expr | None:
    """y when ``expr`` is y squared, in any spelling."""
    power = graph.call(expr, "relax.power")
    if power is not None:
        return power.args[0] if scalar_of(graph.value(power.args[1])) == 2.0 else None
    square = graph.call(expr, "relax.square")
    if square is not None:
        return square.args[0]
    product = graph.call(expr, "relax.multiply")
    if product is not None and same_value(graph, *product.args):
        return product.args[0]
    return None


def _centered(graph: Graph, expr: Expr, axes: list[int]) -> Expr | None:
    """x when ``expr`` is ``x - mean(x)`` over the same axes."""
    subtraction = graph.call(expr, "relax.subtract")
    if subtraction is None:
        return None
    mean = _mean(graph, subtraction.args[1])
    if mean is None or not same_value(graph, mean[0], subtraction.args[0]) or mean[1] != axes:
        return None
    return subtraction.args[0]


def divided(graph: Graph, root: Var, base: Expr | None, x: Expr | None) -> tuple[Var, list[Var], Expr]:
    """The binding of ``base / root``, what lies between, and the base (found there when not given)."""
    found = _divided(graph, root, base, x)
    if shape_of(found[0]) != shape_of(found[2]):
        raise Miss(
            f"the norm of {shape_of(found[2])} has the shape {shape_of(found[0])}: epsilon has more axes"
        )
    return found


def _divided(graph: Graph, root: Var, base: Expr | None, x: Expr | None) -> tuple[Var, list[Var], Expr]:
    user = graph.only_user(root)
    if user is None:
        raise Miss("the standard deviation is used more than once")

    def is_base(expr: Expr) -> bool:
        if base is not None:
            return same_value(graph, expr, base)
        subtraction = graph.call(expr, "relax.subtract")
        mean = _mean(graph, subtraction.args[1]) if subtraction is not None else None
        return mean is not None and all(same_value(graph, y, x) for y in (mean[0], subtraction.args[0]))

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


def _factors(graph: Graph, var: Var | None) -> list[Expr]:
    return list(graph.value(var).args) if var is not None and graph.op_name(var) == "relax.multiply" else []


def _affine(
    graph: Graph, var: Var, first: int, last: int
) -> tuple[tuple[np.ndarray | None, np.ndarray | None], list[Var]]:
    """Constant scale and shift of axes ``first`` to ``last`` that follow ``var`` alone, and the bindings from
    it to the last of them."""
    found: dict[str, np.ndarray | None] = {"relax.multiply": None, "relax.add": None}
    shape, chain = shape_of(var), [var]
    for op in found:
        user = graph.only_user(chain[-1])
        if user is None or graph.op_name(user) != op or shape_of(user) != shape:
            continue
        arrays = [array_of(graph.value(arg)) for arg in graph.value(user).args]
        fitting = [a for a in arrays if a is not None and _covers(a, shape, first, last)]
        if fitting:
            array = fitting[0].reshape(shape[first : last + 1] if fitting[0].size > 1 else ())
            found[op] = np.broadcast_to(array, shape[first : last + 1])
            chain.append(user)
    return (found["relax.multiply"], found["relax.add"]), chain


def _covers(array: np.ndarray, shape: tuple[int, ...], first: int, last: int) -> bool:
    """Whether a constant holds one value, or one for each place in the normalised axes and no others."""
    if array.size == 1:
        return True
    extents = (1,) * (len(shape) - array.ndim) + array.shape
    return extents == tuple(e if first <= axis <= last else 1 for axis, e in enumerate(shape))
