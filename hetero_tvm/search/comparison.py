"""The comparison that ends a search: which candidates meet the default side by side, and which one wins."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_tvm.records.candidates import Candidate
from hetero_tvm.records.record import VERIFIED
from hetero_tvm.records.store import RecordStore
from hetero_tvm.search.measure.service import DISTURBED, Result
from hetero_tvm.search.task_state import TaskState, candidate_of, key_of

_MARGIN = 0.02
"""A challenger must beat the default by this fraction in the side-by-side comparison: smaller differences
between kernels measured alone do not carry over to the model, where their neighbours fill the caches."""
_OFF = 1.3
"""Times of a comparison this many times those of the trials are of a spell."""
_CLOSE = 0.015
"""The second-best candidate takes part in the comparison when it is this close to the best."""


def contenders(state: TaskState, default: Candidate, store: RecordStore) -> list[Candidate]:
    """The default, then what may be better: the fastest ones and the last verified winner."""
    ranked = sorted(state.times.items(), key=lambda item: item[1][0])
    fastest = ranked[0][1][0]
    near = fastest * (1 + _CLOSE)
    close = [(key, candidate) for key, (seconds, candidate) in ranked[:2] if seconds <= near]
    if close[0][0] == key_of(default):
        return [default]
    chosen = dict(close)
    found = store.best(state.task)
    if found is not None and found[0].role == VERIFIED:
        chosen.setdefault(found[0].candidate, candidate_of(found[0]))
    chosen.pop(key_of(default), None)
    return [default, *chosen.values()]


def doubtful(state: TaskState, contenders: Sequence[Candidate], results: Sequence[Result]) -> bool:
    """Whether a comparison says nothing: others took the cores, or all took far longer than alone."""
    if any(result.status == DISTURBED for result in results):
        return True
    known = [state.times.get(key_of(candidate)) for candidate in contenders]
    pairs = [(r.seconds, one[0]) for r, one in zip(results, known, strict=True) if r.ok and one is not None]
    return bool(pairs) and all(seconds > _OFF * before for seconds, before in pairs)


def winner(results: Sequence[Result]) -> int | None:
    """Place of the best of candidates that were timed side by side, the default first; None if all failed."""
    valid = [index for index, result in enumerate(results) if result.ok]
    if not valid:
        return None
    best = min(valid, key=lambda index: results[index].seconds)
    default = results[0]
    return 0 if default.ok and results[best].seconds > default.seconds * (1 - _MARGIN) else best
