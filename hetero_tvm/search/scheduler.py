"""Choice of the task that gets the next trials.

The gradient of Ansor (Zheng et al., 2020) and of MetaSchedule's ``GradientBased``: expected gain in
the model's time is ``calls * (0.2 * recent improvement per round + 0.8 * optimistic guess)``.  The
guess, best / rounds, assumes that as many rounds again could remove all of the time; no task can
become faster than the roofline, so the guess is cut there, but never to nothing: the roofline is a
measurement too.  Each round without a gain makes what lies above the roofline less likely to be had: else a
heavy kernel that is as fast as it gets would starve all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_WINDOW = 3
_ALPHA = 0.2
_GAIN = 0.01
"""A round that makes a task this much faster has gained something."""
_LEAST_HOPE = 0.02
"""Part of the optimistic guess that is left for a task at its roofline."""


@dataclass
class Progress:
    """History of one task: ``calls`` per inference, ``floor`` seconds (roofline), best seconds by round."""

    calls: float
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
        hope = (best - self.floor) / (1 + self._idle_rounds())
        guess = min(best / rounds, max(hope, _LEAST_HOPE * best / rounds))
        return self.calls * (_ALPHA * recent + (1 - _ALPHA) * guess)

    def _idle_rounds(self) -> int:
        """Latest rounds in a row that gained nothing to speak of."""
        return sum(before * (1 - _GAIN) <= self.history[-1] for before in self.history[:-1])


def pick(tasks: Sequence[Progress]) -> int | None:
    """Index of the task to tune next; None when all are exhausted."""
    open_tasks = [index for index, task in enumerate(tasks) if not task.exhausted]
    return max(open_tasks, key=lambda index: tasks[index].gain(), default=None)
