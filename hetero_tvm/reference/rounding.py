"""Effect of rounding errors on the outputs of a model that itself rounds, or chooses among its values.

A quantiser turns the last bit of a value that lies between two steps into a whole step, and what follows
spreads it; of two values that nearly tie, the last bit says which one is the largest, and where.  The error
of one float32 run beside float64 then says little about that of another, equally right one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from onnx import TensorProto

from hetero_tvm.frontend.signature import ImportedModel
from hetero_tvm.reference.accuracy import Accuracy, compare
from hetero_tvm.reference.double import to_double, without_weights
from hetero_tvm.reference.running import Reference, evaluate, is_float, widened

_STEPS = frozenset({"DynamicQuantizeLinear", "QuantizeLinear", "Round", "Floor", "Ceil"})
_CHOICES = frozenset({"ArgMax", "ArgMin", "NonMaxSuppression", "TopK"})
_PLACES = frozenset({"Compress", "Hardmax", "NonZero", "Unique"})
"""Operators that tell, or keep, places by the values there, besides those that choose the largest."""
_INTEGERS = frozenset(
    getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)
)
_ERROR = 2.0**-20
"""Relative rounding error of every value: eight units in the last place, as in sums of many terms."""
_SHARE = 2.0**-23
"""Rounding error of every value beside a choice, as a share of the largest: kernels cancel large terms."""
_PAIRS = 4
_SLIGHTLY = 4.0
"""Tolerances up to which outputs of a model that does not round may be off for the inputs that were drawn."""


def rounds(model: ImportedModel) -> bool:
    """Whether operators of a model round floats to steps, or tell where the largest of them lie."""
    return _chooses(model) or any(node.op_type in _STEPS for node in model.clean.proto.graph.node)


def _chooses(model: ImportedModel) -> bool:
    return any(
        node.op_type in _CHOICES or (node.op_type == "MaxPool" and any(node.output[1:]))
        for node in model.clean.proto.graph.node
    )


def _truncates(model: ImportedModel) -> bool:
    """Whether a Cast makes integers, of floats maybe, which it cuts to steps."""
    return any(
        node.op_type == "Cast" and any(a.name == "to" and a.i in _INTEGERS for a in node.attribute)
        for node in model.clean.proto.graph.node
    )


def _tells_places(model: ImportedModel) -> bool:
    return _chooses(model) or any(node.op_type in _PLACES for node in model.clean.proto.graph.node)


def with_rounding(reference: Reference, model: ImportedModel, inputs: Mapping[str, np.ndarray]) -> Reference:
    """The reference with the largest difference that float32's rounding errors made in a few runs.

    Each run is one in float64, with a random rounding error on every value that is no whole number.  Errors
    come in pairs of both signs: of two values that tie, each is the larger one in one of the runs.
    """
    *_, widest = _with_more_and_more(reference, model, inputs)
    return widest


def with_turned(reference: Reference, model: ImportedModel) -> Reference:
    """The reference; of a model that rounds, float32 tells of each float alone how far it may be off.

    One value that went to the next step is no measure for all the others.  Integers are steps, and told to be
    no further off than rounding takes some of them, in models that tell no places of values.
    """
    reference = dataclasses.replace(reference, places=_tells_places(model))
    if not rounds(model):
        return reference
    floats, spread = [], []
    for own, exact in zip(reference.float32, reference.float64, strict=True):
        alike = is_float(exact.dtype) and own.shape == exact.shape
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.abs(own.astype(np.float64) - exact) if alike else np.zeros(exact.shape)
        finite = np.isfinite(gap)
        floats.append(np.where(finite, exact, own) if alike else own)
        spread.append(np.where(finite, gap, 0.0))
    return dataclasses.replace(reference, float32=tuple(floats), spread=tuple(spread))


def _with_more_and_more(
    reference: Reference, model: ImportedModel, inputs: Mapping[str, np.ndarray]
) -> Iterator[Reference]:
    """References with what rounding errors made in one pair of runs, in two, and so on."""
    outputs = [spec.name for spec in model.signature.outputs]
    proto = to_double(model.clean.proto, outputs)
    weights = {tensor.name: model.clean.array(tensor) for tensor in model.clean.proto.graph.initializer}
    fed = {name: widened(np.asarray(array)) for name, array in inputs.items()}
    known = reference.spread or [np.zeros(())] * len(reference.float64)
    spread = [np.zeros(exact.shape) + one for exact, one in zip(reference.float64, known, strict=True)]
    share, places = _SHARE if _chooses(model) else 0.0, _tells_places(model)
    for seed in range(_PAIRS):
        for sign in (1.0, -1.0):
            change = functools.partial(_rounded, random=np.random.default_rng(seed), sign=sign, share=share)
            values = evaluate(without_weights(proto), fed, weights, outputs, widened, change)
            for index, value in enumerate(model.signature.trimmed(values)):
                exact = reference.float64[index]
                if value.shape != exact.shape:  # how much there is hangs on rounding
                    continue
                with np.errstate(invalid="ignore"):
                    gap = np.abs(value.astype(np.float64) - exact.astype(np.float64))
                spread[index] = np.maximum(spread[index], np.where(np.isfinite(gap), gap, 0.0))
        yield dataclasses.replace(reference, spread=tuple(spread), places=places)


def judge(
    outputs: Sequence[np.ndarray],
    reference: Reference,
    inputs: Mapping[str, np.ndarray],
    model_of: Callable[[], ImportedModel],
    *,
    floor: float,
    least_cosine: float,
) -> Accuracy:
    """Compare as :func:`compare` does; where outputs are slightly off, or computed in float64, or off and the
    model rounds, with what rounding errors make of the reference.

    ``model_of`` : gives the model of the reference, which is asked for only then.
    """
    found = compare(outputs, reference, floor=floor, least_cosine=least_cosine)
    if found.ok:
        return found
    # Where large terms cancel, the error of one float32 run is a matter of luck.
    # What is computed in float64 has no such run beside it, which would tell what a sum that cancels may be.
    slightly = all(
        each.ok
        or each.max_error <= _SLIGHTLY * each.tolerance
        or (single.dtype == np.float64 and not each.reference_error)
        for each, single in zip(found.outputs, reference.float32, strict=True)
    )
    model = model_of()
    if not (slightly or rounds(model) or _truncates(model)):
        return found
    # What is within a tolerance is within all wider ones: large models mostly need one pair of runs.
    for wider in _with_more_and_more(reference, model, inputs):
        found = compare(outputs, wider, floor=floor, least_cosine=least_cosine)
        if found.ok:
            break
    return found


def _rounded(value: np.ndarray, random: np.random.Generator, sign: float, share: float) -> np.ndarray:
    """The value with a rounding error; whole numbers are exact in float32 too."""
    if not isinstance(value, np.ndarray | np.generic) or not is_float(np.asarray(value).dtype):
        return value
    with np.errstate(all="ignore"):
        drawn = sign * random.uniform(-1, 1, np.shape(value))
        moved = value * (1 + _ERROR * drawn)
        if share:
            finite = np.abs(np.where(np.isfinite(value), value, 0.0))
            moved = moved + share * drawn * finite.max(initial=0)
        return np.where(np.rint(value) == value, value, moved)
