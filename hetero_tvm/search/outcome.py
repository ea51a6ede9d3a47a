"""Report of a tuning run: values that are plain JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hetero_tvm.host.terminal import figure, number_of
from hetero_tvm.pages import search_parts
from hetero_tvm.pages.page import fragment, page


@dataclass
class TaskReport:
    """Report of one kernel after tuning.

    Parameters
    ----------
    name, calls, flops, nbytes : see :class:`hetero_tvm.schedules.task.Task`.
    default_seconds, tuned_seconds : per call; None when not measured.
    origin : what the build will use: a record, or the default.
    roof_seconds : least time that peak and bandwidth of this machine allow; None when unknown.
    trials, reused : candidates measured in this run; taken from records.
    failures : kind of failure -> how many.
    compared : whether both times are of one side-by-side comparison, or of the same point.
    note : why the task was not tuned, or that its space is exhausted.
    weight : see :class:`hetero_tvm.schedules.task.Task`.
    """

    name: str
    calls: int
    flops: int
    nbytes: int
    default_seconds: float | None = None
    tuned_seconds: float | None = None
    origin: str = "default"
    roof_seconds: float | None = None
    trials: int = 0
    reused: int = 0
    failures: Counter = field(default_factory=Counter)
    note: str = ""
    compared: bool = True
    weight: float = 1.0

    def __repr__(self) -> str:
        times = [self.default_seconds, self.tuned_seconds]
        before, after = ("?" if one is None else figure(1e3 * one) for one in times)
        return f"<TaskReport {self.name!r}: {before} -> {after} ms, {self.origin}>"

    @property
    def uses(self) -> float:
        """Calls per inference, of all lengths that the model is tuned at on average."""
        return self.calls * self.weight

    @property
    def gflops(self) -> float | None:
        return self.flops / self.tuned_seconds / 1e9 if self.tuned_seconds else None

    @property
    def roofline(self) -> float | None:
        """Fraction of the roofline that the kernel reaches."""
        return self.roof_seconds / self.tuned_seconds if self.tuned_seconds and self.roof_seconds else None

    def to_dict(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "failures": dict(self.failures),
            "gflops": self.gflops,
            "roofline": self.roofline,
        }


@dataclass
class ImplementationReport:
    """Report of one implementation of an operator that has several.

    Parameters
    ----------
    default_seconds, tuned_seconds : of one call of the whole operator, timed in turn with the others; None
        when not measured.
    trials : candidates measured for its kernels in this run.
    chosen : whether the library is built from it.
    note : why it was left out, or not tuned.
    """

    name: str
    default_seconds: float | None = None
    tuned_seconds: float | None = None
    trials: int = 0
    chosen: bool = False
    note: str = ""


@dataclass
class TuneReport:
    """A whole run.

    Parameters
    ----------
    tasks : in the order of the model.
    trials, reused : candidates measured in this run; found in records.
    disturbed : of these trials, those that other processes let nobody measure; a later run tries them again.
    waited : seconds spent waiting for other processes to leave the cores.
    elapsed, start_up : wall seconds of the whole search (everything included); of that, waiting for
        the first process to be ready.
    spent : where the seconds went: ``propose`` (evolution and cost model), and of the candidates
        (summed over processes) ``build``, ``check``, ``time``.
    curve : (elapsed seconds, trial number, best known seconds of all kernels together).
    peak_gflops, bandwidth_gbs : measured roofs; None when they cannot be measured here.
    cache_gbs : roof of operands that lie in caches; None where it was not measured.
    other_peaks : peaks of the arithmetic of kernels that do not compute in float32, GFLOP/s.
    drift : change of the baseline from start to end, relative; None when not measured twice.
    stopped : why the search ended (``trials``, ``time``, ``exhausted``, ``interrupted``, ``nothing to do``).
    warnings, notes : sentences for the user.
    implementations : of an operator that has several; empty for models.
    """

    tasks: list[TaskReport]
    trials: int = 0
    reused: int = 0
    disturbed: int = 0
    waited: float = 0.0
    elapsed: float = 0.0
    start_up: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[float, int, float]] = field(default_factory=list)
    peak_gflops: float | None = None
    bandwidth_gbs: float | None = None
    other_peaks: dict[str, float] = field(default_factory=dict)
    cache_gbs: float | None = None
    drift: float | None = None
    stopped: str = "trials"
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    logs: str = ""
    implementations: list[ImplementationReport] = field(default_factory=list)

    def joined(self, other: TuneReport) -> TuneReport:
        """This run and one of other tasks as one; curves and measurements of the machine are this one's."""
        return dataclasses.replace(
            self,
            tasks=[*self.tasks, *other.tasks],
            trials=self.trials + other.trials,
            reused=self.reused + other.reused,
            disturbed=self.disturbed + other.disturbed,
            waited=self.waited + other.waited,
            elapsed=self.elapsed + other.elapsed,
            warnings=list(dict.fromkeys([*self.warnings, *other.warnings])),
            logs=", ".join(dict.fromkeys([self.logs, other.logs])),
        )

    @property
    def interrupted(self) -> bool:
        return self.stopped == "interrupted"

    @property
    def trials_per_second(self) -> float:
        return self.trials / self.elapsed if self.elapsed else 0.0

    @property
    def failures(self) -> Counter:
        total: Counter = Counter()
        for task in self.tasks:
            total.update(task.failures)
        return total

    def total_seconds(self, which: str) -> float | None:
        """Sum over measured kernels of calls x ``default_seconds`` or ``tuned_seconds``."""
        times = [(task.uses, getattr(task, which)) for task in self.tasks if task.compared]
        known = [calls * seconds for calls, seconds in times if seconds is not None]
        return sum(known) if known else None

    def __repr__(self) -> str:
        disturbed = f" ({self.disturbed} of them disturbed by other processes)" if self.disturbed else ""
        run = f"{number_of(self.trials, 'trial')}{disturbed} in {self.elapsed:.1f} s"
        return f"<TuneReport: {run}, {number_of(len(self.tasks), 'kernel')}>"

    def _repr_html_(self) -> str:
        return fragment(*search_parts.sections(self.to_dict()))

    def to_html(self) -> str:
        """A self-contained HTML page: roofline, kernels, curve of the search."""
        document = self.to_dict()
        subtitle = f"{number_of(self.trials, 'trial')} in {self.elapsed:.1f} s; records: {self.logs}"
        return page("Search", subtitle, search_parts.sections(document), document)

    def to_dict(self) -> dict[str, Any]:
        """The whole report as JSON values."""
        fields = {name: value for name, value in vars(self).items() if name != "tasks"}
        return {
            **fields,
            "tasks": [task.to_dict() for task in self.tasks],
            "implementations": [dataclasses.asdict(one) for one in self.implementations],
            "trials_per_second": self.trials_per_second,
            "failures": dict(self.failures),
            "default_seconds": self.total_seconds("default_seconds"),
            "tuned_seconds": self.total_seconds("tuned_seconds"),
        }
