"""Timing with a clock that tells what a GPU would: rounds over all operands, warm-up, medians, graphs."""

import contextlib

import pytest

from benchmarks.gpu import timing


class FakeClock:
    """Each call takes ``cost(number of calls so far)`` seconds; nothing waits."""

    def __init__(self, cost, capture=True):
        self.cost, self.calls, self.now = cost, 0, 0.0
        self.launches = []
        """Calls in each graph launched."""
        self._capture, self._capturing = capture, False

    def call(self, name):
        def go():
            if self._capturing:
                self._graph.append(name)
                return
            self.calls += 1
            self.now += self.cost(self.calls)
            self.order.append(name)

        self.order = []
        return go

    def on_stream(self):
        return contextlib.nullcontext()

    def synchronize(self):
        pass

    def graph(self, work):
        self._capturing, self._graph = True, []
        work()
        self._capturing = False
        graph = list(self._graph)

        def replay():
            self.launches.append(len(graph))
            for _ in graph:
                self.calls += 1
                self.now += self.cost(self.calls)

        self.captured = graph
        return replay

    def seconds(self, work):
        before = self.now
        work()
        return self.now - before


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(timing, "_WARM_UP", (0.0, 0.2))


def test_a_graph_goes_round_all_operands():
    clock = FakeClock(lambda n: 3e-3)  # longer than a sample: one call would do, on one set only
    found = timing.measure([clock.call(name) for name in "abc"], clock, budget=0.0)
    assert sorted(clock.captured) == ["a", "b", "c"]
    assert found.seconds == pytest.approx(3e-3) and found.graph


def test_short_kernels_are_launched_often():
    clock = FakeClock(lambda n: 1e-5)
    found = timing.measure([clock.call(name) for name in "abcd"], clock, budget=0.0)
    assert len(clock.captured) == 200 and clock.captured.count("a") == 50
    assert found.seconds == pytest.approx(1e-5)
    assert timing.calls_per_sample(1e-9, 7) % 7 == 0


def test_slow_first_runs_are_not_counted():
    """Clocks that rise over the first thousand calls."""
    clock = FakeClock(lambda n: 1e-5 * max(1.0, 5.0 - n / 250))
    assert timing.measure([clock.call("a")], clock, budget=0.0).seconds == pytest.approx(1e-5)


def test_outliers_do_not_move_the_median():
    clock = FakeClock(lambda n: 1.0 if n % 997 == 0 else 1e-3)
    found = timing.measure([clock.call("a")], clock, budget=0.0)
    assert found.seconds == pytest.approx(1e-3) and found.low <= found.seconds <= found.high


def test_without_graphs_the_calls_themselves_are_timed():
    clock, seen = FakeClock(lambda n: 1e-3), []
    found = timing.measure([clock.call("a")], clock, 0.0, graph=False, busy=lambda: seen.append(clock.calls))
    assert not found.graph and not clock.launches and len(clock.order) == clock.calls
    assert len(seen) == 1


class FakeCuda:
    """``torch.cuda`` as far as :class:`timing.Clock` goes: a stream that counts milliseconds."""

    def __init__(self):
        self.milliseconds, self.current, self.capturing = 0.0, None, None
        fake = self

        class Stream:
            cuda_stream = 77

            def synchronize(self):
                pass

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self, stream):
                assert isinstance(stream, Stream)
                self.at = fake.milliseconds

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return end.at - self.at

        class CUDAGraph:
            def replay(self):
                fake.milliseconds += self.cost

        @contextlib.contextmanager
        def graph(captured, stream):
            before, fake.capturing = fake.milliseconds, captured
            yield
            captured.cost, fake.milliseconds, fake.capturing = fake.milliseconds - before, before, None

        @contextlib.contextmanager
        def on(stream):
            fake.current = stream
            yield
            fake.current = None

        self.Stream, self.Event, self.CUDAGraph, self.graph, self.stream = Stream, Event, CUDAGraph, graph, on


def test_the_clock_reads_events_on_its_stream(monkeypatch):
    torch = pytest.importorskip("torch")
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    clock, streams = timing.Clock(), set()

    def kernel():
        streams.add(fake.current)
        fake.milliseconds += 0.25

    found = timing.measure([kernel, kernel], clock, budget=0.0)
    assert found.seconds == pytest.approx(2.5e-4) and found.graph
    assert streams == {clock.stream} and fake.current is None


def test_what_cannot_be_captured_is_launched(monkeypatch):
    class Uncaptured(FakeClock):
        def graph(self, work):
            raise RuntimeError("operation not permitted when stream is capturing")

    clock = Uncaptured(lambda n: 1e-3)
    found = timing.measure([clock.call("a")], clock, budget=0.0)
    assert found.seconds == pytest.approx(1e-3) and not found.graph
