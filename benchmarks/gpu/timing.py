"""Timing of calls on the GPU, the same way for our kernels and for everybody else's."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from hetero_tvm.search.measure.timing import settle

_SAMPLE = 2e-3
"""Least seconds of one sample: thousands of times the resolution of an event."""
_MOST_CALLS = 200
_WARM_UP = (0.05, 0.5)
"""Least and most seconds of running before the first sample: an idle GPU takes its time to raise clocks."""


@dataclass(frozen=True)
class Timing:
    """Median seconds of a call, the 10th and 90th percentile, samples, and whether they were one graph."""

    seconds: float
    low: float
    high: float
    samples: int
    graph: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON object with one field per attribute."""
        return asdict(self)


def calls_per_sample(once: float, sets: int) -> int:
    """Whole rounds over the sets of operands that fill a sample, or one round."""
    wanted = min(_MOST_CALLS, _SAMPLE / max(once, 1e-7))
    return sets * max(1, round(wanted / sets))


class Clock:
    """Stream, events and graphs of a GPU, as far as :func:`measure` needs them.

    ``stream`` is PyTorch's; by default one of its own, which graphs can be captured on.
    """

    def __init__(self, stream: Any = None) -> None:
        import torch

        from hetero_tvm.host.tvm import tvm, tvm_ffi

        self._torch = torch
        self._tvm_stream = lambda handle: tvm_ffi.use_raw_stream(tvm.cuda(0), handle)
        self.stream = torch.cuda.Stream() if stream is None else stream

    def on_stream(self) -> Any:
        """A context in which PyTorch's and TVM's kernels go to the stream."""
        from contextlib import ExitStack

        stack = ExitStack()
        stack.enter_context(self._torch.cuda.stream(self.stream))
        stack.enter_context(self._tvm_stream(self.stream.cuda_stream))
        return stack

    def synchronize(self) -> None:
        self.stream.synchronize()

    def graph(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """A call that launches all that ``work`` queues at once."""
        captured = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(captured, stream=self.stream):
            work()
        return captured.replay

    def seconds(self, work: Callable[[], Any]) -> float:
        """Between events before and behind ``work``."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(self.stream)
        work()
        end.record(self.stream)
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def measure(
    calls: Sequence[Callable[[], Any]],
    clock: Clock,
    budget: float = 0.3,
    graph: bool = True,
    busy: Callable[[], Any] = lambda: None,
) -> Timing:
    """Time one call, going round ``calls`` (the same on different operands).

    Parameters
    ----------
    graph : several launches become one CUDA graph, so that what a launch costs Python is not measured.
    budget : seconds of samples.
    busy : called once while the GPU still works on calls: reads clocks, say.
    """
    turn = itertools.cycle(calls)
    with clock.on_stream():
        for call in calls:
            call()
        clock.synchronize()
        once = min(clock.seconds(lambda: [next(turn)() for _ in calls]) / len(calls) for _ in range(2))
        inner = calls_per_sample(once, len(calls))

        def work() -> None:
            for _ in range(inner):
                next(turn)()

        launch = work
        if graph:
            try:
                launch = clock.graph(work)
            except Exception:  # what cannot be captured is launched as it is, and the result says so
                clock.synchronize()
                graph = False
        settle(lambda: clock.seconds(launch), *_WARM_UP)
        samples: list[float] = []
        end = perf_counter() + budget
        while len(samples) < 7 or (perf_counter() < end and len(samples) < 300):
            samples.append(clock.seconds(launch) / inner)
        for _ in range(4):
            launch()
        busy()
        clock.synchronize()
    ordered = sorted(samples)
    tenth = len(ordered) // 10
    return Timing(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth], len(ordered), graph)
