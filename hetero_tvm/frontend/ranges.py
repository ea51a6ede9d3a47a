"""Import of a model whose lengths stay open: the same model at several sizes.

One size says nothing about others; several, chosen well, say it all (:mod:`hetero_tvm.schedules.symbolic`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence

from onnx import numpy_helper

from hetero_tvm.errors import HeteroTVMError, ModelError, ShapeError
from hetero_tvm.frontend.bounds import Given, default_high
from hetero_tvm.frontend.dimensions import Declared, Sum, symbol_of
from hetero_tvm.frontend.relations import equal_symbols, least_steps, sum_of_others
from hetero_tvm.frontend.signature import ImportedModel, OpenShapes, Span, Symbol, multiples
from hetero_tvm.frontend.stored import BRANCH
from hetero_tvm.frontend.telling import telling_sizes

Import = Callable[[dict[str, tuple[int, ...]]], ImportedModel]

_MOST_CONFIRMING = 6
"""Sizes that are tried where those that confirm are a special case."""


def import_open(
    given: Given,
    declared: Declared,
    load: Import,
    by_places: set[str] | None = None,
    told: Given | None = None,
) -> ImportedModel:
    """Import a model at the sizes that tell what it is at all sizes in the ranges.

    Parameters
    ----------
    given : dimensions by input name; without a :class:`Span` among them the model is imported once.
    declared : the inputs as the model file declares them; None for an input of unknown rank.
    load : imports the model with fixed shapes.
    by_places : names of Resize nodes that ``load`` gathers; those without a plain form at a size are added.
    told : the dimensions before they were cut at what the model takes, where they were.

    Raises
    ------
    ShapeError : a range for a dimension that is fixed, or two ranges for one name; all are listed.
    ModelError : as ``load`` does.
    """
    names, symbols = _symbols(given, declared)

    def at(sizes: Mapping[str, int]) -> ImportedModel:
        shapes = {}
        for name, dims in given.items():
            shapes[name] = tuple(
                sizes[names[name, axis]]
                if isinstance(dim, Span)
                else dim.at(sizes)
                if isinstance(dim, Sum)
                else dim
                for axis, dim in enumerate(dims)
            )
        return load(shapes)

    if not symbols:
        return at({})
    sizes = telling_sizes(symbols)
    try:
        models = [at(one) for one in sizes]
    except HeteroTVMError as error:
        if any("; exported for " in problem for problem in getattr(error, "problems", ())):
            raise  # a range is too wide, and no relation between sizes changes that
        if (equal := equal_symbols(symbols, at)) is not None:
            joined = {
                name: tuple(
                    Sum((equal[names[name, axis]],))
                    if isinstance(dim, Span) and equal[names[name, axis]] != names[name, axis]
                    else dim
                    for axis, dim in enumerate(dims)
                )
                for name, dims in given.items()
            }
            model = import_open(joined, declared, load, by_places, told)
            same = _shared({name: (kept,) for name, kept in equal.items()}, names, declared)
            _warn_of_equal(model.name, equal, same, str(error).splitlines()[0])
            return model
        total = sum_of_others(symbols, at)
        if total is not None and (same := _shared(total, names, declared)):
            raise ShapeError(
                "The model takes a dimension at the sum of two others only.",
                problems=str(error).splitlines()[:1],
                hint=f"give it as this sum: {' '.join(f'--shape {text}' for text in same)}",
            ) from error
        if (fewer := least_steps(symbols, at)) is None:
            raise
        raise ShapeError(
            "The model takes no size between multiples.",
            problems=str(error).splitlines()[:1],
            hint=f"give the ranges as {', '.join(map(str, fewer))}: with ':' and the step, or as the third "
            "number of hetero_tvm.Span",
        ) from error
    sizes, models = _settled(symbols, sizes, models, at)
    if by_places is not None:
        gathered, plain = _resized(models)
        by_places |= gathered
        if gathered & plain:
            sizes, models = _settled(symbols, sizes, [at(one) for one in sizes], at)
    first, *others = models
    for other, at_size in zip(others, sizes[1:], strict=True):
        for node, branch in branches(first).items():
            if branches(other).get(node, branch) != branch:
                raise ShapeError(
                    f"{first.name}: node {node!r} (If) takes another branch at "
                    f"{_listed(at_size)} than at {_listed(sizes[0])}.",
                    hint="give ranges of which all sizes take one branch, one library each",
                )
        ends = zip(
            (*first.signature.inputs, *first.signature.outputs),
            (*other.signature.inputs, *other.signature.outputs),
            strict=True,
        )
        if any((a.name, a.dtype, len(a.shape)) != (b.name, b.dtype, len(b.shape)) for a, b in ends):
            raise ModelError(
                f"{first.name}: its inputs and outputs depend on the sizes",
                hint="build it for fixed shapes, one library each",
            )
    given_ends = {
        names[name, axis]
        for name, dims in (told or given).items()
        for axis, dim in enumerate(dims)
        if isinstance(dim, Span) and dim != Span()
    }
    decided = frozenset(s.name for s in symbols if s.name not in given_ends)
    return dataclasses.replace(first, open=OpenShapes(symbols, sizes, tuple(others), at, decided))


def _warn_of_equal(model: str, equal: Mapping[str, str], same: Sequence[str], why: str) -> None:
    """Tell which dimensions were taken as one, and how to say so."""
    pairs = ", ".join(f"{name} = {kept}" for name, kept in equal.items() if name != kept)
    given = f"; {' '.join(f'--shape {text}' for text in same)} says so" if same else ""
    warnings.warn(
        f"{model}: built for equal sizes of dimensions of different names, since it takes no others: "
        f"{pairs}{given} ({why})",
        stacklevel=4,
    )


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def _symbols(given: Given, declared: Declared) -> tuple[dict[tuple[str, int], str], tuple[Symbol, ...]]:
    """Name of each open dimension, and the symbols in the order in which they come."""
    names: dict[tuple[str, int], str] = {}
    ranges: dict[str, list[tuple[str, Span]]] = {}
    axes: dict[str, int] = {}
    problems = []
    for name, dims in given.items():
        known = declared.get(name)
        for axis, dim in enumerate(dims):
            there = known[axis] if known is not None and axis < len(known) else None
            if isinstance(dim, Span) and isinstance(there, int) and there > 0:
                problems.append(f"{name}: dimension {axis} is fixed to {there} in the model")
            if isinstance(dim, Span):
                symbol = there if isinstance(there, str) and there else f"{name}_{axis}"
                symbol = symbol_of(symbol)
                names[name, axis] = symbol
                ranges.setdefault(symbol, []).append((f"{name}, dimension {axis}", dim))
                axes.setdefault(symbol, axis)
    symbols = []
    for symbol, spans in ranges.items():
        step = math.lcm(*(span.step for _, span in spans))
        low = max(span.low for _, span in spans)
        highs = {span.high for _, span in spans if span.high is not None}
        lows = {span.low for _, span in spans if span.high is not None}
        if len(highs) > 1 or len(lows) > 1:
            listed = ", ".join(f"{span} ({where})" for where, span in spans)
            problems.append(f"{symbol} has several ranges: {listed}")
        high = min(highs, default=max(low, default_high(axes[symbol])))
        low, high = multiples(low, high, step)
        if high < max(low, 1):
            listed = ", ".join(f"{span} ({where})" for where, span in spans)
            problems.append(f"{symbol} has no size: {listed}")
        symbols.append(Symbol(symbol, low, high, step))
    if problems:
        raise ShapeError(
            "The given ranges do not fit the model.",
            problems=problems,
            hint="Export the model with dynamic_shapes or dynamic_axes where lengths vary.",
        )
    return names, tuple(symbols)


def _shared(
    stand: Mapping[str, tuple[str, ...]], names: Mapping[tuple[str, int], str], declared: Declared
) -> list[str]:
    """Shapes, as ``--shape`` takes them, of inputs with a dimension for which others ``stand``: one that is
    equal, or those whose sum it is; none where such a dimension has no name."""
    spelled: dict[str, str] = {}
    for (name, axis), symbol in names.items():
        dim = (declared.get(name) or ())[axis : axis + 1]
        if dim and isinstance(dim[0], str) and dim[0]:
            spelled.setdefault(symbol, dim[0])
    found = []
    for name in dict.fromkeys(name for (name, axis), symbol in names.items() if stand[symbol] != (symbol,)):
        row = []
        for axis, dim in enumerate(declared.get(name) or ()):
            symbol = names.get((name, axis))
            words = [str(dim)] if symbol is None else [spelled.get(part, "") for part in stand[symbol]]
            row.append("+".join(words) if all(words) else "")
        if not all(row):
            return []
        found.append(f"{name}=[{','.join(row)}]")
    return found


def _at_usual_sizes(
    symbols: Sequence[Symbol],
    models: Sequence[ImportedModel],
    at: Callable[[Mapping[str, int]], ImportedModel],
) -> tuple[tuple[dict[str, int], ...], list[ImportedModel]] | None:
    """Other sizes, and the models there, where the largest ones are a special case; else None.

    What pads to a multiple pads nothing at a multiple, and largest sizes are often round: at the next size
    the model pads.
    """
    taken = [steps(model) for model in models]
    special = [s for s, changed in zip(symbols, taken[1:], strict=False) if changed != taken[0]]
    if not special:
        return None
    wider = [dataclasses.replace(s, high=s.high + s.step) if s in special else s for s in symbols]
    sizes = telling_sizes(wider)
    try:
        found = [at(one) for one in sizes]
    except HeteroTVMError:  # a table of positions may end at the largest size
        return None
    return (sizes, found) if len({tuple(steps(model)) for model in found}) == 1 else None


def _settled(
    symbols: Sequence[Symbol],
    sizes: Sequence[Mapping[str, int]],
    models: Sequence[ImportedModel],
    at: Callable[[Mapping[str, int]], ImportedModel],
) -> tuple[tuple[Mapping[str, int], ...], list[ImportedModel]]:
    """Sizes and models of which none is a special case."""
    if (usual := _at_usual_sizes(symbols, models, at)) is not None:
        sizes, models = usual
    if (last := _confirming(symbols, sizes, models, at)) is not None:
        sizes, models = (*sizes[:-1], last[0]), [*models[:-1], last[1]]
    return tuple(sizes), list(models)


def _resized(models: Sequence[ImportedModel]) -> tuple[set[str], set[str]]:
    """Names of Resize nodes that are gathered at a size, and of those that have a plain form at one.

    Images of a pyramid grow by two where their sides are even, and by 9 / 5 from the half of 9.
    """
    nodes = [(node.op_type, node.name) for model in models for node in model.clean.proto.graph.node]
    plain = {name for kind, name in nodes if kind == "Resize"}
    gathered = {name.rpartition("/")[0] for kind, name in nodes if kind == "Gather"}
    source = models[0].source
    resizes = {n.name for n in source.proto.graph.node if n.op_type == "Resize"} if source else set()
    return gathered & resizes, plain


def _confirming(
    symbols: Sequence[Symbol],
    sizes: Sequence[Mapping[str, int]],
    models: Sequence[ImportedModel],
    at: Callable[[Mapping[str, int]], ImportedModel],
) -> tuple[dict[str, int], ImportedModel] | None:
    """Sizes that confirm, and the model there, where those that are to are the only special case; else None.

    A Vision Transformer stretches its table of positions but at the size that the table was trained for.
    """
    kinds = [[kind for kind, _ in steps(model)] for model in models]
    if kinds[-1] == kinds[0] or any(other != kinds[0] for other in kinds[:-1]):
        return None
    values = []  # the others' first: an axis of a table may be a special case alone
    for symbol in symbols:
        top, last = sizes[0][symbol.name], sizes[-1][symbol.name]
        others = [one[symbol.name] for one in sizes[1:-1] if one[symbol.name] != top]
        values.append(list(dict.fromkeys((*others, last + symbol.step, top, last))))
    mixed = (dict(zip(sizes[0], several, strict=True)) for several in itertools.product(*values))
    for one in itertools.islice((one for one in mixed if one not in sizes), _MOST_CONFIRMING):
        try:
            model = at(one)
        except HeteroTVMError:
            continue
        if [kind for kind, _ in steps(model)] == kinds[0]:
            return one, model
    return None


def branches(model: ImportedModel) -> dict[str, str]:
    """Branches of the If nodes that follow from sizes, by the names of the nodes."""
    props = {prop.key: prop.value for prop in model.clean.proto.metadata_props}
    return {key.removeprefix(BRANCH): value for key, value in props.items() if key.startswith(BRANCH)}


def steps(model: ImportedModel) -> list[tuple[str, bool]]:
    """Operators of a model, in order, and whether they pad by nothing."""
    graph = model.clean.proto.graph
    pads = {node.input[1] for node in graph.node if node.op_type == "Pad"}
    idle = {t.name for t in graph.initializer if t.name in pads and not numpy_helper.to_array(t).any()}
    return [(node.op_type, node.op_type == "Pad" and node.input[1] in idle) for node in graph.node]
