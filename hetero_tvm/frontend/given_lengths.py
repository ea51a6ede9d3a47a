"""Sizes that stand for all others in a search, as a user gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real

from hetero_tvm.errors import UsageError, expect
from hetero_tvm.frontend.signature import Symbol

GivenLengths = Mapping[int, float] | Sequence[tuple[Mapping[str, int], float]]
"""Weight of each size of the only open dimension, or of each (name -> size, of all open dimensions)."""

_TAKES = "lengths are weights by size, {16: 0.2, 128: 0.8}, or pairs of sizes by name and a weight"
_HINT = (
    "--lengths 16:0.2,128:0.8 for one open dimension; batch=1/sequence=16:0.2,batch=8/sequence=128 for two"
)


def parse_lengths(text: str) -> GivenLengths:
    """``16:0.2,128:0.6,512`` or ``batch=1/sequence=16:0.2,...``; without a weight it is 1.

    Raises
    ------
    UsageError : the text is neither.
    """
    try:
        entries = [_entry(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{text!r} is no list of lengths with weights", hint=_HINT) from None
    if all("" not in sizes for sizes, _ in entries):
        return entries
    if any(set(sizes) != {""} for sizes, _ in entries):
        raise UsageError(f"{text!r} names some lengths and not others", hint=_HINT)
    if len({sizes[""] for sizes, _ in entries}) < len(entries):
        raise UsageError(f"{text!r} gives a length twice", hint=_HINT)
    return {sizes[""]: weight for sizes, weight in entries}


def _entry(text: str) -> tuple[dict[str, int], float]:
    """Sizes by name ("" for a size without one) and weight.  :class:`ValueError` for anything else."""
    written, colon, weight = text.partition(":")
    sizes: dict[str, int] = {}
    for one in written.split("/"):
        name, _, size = one.rpartition("=")
        if name.strip() in sizes:
            raise ValueError
        sizes[name.strip()] = int(size)
    return sizes, float(weight) if colon else 1.0


def weighted_sizes(
    lengths: GivenLengths, symbols: Sequence[Symbol]
) -> tuple[tuple[dict[str, int], float], ...]:
    """Sizes of all symbols with their weights, whose sum is 1.

    Raises
    ------
    UsageError : a size outside of its range, a name that is none, a weight that is none; all are listed.
    """
    if isinstance(lengths, str):
        raise UsageError(_TAKES)
    expect(lengths, (Mapping, Sequence), _TAKES)
    known = {symbol.name: symbol for symbol in symbols}
    problems: list[str] = []
    found: list[tuple[dict[str, int], float]] = []
    pairs = list(lengths.items() if isinstance(lengths, Mapping) else lengths)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise UsageError(_TAKES)
    for given, weight in pairs:
        numbers = [*given.values()] if isinstance(given, Mapping) else [given]
        strange = [n for n in numbers if not isinstance(n, Integral)]
        strange += [weight] if not isinstance(weight, Real) else []
        if strange:
            problems += [f"{n!r} is no number of this kind" for n in strange]
            continue
        sizes = given if isinstance(given, Mapping) else {next(iter(known)): given}
        if not isinstance(given, Mapping) and len(known) > 1:
            problems.append(f"{given}: of which of {', '.join(known)}?")
            continue
        problems += [f"there is no open dimension {name}" for name in sizes if name not in known]
        problems += [f"{sizes_text(sizes)} has no size for {name}" for name in known if name not in sizes]
        for name, size in sizes.items():
            if name in known and size not in known[name].sizes:
                problems.append(f"{name} = {size} is outside of {known[name]}")
        if not 0 < weight < 1e30:
            problems.append(f"the weight of {sizes_text(sizes)} is {weight:g}, not a positive number")
        found.append(({name: int(size) for name, size in sizes.items()}, float(weight)))
    if not found and not problems:
        problems.append("there are none")
    if problems:
        raise UsageError(
            "these lengths cannot be", problems=list(dict.fromkeys(problems)), hint=f"as in {_HINT}"
        )
    total = sum(weight for _, weight in found)
    return tuple((sizes, weight / total) for sizes, weight in found)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Sizes as in ``batch=1/sequence=16``."""
    return "/".join(f"{name}={size}" for name, size in sizes.items())
