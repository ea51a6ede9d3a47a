"""Choice of the task that gets the next trials.

The gradient of Ansor (Zheng et al., 2020) and of MetaSchedule's ``GradientBased``: expected gain in
the model's time is ``calls * (0.2 * recent improvement per round + 0.8 * optimistic guess)``.  The
guess, best / rounds, assumes that as many rounds again could remove all of the time; no task can
become faster than the roofline, so the guess is cut there, but never to nothing: the roofline is a
measurement too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_WINDOW = 3
_ALPHA = 0.2
_LEAST_HOPE = 0.02
"""Part of the optimistic guess that is left for a task at its roofline."""


@dataclass
class Progress:
    """History of one task: ``calls`` per inference, ``floor`` seconds (roofline), best seconds by round."""

    calls: int
    floor: float = 0.0
    history: list[float] = field(default_factory=list)
    exhausted: bool = False

    def round_done(self, best: float) -> None:
        self.history.append(best)

    def gain(self) -> float:
        """Expected gain of the model in seconds per further round; inf for a task never measured."""
        if self.exhausted:
            return float("-inf")
        if not self.history:
            return float("inf")
        best, rounds = self.history[-1], len(self.history)
        if best == float("inf"):  # nothing valid yet: try again, but less and less eagerly
            return 1e-3 / rounds
        recent = (self.history[-1 - _WINDOW] - best) / _WINDOW if rounds > _WINDOW else 0.0
        if recent == float("inf"):
            recent = 0.0
        guess = min(best / rounds, max(best - self.floor, _LEAST_HOPE * best / rounds))
        return self.calls * (_ALPHA * recent + (1 - _ALPHA) * guess)


def pick(tasks: Sequence[Progress]) -> int | None:
    """Index of the task to tune next; None when all are exhausted."""
    open_tasks = [index for index, task in enumerate(tasks) if not task.exhausted]
    return max(open_tasks, key=lambda index: tasks[index].gain(), default=None)
