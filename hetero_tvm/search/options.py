"""Options of a search: budgets, seed, limits of a candidate."""

from __future__ import annotations

from dataclasses import dataclass, field

from hetero_tvm.search.measure.service import Limits
from hetero_tvm.search.measure.spells import Spells

_PATIENCE = 60.0
"""Most seconds of a run in which it waits for other processes to leave the cores, unless it is told."""


@dataclass(frozen=True)
class TuneOptions:
    """Options of a search.

    Parameters
    ----------
    trials : candidates in all, over the whole model; finished records of its tasks count.  None: no
        such limit.
    minutes : wall time of the search.  None: no such limit.
    seed : of every random choice.
    batch : candidates proposed at once for a task; None chooses 4 to 8 from the budget.
    generic_share : generic kernels that take less than this share of the model's estimated time are
        not tuned.
    limits : what one candidate may use.
    fresh : forget what records say of the tasks, and measure everything anew.
    generic : ``module:function`` of the untuned schedule for kernels without a space, ``(PrimFunc, machine)
        -> PrimFunc``; None where there are no such kernels among the tasks.
    patience : seconds to wait in all for other processes to leave the cores; None chooses from ``minutes``.
    spells : what waits for other processes to leave the cores that kernels are timed on; None where nothing
        else runs on what measures.
    """

    trials: int | None = 64
    minutes: float | None = None
    seed: int = 0
    batch: int | None = None
    generic_share: float = 0.01
    limits: Limits = field(default_factory=Limits)
    fresh: bool = False
    generic: str | None = None
    patience: float | None = None
    spells: Spells | None = None

    @property
    def most_waiting(self) -> float:
        """Seconds that the whole run may wait for other processes."""
        if self.patience is not None:
            return self.patience
        return _PATIENCE if self.minutes is None else min(_PATIENCE, 0.2 * 60 * self.minutes)
