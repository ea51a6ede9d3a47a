"""Convolutions of one image whose results are added, as one convolution.

``conv(x, V) + conv(x, W) = conv(x, V + W)``: networks that are trained with several branches (RepVGG, Ding et
al., 2021; MobileOne, Vasu et al., 2023; YOLOv6, RepViT) compute as many products in a single branch.  A
smaller filter lies among the zeros of a larger one that has its taps; a batch normalisation of the image
itself is a filter of one tap that sees its own channel.  Filters are added in float64 and round once; sums
of products come in another order then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.fusions.convolutions.conv2d import (
    by_channel,
    channel_vector,
    plain_filters,
    with_filters,
)
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


@dataclass
class _Terms:
    """Terms of a sum: convolutions by the image that they read, what else is added, constants by channel."""

    convolutions: dict[Expr, list[Var]] = field(default_factory=dict)
    normalizations: dict[Expr, list[Var]] = field(default_factory=dict)
    others: list[Expr] = field(default_factory=list)
    shift: np.ndarray | float = 0.0
    absorbed: list[Var] = field(default_factory=list)


@dataclass
class _Merged:
    """A convolution that stands for others, ``covers``, of the same image."""

    call: Call
    weight: np.ndarray
    shift: np.ndarray | float
    covers: list[Var]


class MergeAddedConvolutions(Rule):
    """``conv(x, V) + conv(x, W) + batch_norm(x)``, filters constant -> ``conv(x, V + W + diagonal) + b``."""

    name = "added_convolutions"
    anchors = ("relax.add",)

    def match(self, graph: Graph, var: Var) -> tuple[_Terms, list[_Merged]] | None:
        user = graph.only_user(var)
        if dtype_of(var) != "float32" or len(shape_of(var)) != 4:
            return None
        if user is not None and graph.op_name(user) == "relax.add" and shape_of(user) == shape_of(var):
            return None  # a part of a longer sum
        terms = _Terms()
        _collect(graph, var, shape_of(var), terms)
        merged = list(_merge(graph, terms))
        return (terms, merged) if merged else None

    def rewrite(self, graph: Graph, var: Var, found: tuple[_Terms, list[_Merged]]) -> None:
        terms, merged = found
        covered = {v for one in merged for v in one.covers}
        bind = graph.binder(var, [*terms.absorbed, *covered])
        sums: list[Expr] = []
        shift = terms.shift
        for one in merged:
            sums.append(with_filters(one.call, one.weight))
            shift = shift + one.shift
        groups = (*terms.convolutions.values(), *terms.normalizations.values())
        sums += [*(v for group in groups for v in group if v not in covered), *terms.others]
        if np.any(shift):
            sums.insert(1, by_channel(np.broadcast_to(shift, shape_of(var)[1])))
        total = sums[0]
        for term in sums[1:]:
            total, term = (bind(e, "sum") if isinstance(e, relax.Call) else e for e in (total, term))
            total = relax.op.add(total, term)
        graph.replace(var, total, absorbs=[*terms.absorbed, *covered])


def _collect(graph: Graph, var: Var, shape: tuple[int, ...], terms: _Terms) -> None:
    """Sort the terms of the sum ``var``, whose value nobody else reads."""
    vector, other = channel_vector(graph, var)
    operands = graph.value(var).args
    if vector is not None and shape_of(other) == shape:
        terms.shift, operands = terms.shift + vector.astype("float64"), [other]
    terms.absorbed.append(var)
    for term in operands:
        own = isinstance(term, relax.Var) and shape_of(term) == shape and graph.only_user(term) is not None
        if own and graph.op_name(term) == "relax.add":
            _collect(graph, term, shape, terms)
        elif own and plain_filters(graph, term) is not None:
            terms.convolutions.setdefault(graph.value(term).args[0], []).append(term)
        elif own and (image := _normalized(graph, term)) is not None:
            terms.normalizations.setdefault(image, []).append(term)
        else:
            terms.others.append(term)


def _normalized(graph: Graph, var: Var) -> Expr | None:
    """The image whose batch normalisation by constants ``var`` is."""
    item = graph.value(var)
    if not isinstance(item, relax.TupleGetItem) or item.index != 0:
        return None
    call = graph.call(item.tuple_value, "relax.nn.batch_norm")
    if call is None or int(call.attrs.axis) != 1 or graph.only_user(item.tuple_value) is None:
        return None
    return call.args[0] if all(array_of(graph.value(arg)) is not None for arg in call.args[1:]) else None


def _merge(graph: Graph, terms: _Terms) -> Iterator[_Merged]:
    """The convolutions that take in others of their image."""
    for image, convolutions in terms.convolutions.items():
        left = sorted(convolutions, key=lambda v: -plain_filters(graph, v).size)
        while left:
            largest, *rest = left
            call, weight = graph.value(largest), plain_filters(graph, largest).astype("float64")
            one = _Merged(call, weight, 0.0, [largest])
            for var in rest:
                filters = plain_filters(graph, var)
                if (more := _inside(call, graph.value(var), filters, weight.shape)) is not None:
                    one.weight = one.weight + more
                    one.covers.append(var)
            for var in terms.normalizations.get(image, ()):
                if (found := _diagonal(graph, var, call, weight.shape)) is not None:
                    one.weight, one.shift = one.weight + found[0], one.shift + found[1]
                    one.covers.append(var)
            taken = set(one.covers)
            left = [var for var in left if var not in taken]
            terms.normalizations[image] = [v for v in terms.normalizations.get(image, ()) if v not in taken]
            if len(one.covers) > 1:
                yield one


def _integers(call: Call, name: str) -> tuple[int, ...]:
    return tuple(int(value) for value in getattr(call.attrs, name))


def _inside(call: Call, other: Call, weight: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The filter of ``other`` among zeros, as one of ``call`` with ``shape``; None if a tap has no place."""
    if int(call.attrs.groups) != int(other.attrs.groups) or weight.shape[:2] != shape[:2]:
        return None
    if _integers(call, "strides") != _integers(other, "strides"):
        return None
    places = [
        _places(weight.shape[2 + axis], shape[2 + axis], [_axis(c, axis) for c in (other, call)])
        for axis in (0, 1)
    ]
    if any(place is None for place in places):
        return None
    out = np.zeros(shape)
    out[:, :, places[0][:, None], places[1][None, :]] = weight
    return out


def _axis(call: Call, axis: int) -> tuple[int, int]:
    """Dilation and padding before the first pixel, along one axis of an image."""
    return _integers(call, "dilation")[axis], _integers(call, "padding")[axis]


def _places(taps: int, of: int, axes: list[tuple[int, int]]) -> np.ndarray | None:
    """Taps of a filter with ``of`` taps that read what the ``taps`` of a smaller one read."""
    (dilation, before), (step, padding) = axes
    pixels = np.arange(taps) * dilation - before + padding
    if (pixels % step).any() or pixels.min() < 0 or pixels.max() // step >= of:
        return None
    return pixels // step


def _diagonal(
    graph: Graph, var: Var, call: Call, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """The filter and the shift of a batch normalisation of the image that ``call`` reads."""
    norm = graph.value(graph.value(var).tuple_value)
    gamma, beta, mean, variance = (array_of(graph.value(a)).astype("float64") for a in norm.args[1:])
    filters, channels = shape[:2]
    places = [_places(1, shape[2 + axis], [(1, 0), _axis(call, axis)]) for axis in (0, 1)]
    if gamma.size != filters or _integers(call, "strides") != (1, 1) or any(p is None for p in places):
        return None
    factor = gamma / np.sqrt(variance + float(norm.attrs.epsilon))
    weight, every = np.zeros(shape), np.arange(filters)
    weight[every, every % channels, places[0][0], places[1][0]] = factor
    return weight, beta - mean * factor
