"""Verdict on outputs: their distance from float64, next to that of a float32 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetero_tvm.errors import UsageError
from hetero_tvm.reference.running import Reference, is_float

#: Tolerance: this many times the float32 reference's own error, ...
OWN_ERROR_FACTOR = 2.0
#: ... or this fraction of the largest output, whichever is larger.
RELATIVE_FLOOR = 1e-5
#: Share of 8-bit results that may lie on the other side of a half, one step away.
_MOST_TURNED = 0.01
#: Integers that rounding errors turn in a few runs, from which others turn as many others.
_ENOUGH_TURNED = 8
#: Steps of which one may be turned, whatever a few runs turn.
_ONE_TURNED = 4096
#: Integers (the places of largest values, say) of which most must agree at a lower precision.
_ENOUGH_INTEGERS = 16


@dataclass(frozen=True)
class OutputAccuracy:
    """Errors of one output against the float64 reference.

    ``relative_error`` is the largest error by the largest value; integer outputs have tolerance 0 or 1.
    ``finite`` : whether all values of the reference are, so that NaN and infinities are errors.
    """

    max_error: float
    reference_error: float
    relative_error: float
    tolerance: float
    largest: float
    ok: bool
    note: str = ""
    finite: bool = True

    def __str__(self) -> str:
        text = (
            f"max error {self.max_error:.3g} (relative {self.relative_error:.3g}), "
            f"float32 reference {self.reference_error:.3g}, tolerance {self.tolerance:.3g}"
        )
        verdict = "ok" if self.ok else "BEYOND TOLERANCE"
        return f"{text}: {verdict}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class Accuracy:
    """Errors of all outputs; ``ok`` when every one is within its tolerance.

    ``names`` : those of the outputs, where they are known.
    """

    outputs: tuple[OutputAccuracy, ...]
    names: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(output.ok for output in self.outputs)

    def __repr__(self) -> str:
        return f"<Accuracy: {'ok' if self.ok else 'WRONG'}; {'; '.join(str(self).splitlines())}>"

    def __str__(self) -> str:
        called = [f" ({name})" for name in self.names] or [""] * len(self.outputs)
        rows = zip(called, self.outputs, strict=True)
        return "\n".join(f"output {index}{name}: {output}" for index, (name, output) in enumerate(rows))


def compare(
    outputs: np.ndarray | Sequence[np.ndarray],
    reference: Reference,
    *,
    floor: float = RELATIVE_FLOOR,
    least_cosine: float = -1.0,
) -> Accuracy:
    """Judge outputs: error <= max(2 x the float32 reference's own, ``floor`` x the largest output).

    The reference's own error is at least what it says rounding errors make (``spread``).

    ``least_cosine`` : least cosine of the angle between an output and the reference (for coarser dtypes).

    Infinities and NaN must stand where the float64 reference, or the float32 one, has them.
    Integer and boolean outputs must be equal, but where the float32 reference itself has another value than
    float64's, within twice of what rounding errors make of them, in as many further places as these turn,
    where they are some (which of the pixels that nearly tie a few runs turn is chance), and in results of
    8 bits, of which 1% may be one step away.  Where the reference says that they are no ``places``, none may
    be off by more than twice of what rounding makes of the farthest.  At a lower precision (``least_cosine``
    given) they are choices among values that come close: at least half must agree where there are 16 or more,
    and fewer are told but not judged.
    """
    outputs = [outputs] if isinstance(outputs, np.ndarray) else list(outputs)
    if len(outputs) != len(reference.float64):
        raise UsageError(f"{len(outputs)} outputs given, the reference has {len(reference.float64)}.")
    spreads = reference.spread or [np.zeros(())] * len(outputs)
    pairs = zip(outputs, reference.float32, reference.float64, spreads, strict=True)
    return Accuracy(
        tuple(
            _compare_one(
                np.asarray(y),
                np.asarray(f32),
                np.asarray(f64),
                spread,
                floor,
                least_cosine,
                reference.places,
            )
            for y, f32, f64, spread in pairs
        )
    )


def _compare_one(
    y: np.ndarray,
    float32: np.ndarray,
    float64: np.ndarray,
    spread: np.ndarray,
    floor: float,
    least_cosine: float,
    places: bool,
) -> OutputAccuracy:
    def failed(note: str) -> OutputAccuracy:
        return OutputAccuracy(np.inf, np.nan, np.inf, 0.0, np.nan, False, note)

    if float32.shape != float64.shape:  # how much there is hangs on rounding: either is right
        float32, float64 = (
            (float64, float64) if y.shape == float64.shape else (float32, float32.astype(float64.dtype))
        )
    if y.shape != float64.shape:
        return failed(f"shape {list(y.shape)} instead of {list(float64.shape)}")
    if not is_float(float64.dtype):
        if is_float(y.dtype):
            return failed(f"dtype {y.dtype} instead of {float64.dtype}")
        return _compare_integers(y, float32, float64, spread, least_cosine > -1.0, places)
    y64, own = y.astype(np.float64), float32.astype(np.float64)
    # Where float32 overflows and float64 does not, the float32 reference's view is as good: infinity, or the
    # largest float32 where the model holds values in the range of its type.
    beyond = np.finfo(np.float64 if float32.dtype == np.float64 else np.float32).max
    with np.errstate(over="ignore", invalid="ignore"):
        special = ~np.isfinite(float64) | ~np.isfinite(own) | (np.abs(float64.astype(np.float64)) > beyond)
    misplaced = (~np.isfinite(y64) & ~special) | (special & ~_same(y64, float64) & ~_same(y64, own))
    if misplaced.any():
        found = failed(f"{int(misplaced.sum())} NaN or infinite values differ from the reference")
        return replace(found, finite=not special.any())
    finite = ~special
    largest = float(np.abs(float64[finite]).max(initial=0))
    error = float(np.abs(y64[finite] - float64[finite]).max(initial=0))
    own_error = float(np.abs(own[finite] - float64[finite]).max(initial=0))
    tolerance = max(OWN_ERROR_FACTOR * own_error, floor * largest)
    ok, note = error <= tolerance, ""
    if not ok and spread.any():
        # What rounding turns may be as far off as it makes one element, and on the whole as all of them.
        own_error = max(own_error, float(spread.max()))
        tolerance = max(tolerance, OWN_ERROR_FACTOR * own_error)
        apart = np.where(finite, np.abs(y64 - float64), 0.0)
        ok = error <= tolerance and _mean(apart) <= OWN_ERROR_FACTOR * _mean(spread)
    if 0 < largest < np.finfo(np.float32).tiny:
        note = "all values lie below the least normal float32: this comparison says little"
    if least_cosine > -1.0:
        angle = cosine(y64[finite], float64[finite])
        ok, note = ok and angle >= least_cosine, f"cosine {angle:.6f}"
    return OutputAccuracy(
        error, own_error, error / largest if largest else error, tolerance, largest, ok, note
    )


def _compare_integers(
    y: np.ndarray,
    float32: np.ndarray,
    float64: np.ndarray,
    spread: np.ndarray,
    lower: bool,
    places: bool,
) -> OutputAccuracy:
    """Judge integers; ``lower`` : whether they come from a lower precision, ``places`` : whether they may be
    places, which no distance separates."""
    differ = y != float64
    count, largest = int(np.count_nonzero(differ)), float(np.abs(float64.astype(np.float64)).max(initial=0))
    distance = np.abs(y.astype(np.float64) - float64.astype(np.float64))
    error = float(distance.max(initial=0))
    unsettled, moved = np.zeros_like(differ), np.zeros(())
    if float32.shape == float64.shape:
        unsettled, moved = (
            float32 != float64,
            np.abs(float32.astype(np.float64) - float64.astype(np.float64)),
        )
    wrong = differ & ~unsettled & (distance > OWN_ERROR_FACTOR * spread)
    tolerance = 0.0
    if float64.dtype in (np.int8, np.uint8) and np.count_nonzero(wrong) <= max(1, _MOST_TURNED * y.size):
        wrong, tolerance = wrong & (distance > 1), 1.0
    turned = np.count_nonzero(spread)
    further = turned if turned >= _ENOUGH_TURNED else 0
    if not places:  # a step that rounding turns moves what follows, but not without bounds
        farthest = OWN_ERROR_FACTOR * max(
            float(moved.max(initial=0)), float(spread.max(initial=0)), tolerance
        )
        if np.ndim(spread):  # a model that rounds: of thousands, one or the other lies nearly between steps
            further, farthest = max(further, y.size // _ONE_TURNED), max(farthest, 1.0)
    ok = np.count_nonzero(wrong) <= further and (places or error <= farthest)
    if lower:
        ok = ok or y.size < _ENOUGH_INTEGERS or 2 * count <= y.size
    note = f"{count} of {y.size} integers differ" if count else "exact"
    relative = error / largest if largest else error
    return OutputAccuracy(error, 0.0, relative, tolerance, largest, bool(ok), note)


def _mean(values: np.ndarray) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of the angle between two arrays as vectors; 1 for two that are zero."""
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.vdot(a, b)) / length if length else float(np.array_equal(a, b))


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether values are equal, with NaN equal to NaN."""
    return (a == b) | (np.isnan(a) & np.isnan(b))
