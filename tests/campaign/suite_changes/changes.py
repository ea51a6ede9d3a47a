"""Changes to a subject: each yields (what was changed, the changed subject), some of them no valid model.

What ONNX Runtime and ONNX's evaluator do not run is dropped by the caller, so a change need not know what
its operator allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
from onnx import helper

from tests.campaign.graphs.values import name_of, onnx_type
from tests.campaign.suite_changes.subject import Subject, cast

Rng = np.random.Generator
Changed = Iterator[tuple[str, Subject]]

_FLOATS = ("float32", "float16", "bfloat16", "float64")
_SWAPS = (*_FLOATS, "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
_SPECIALS = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, -1e-42, 3e38, -3e38, 1e-30, 0.5, -0.5, 1.5, 2.5)
_SIZES = (1, 2, 3, 17, 33, 63, 65, 130)


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.name in _FLOATS


def constants(subject: Subject, rng: Rng) -> Changed:
    """Some inputs as initializers: all but one, one alone, a few; none."""
    if subject.constants:
        yield "no constants", replace(subject, constants=frozenset())
    names = [name for name in subject.values if name]
    if len(names) < 2:
        return
    for name in names:
        yield f"{name} constant", replace(subject, constants=subject.constants | {name})
        if len(names) > 2:
            yield (
                f"all but {name} constant",
                replace(subject, constants=frozenset(names) - {name} | subject.constants),
            )
    if len(names) > 3:
        some = frozenset(n for n in names if rng.random() < 0.5)
        if some and some != frozenset(names):
            yield f"{sorted(some)} constant", replace(subject, constants=some | subject.constants)


def axes(subject: Subject, rng: Rng) -> Changed:
    """Axes counted from the other end."""
    rank = next(iter(subject.values.values())).ndim if subject.values else 0
    for attribute in subject.node.attribute:
        if attribute.name in ("axis", "batch_axis", "time_axis", "seq_axis") and attribute.type == 2:
            for count in (rank, rank + 1):
                other = attribute.i - count if attribute.i >= 0 else attribute.i + count
                yield f"{attribute.name}={other}", subject.with_attributes(**{attribute.name: other})
            for other in range(-rank, rank):
                if other != attribute.i:
                    yield f"{attribute.name}={other}", subject.with_attributes(**{attribute.name: other})
        if attribute.name == "axes":
            others = [i - rank if i >= 0 else i + rank for i in attribute.ints]
            yield f"axes={others}", subject.with_attributes(axes=others)
            yield "axes reversed", subject.with_attributes(axes=list(attribute.ints)[::-1])
    for name, array in subject.values.items():
        if name in ("axes", "axis") and array.dtype.kind == "i":
            for constant in (subject.constants | {name}, subject.constants - {name}):
                others = np.where(array >= 0, array - rank, array + rank).astype(array.dtype)
                yield f"{name}={others}", replace(subject, constants=constant).with_values({name: others})
                if array.ndim:
                    yield (
                        "axes reversed",
                        replace(subject, constants=constant).with_values({name: array[::-1].copy()}),
                    )


def dtypes(subject: Subject, rng: Rng) -> Changed:
    """One type variable of the operator bound to each other type that it allows."""
    schema = subject.schema()
    if schema is None:
        return
    given, made = subject.type_names()
    for constraint in schema.type_constraints:
        variable = constraint.type_param_str
        names = [name for name, kind in given.items() if kind == variable and name in subject.values]
        if not names:
            continue
        now = subject.values[names[0]].dtype.name
        for dtype in _SWAPS:
            label = {"float32": "float", "float64": "double"}.get(dtype, dtype)
            if dtype == now or f"tensor({label})" not in constraint.allowed_type_strs:
                continue
            results = {
                name: onnx_type(dtype) if made.get(name) == variable else element
                for name, element in subject.results.items()
            }
            swapped = subject.with_values({name: cast(subject.values[name], dtype) for name in names})
            yield f"{variable} is {dtype}", replace(swapped, results=results)


@cache
def _versions() -> dict[str, list[int]]:
    """Versions by operator of ONNX's own domain, in order."""
    found: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            found.setdefault(schema.name, set()).add(schema.since_version)
    return {name: sorted(versions) for name, versions in found.items()}


def opsets(subject: Subject, rng: Rng) -> Changed:
    """Every other version of the operator; inputs that were attributes become such again."""
    if subject.node.domain:
        return
    versions = _versions().get(subject.node.op_type, [])
    for version in versions:
        later = [v for v in versions if v > version]
        opset = max(7, min(later[0] - 1, 26) if later else 26)
        if opset < version or opset == subject.opset:
            continue
        moved = replace(subject, opset=opset)
        yield f"opset {opset}", moved
        schema = moved.schema()
        if schema is None:
            continue
        attributes, values, node = {}, dict(subject.values), onnx.NodeProto()
        node.CopyFrom(subject.node)
        inputs = list(node.input)
        described = subject.schema()
        formal = described.inputs if described else []
        for index in reversed(range(len(inputs))):
            label = formal[min(index, len(formal) - 1)].name if formal else ""
            key = {"repeats": "tiles"}.get(label, label)
            if index < schema.max_input and key not in schema.attributes:
                continue
            if key in schema.attributes and inputs[index]:
                array = values.pop(inputs[index])
                attributes[key] = array.tolist()
            inputs = inputs[:index]
        known = schema.attributes
        stale = {a.name: None for a in node.attribute if a.name not in known}
        if attributes or stale:
            del node.input[:]
            node.input.extend(inputs)
            yield (
                f"opset {opset}, {', '.join([*attributes, *stale])} as then",
                replace(moved, node=node, values=values).with_attributes(**stale, **attributes),
            )


def specials(subject: Subject, rng: Rng) -> Changed:
    """NaN, infinities, zeros of both signs, denormals and the ends of integer types among the values."""
    for share in (0.1, 0.6):
        values = {}
        for name, array in subject.values.items():
            places = rng.random(array.shape) < share
            if _is_float(array):
                chosen = rng.choice(np.array(_SPECIALS), array.shape)
            elif array.dtype.kind in "iu":
                ends = np.iinfo(array.dtype)
                chosen = rng.choice(np.array([ends.min, ends.max, 0, 1], array.dtype), array.shape)
            else:
                continue
            with np.errstate(all="ignore"):
                values[name] = np.where(places, chosen.astype(array.dtype), array)
        if values:
            yield f"specials, {share}", subject.with_values(values)
        floats = {name: array for name, array in values.items() if _is_float(array)}
        if floats and len(floats) < len(values):
            yield f"specials in floats, {share}", subject.with_values(floats)
    for value in (np.nan, -np.inf, np.inf, -0.0):
        floats = {n: np.full_like(a, value) for n, a in list(subject.values.items())[:1] if _is_float(a)}
        if floats:
            yield f"all {value}", subject.with_values(floats)


def resized(array: np.ndarray, old: int, new: int) -> np.ndarray:
    """The array with every axis of one extent brought to another, by repetition."""
    for axis, size in enumerate(array.shape):
        if size == old:
            array = np.take(array, np.arange(new) % max(size, 1), axis)
    return np.ascontiguousarray(array).reshape(array.shape)


def _resized_all(subject: Subject, old: int, new: int) -> dict[str, np.ndarray]:
    """Values of all inputs but the constants, with axes of one extent brought to another."""
    return {n: resized(a, old, new) for n, a in subject.values.items() if n not in subject.constants}


def _extents(subject: Subject) -> list[int]:
    arrays = (a for n, a in subject.values.items() if n not in subject.constants)
    return sorted({size for array in arrays for size in array.shape if size})


def sizes(subject: Subject, rng: Rng) -> Changed:
    """Axes of one extent brought to odd ones; an axis of one input; one axis alone."""
    for extent in _extents(subject):
        for new in rng.permutation(_SIZES)[:3]:
            values = _resized_all(subject, extent, int(new))
            if sum(a.size for a in values.values()) < 300_000:
                yield f"extent {extent} to {new}", subject.with_values(values)
    name, array = next(iter(subject.values.items()), ("", np.zeros(())))
    for axis, size in enumerate(array.shape):
        new = int(rng.choice(_SIZES))
        if size:
            yield (
                f"axis {axis} of {name} to {new}",
                subject.with_values({name: np.take(array, np.arange(new) % size, axis)}),
            )


def empty(subject: Subject, rng: Rng) -> Changed:
    """No elements along the axes of one extent, or along one axis of the first input."""
    for extent in _extents(subject):
        yield f"extent {extent} to 0", subject.with_values(_resized_all(subject, extent, 0))
    name, array = next(iter(subject.values.items()), ("", np.zeros(())))
    for axis in range(array.ndim):
        yield f"axis {axis} of {name} to 0", subject.with_values({name: np.take(array, [], axis)})


def ranks(subject: Subject, rng: Rng) -> Changed:
    """Scalars, and axes of 1 in front of or behind all inputs."""
    values = {n: a for n, a in subject.values.items() if a.size}
    if not values or len(values) < len(subject.values):
        return
    scalars = {n: np.asarray(a.reshape(-1)[0]) for n, a in values.items()}
    yield "scalars", subject.with_values(scalars)
    first = next(iter(values))
    yield "first a scalar", subject.with_values({first: scalars[first]})
    yield "an axis before", subject.with_values({first: values[first][None]})
    yield "an axis behind", subject.with_values({first: values[first][..., None]})
    yield "axes before all", subject.with_values({n: a[None] for n, a in values.items() if a.ndim})
    yield "axes behind all", subject.with_values({n: a[..., None] for n, a in values.items() if a.ndim})
    if values[first].ndim > 1:
        yield "first flat", subject.with_values({first: values[first].reshape(-1)})


def openings(subject: Subject, rng: Rng) -> Changed:
    """Sizes left open: every extent its own, all axes of one extent, one axis."""
    places = {
        (n, axis): size
        for n, a in subject.values.items()
        if n not in subject.constants
        for axis, size in enumerate(a.shape)
        if size
    }
    if not places:
        return
    yield "every extent open", replace(subject, opened={place: f"s{s}" for place, s in places.items()})
    for extent in _extents(subject):
        chosen = {place: "s" for place, size in places.items() if size == extent}
        yield f"extent {extent} open", replace(subject, opened=chosen)
    for place in places:
        yield f"axis {place} open", replace(subject, opened={place: "s"})
    # what tells sizes is mostly a constant
    small = {n for n, a in subject.values.items() if a.dtype.kind in "iu" and a.ndim <= 1}
    small |= subject.constants
    if small and small != set(subject.values):
        chosen = {place: f"s{s}" for place, s in places.items() if place[0] not in small}
        yield (
            "every extent open, small integers constant",
            replace(subject, opened=chosen, constants=frozenset(small)),
        )


def neighbours(subject: Subject, rng: Rng) -> Changed:
    """Nodes before and behind: elementwise ones that fuse, several readers, the operator twice."""
    floats = {n: e for n, e in subject.results.items() if name_of(e) in _FLOATS}
    if floats:
        after = [helper.make_node("Neg", [name], [f"{name}_neg"]) for name in floats]
        after += [helper.make_node("Add", [f"{name}_neg", name], [f"{name}_none"]) for name in floats]
        after += [helper.make_node("Sigmoid", [name], [f"{name}_sig"]) for name in floats]
        after += [helper.make_node("Mul", [f"{name}_sig", name], [f"{name}_silu"]) for name in floats]
        more = {f"{n}_{end}": e for n, e in floats.items() for end in ("neg", "silu")}
        yield "read by several", replace(subject, after=tuple(after), more_results=more)
        alone = {f"{n}_silu": e for n, e in floats.items()}
        rest = {n: e for n, e in subject.results.items() if n not in floats}
        behind = tuple(n for n in after if n.op_type in ("Sigmoid", "Mul"))
        yield "gated behind", replace(subject, after=behind, results=rest, more_results=alone)
    given = {n: a for n, a in subject.values.items() if _is_float(a)}
    if given:
        before = tuple(helper.make_node("Neg", [n], [f"{n}_in"]) for n in given)
        node = onnx.NodeProto()
        node.CopyFrom(subject.node)
        for index, name in enumerate(node.input):
            if name in given:
                node.input[index] = f"{name}_in"
        yield (
            "negated before",
            replace(subject, node=node, before=before).with_values({n: -a for n, a in given.items()}),
        )
        turned = tuple(helper.make_node("Transpose", [n], [f"{n}_in"]) for n in given)
        yield (
            "transposed before",
            replace(subject, node=node, before=turned).with_values(
                {n: np.ascontiguousarray(a.T) for n, a in given.items()}
            ),
        )
    outputs = [n for n in subject.node.output if n]
    twin = onnx.NodeProto()
    twin.CopyFrom(subject.node)
    for index, name in enumerate(twin.output):
        twin.output[index] = f"{name}_2" if name else ""
    twice = {f"{n}_2": e for n, e in subject.results.items()}
    first = subject.node.input[0] if subject.node.input else ""
    element = subject.results.get(outputs[0]) if outputs else None
    if first in subject.values and element == onnx_type(subject.values[first].dtype.name):
        chained = onnx.NodeProto()
        chained.CopyFrom(twin)
        chained.input[0] = outputs[0]
        yield "twice in a row", replace(subject, after=(chained,), more_results=twice)
    if len(subject.node.input) > 1:
        swapped = onnx.NodeProto()
        swapped.CopyFrom(twin)
        swapped.input[0], swapped.input[1] = swapped.input[1], swapped.input[0]
        yield "and its operands swapped", replace(subject, after=(swapped,), more_results=twice)
        same = onnx.NodeProto()
        same.CopyFrom(subject.node)
        same.input[1] = same.input[0]
        yield "one operand twice", replace(subject, node=same)


CHANGES: dict[str, Callable[[Subject, Rng], Changed]] = {
    change.__name__: change
    for change in (constants, axes, dtypes, opsets, specials, sizes, empty, ranks, openings, neighbours)
}
