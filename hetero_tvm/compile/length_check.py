"""Comparison of a model with open lengths: sizes, inputs for them, and what gives the right numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from hetero_tvm.compile.optimize import OptimizedModel
from hetero_tvm.frontend import ImportedModel
from hetero_tvm.reference import Reference, judge, run_reference, sample_inputs, with_turned
from hetero_tvm.reference.inputs import FREE
from hetero_tvm.reference.running import run_as_given, run_drawn
from hetero_tvm.runtime.signature import Signature, Symbol, size_of
from hetero_tvm.schedules.extents import Sizes

Model = Callable[[], ImportedModel]
"""Gives the model at one size."""

_MOST_CALLS = 8
"""Calls of one length among those that stand for a model's use."""
_BOTH_ROUND = 8.0
"""Tolerance between two float32 results, in that of one and an exact result."""


def judged_model(optimized: OptimizedModel, inputs: Mapping[str, np.ndarray] | None) -> ImportedModel:
    """The model with fixed sizes that gives the float64 reference: those of ``inputs``, or ones in range."""
    model, lengths = optimized.model, optimized.lengths
    if lengths is None or model.open is None:
        return model
    if inputs is not None:
        return model.open.at(sizes_of(lengths.signature, inputs))
    known = list(zip([model, *model.open.others], lengths.sizes, strict=True))
    for candidate, sizes in reversed(known):
        if all(sizes[s.name] in s.sizes for s in lengths.symbols):
            return candidate
    return model.open.at({s.name: s.high for s in lengths.symbols})


def calls_at_lengths(optimized: OptimizedModel) -> list[dict[str, np.ndarray]]:
    """Inputs of calls that stand for a model's use: of each representative length as many as its weight says,
    at least one and no more than a handful; one call where there are no such lengths."""
    lengths = optimized.lengths
    if lengths is None or not lengths.representative:
        return [sample_inputs(judged_model(optimized, None), 0)]
    least = min(one.weight for one in lengths.representative)
    calls = []
    for one in lengths.representative:
        inputs = sample_inputs(one.model.model, 0)
        calls += [inputs] * min(round(one.weight / least), _MOST_CALLS)
    return calls


def sizes_of(signature: Signature, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Size of each symbol in these inputs."""
    return {
        name: size
        for spec in signature.inputs
        for name, size in zip(spec.shape, np.shape(inputs[spec.name]), strict=True)
        if isinstance(name, str) and name in {symbol.name for symbol in signature.symbols}
    }


def other_sizes(symbols: Sequence[Symbol]) -> list[dict[str, int]]:
    """Sizes at which the model is compared with the user's own file: both ends, and an odd one between."""
    found: list[dict[str, int]] = []
    for sizes in (
        {s.name: s.low for s in symbols},
        {s.name: s.nearest(s.step * ((s.low + s.high) // s.step // 2 | 1)) for s in symbols},
        {s.name: s.high for s in symbols},
    ):
        if sizes not in found:
            found.append(sizes)
    return found


def differences(
    optimized: OptimizedModel, run: Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]], seed: int
) -> list[str]:
    """Sizes at which the numbers are not those of the model as it came, with what differs."""
    lengths, model, target = optimized.lengths, optimized.model, optimized.target
    assert lengths is not None and model.open is not None
    problems = []
    for sizes in other_sizes(lengths.symbols):
        fixed = functools.cache(functools.partial(model.open.at, sizes))  # an import, which few need

        def reference(inputs: Mapping[str, np.ndarray], fixed: Model = fixed) -> Reference:
            theirs = run_as_given(model, inputs)
            if theirs is None:
                return with_turned(run_reference(fixed(), inputs), fixed())
            wide = tuple(y.astype(np.float64) if y.dtype.kind == "f" else y for y in theirs)
            return Reference(theirs, wide, "the model as it came")

        draw = functools.partial(inputs_at, model, lengths.signature, sizes, seed)
        inputs, given = run_drawn(draw, reference)
        judged = functools.partial(
            judge,
            run(inputs),
            inputs=inputs,
            model_of=fixed,
            floor=_BOTH_ROUND * target.relative_tolerance,
            least_cosine=target.least_cosine,
        )
        found = judged(given)
        # Where sums are long, it may be their float32 that is far off: what float64 tells.
        if not found.ok and (exact := run_as_given(model, inputs, double=True)) is not None:
            beside = dataclasses.replace(given, float64=exact)
            found = judged(with_turned(beside, fixed()))
        if not found.ok:
            at = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            problems += [f"at {at}: {line}" for line in str(found).splitlines()]
    return problems


def inputs_at(
    model: ImportedModel, signature: Signature, sizes: Sizes, seed: int = 0, free: int = FREE
) -> dict[str, np.ndarray]:
    """Realistic inputs of other sizes; see :func:`hetero_tvm.reference.sample_inputs`."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.clean.proto)
    shapes = {spec.name: spec.shape for spec in signature.inputs}
    for value in proto.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            if isinstance(size, str):
                dim.dim_value = size_of(size, sizes)
    return sample_inputs(proto, seed, free)
