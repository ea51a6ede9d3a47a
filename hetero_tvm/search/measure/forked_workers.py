"""Building, checking and timing candidates in crash-isolated processes: the tuner's side.

>>> with ForkedWorkers(machine, machine.codegen_target()) as workers:
...     workers.add_task("t0", contract_spec(op, space))
...     for index, outcome in workers.measure([Job("t0", ({"point": point},))]):
...         print(outcome.results[0].seconds)
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from time import monotonic
from typing import Any

from hetero_tvm import host
from hetero_tvm.errors import TuningError
from hetero_tvm.import_path import command_of
from hetero_tvm.machines.base import Machine
from hetero_tvm.search.measure.service import CRASH, Job, Limits, Result, wire_task
from hetero_tvm.search.measure.wire import Channel


@dataclass
class _Server:
    process: subprocess.Popen
    channel: Channel
    threads: int
    known: set[str] = field(default_factory=set)


_spawned: list[_Server] = []
_started_early: list[ForkedWorkers] = []


def spawn_early() -> None:
    """Begin starting a measuring process before it is known what for; imports no compiler here.

    The process imports its own on another core while this one does the same; :func:`start_early` or a
    search then tells it the rest.  An unused one ends with this process.
    """
    if not _spawned:
        _spawned.append(_spawn(len(host.available_cores())))


def _spawn(threads: int) -> _Server:
    """A fork server that will time kernels with ``threads`` threads."""
    ours, theirs = socket.socketpair()
    environment = {
        **os.environ,
        "HETERO_TVM_THREADS": str(threads),
        "HETERO_TVM_PIN": "0",  # see search/measure/timing.py
        "OPENBLAS_NUM_THREADS": "1",  # a forking process must not own threads
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    try:
        process = subprocess.Popen(
            command_of("hetero_tvm.search.measure.zygote", str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
        )
    finally:
        theirs.close()
    return _Server(process, Channel(ours), threads)


def start_early(machine: Machine) -> None:
    """Begin starting the measuring process for ``machine`` in the background.

    It takes about a second of another core, which is free while a model is being imported;
    :func:`started_workers` then finds it ready.  An unused one ends with this process.
    """
    if not any(workers.serves(machine, machine.codegen_target(), Limits()) for workers in _started_early):
        _started_early.append(ForkedWorkers(machine))


def started_workers(machine: Machine, target: dict[str, Any], limits: Limits, seed: int) -> ForkedWorkers:
    """The process that :func:`start_early` began if it fits, else a new one.  The caller closes it."""
    for workers in _started_early:
        if workers.serves(machine, target, limits):
            _started_early.remove(workers)
            workers.seed = seed
            return workers
    return ForkedWorkers(machine, target, limits, seed=seed)


class ForkedWorkers:
    """A fork server and the candidates it measures.

    The server starts at once in the background (about 1 s) and is restarted when it dies; what was
    in flight then counts as crashed.  Closing it, or the death of this process in any way, ends all
    its children.

    Parameters
    ----------
    machine : the target machine; its ``threads`` is the number that kernels are timed with.
    target : TVM target as a dictionary; default the machine's.
    slots : candidates built at once; default one per available core.
    """

    def __init__(
        self,
        machine: Machine,
        target: dict[str, Any] | None = None,
        limits: Limits | None = None,
        slots: int | None = None,
        seed: int = 0,
    ):
        self._machine = machine
        self._target = target or machine.codegen_target()
        self.limits = limits or Limits()
        self._slots = slots or len(host.available_cores())
        self.seed = seed
        """Seed of the random inputs of tasks that are added from now on."""
        self._specs: dict[str, dict[str, Any]] = {}
        self._references: dict[str, Job] = {}
        self.spent: dict[str, float] = {}
        """Seconds that candidates took, summed by phase: build, wait, check, time."""
        self._failures_in_a_row = 0
        self._next_job = 0
        self._server: _Server | None = None
        self._ready = False
        self._start()

    # life cycle --------------------------------------------------------------------------------
    def _start(self) -> None:
        threads = self._machine.threads
        fitting = _spawned and _spawned[-1].threads == threads
        self._server = _spawned.pop() if fitting else _spawn(threads)
        self._ready = False
        self._server.channel.send(
            {
                "sys_path": [path or os.getcwd() for path in sys.path],
                "target": self._target,
                "slots": self._slots,
                "memory": self.limits.memory,
                "cores": list(host.available_cores()),
                "cache": self._machine.l2 * self._machine.threads,
            }
        )

    def close(self) -> None:
        """End the server and everything it runs."""
        if self._server is not None:
            self._server.channel.close()
            try:
                self._server.process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self._server.process.kill()
                self._server.process.wait()
            self._server = None

    def serves(self, machine: Machine, target: dict[str, Any], limits: Limits) -> bool:
        """Whether this process measures for that machine under those limits."""
        return (self._machine, self._target, self.limits) == (machine, target, limits)

    def __enter__(self) -> ForkedWorkers:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def wait_ready(self) -> None:
        """Block until the server takes jobs.  :class:`TuningError` when it cannot start."""
        for _ in range(3):
            while not self._ready:
                if self._server is None:
                    self._start()
                for message in self._receive(None) or ():
                    if message["event"] == "failed":
                        self.close()
                        raise TuningError(f"the measuring process cannot start: {message['text']}")
                    self._ready = self._ready or message["event"] == "ready"
                if self._server is None:
                    break
            if self._ready:
                return
        raise TuningError(
            "the measuring process ends while it starts",
            hint="run `python -m hetero_tvm.search.measure.zygote 0` to see its own message",
        )

    @staticmethod
    def roofs() -> None:
        """None: the roofs of these cores are measured (see ``machines.roofs``)."""

    # work --------------------------------------------------------------------------------------
    def add_task(self, name: str, spec: dict[str, Any]) -> None:
        """Declare a task (:func:`contract_spec`, :func:`generic_spec`); prepared on first use."""
        described = wire_task(spec, self._machine, self._target, self.seed)
        if self._specs.get(name) != described:
            self._specs[name] = described
            self._references.pop(name, None)
            if self._server is not None:
                self._server.known.discard(name)

    def measure(
        self, jobs: Sequence[Job], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, list[Result]]]:
        """Run jobs; yields (index in ``jobs``, one result per candidate) as each is known.

        ``stop`` is asked several times per second; when it says yes, candidates in flight are killed
        and the iteration ends.
        """
        pending: dict[int, int] = {}
        try:
            yield from self._measure(jobs, stop, pending)
        finally:
            if pending and self._server is not None:  # stopped, or the caller went away
                self._cancel()

    def _measure(
        self, jobs: Sequence[Job], stop: Callable[[], bool], pending: dict[int, int]
    ) -> Iterator[tuple[int, list[Result]]]:
        self.wait_ready()
        self._submit(jobs, range(len(jobs)), pending)
        suspects: set[int] = set()
        while pending:
            if stop():
                return
            messages = self._receive(0.1)
            if messages is None:
                yield from self._server_died(jobs, pending, suspects)
                continue
            for message in messages:
                if message["event"] == "done" and message["job"] in pending:
                    self._failures_in_a_row = 0
                    for phase, seconds in message["spent"].items():
                        self.spent[phase] = self.spent.get(phase, 0.0) + seconds
                    yield pending.pop(message["job"]), [Result(*result) for result in message["results"]]

    def _submit(self, jobs: Sequence[Job], indices: Iterable[int], pending: dict[int, int]) -> None:
        for group in self._groups(jobs, list(indices)):
            job = jobs[group[0]]
            numbers = range(self._next_job, self._next_job + len(group))
            self._next_job += len(group)
            pending.update(zip(numbers, group, strict=True))
            try:
                if job.task not in self._server.known:
                    self._server.channel.send({"do": "task", "task": job.task, "spec": self._specs[job.task]})
                    self._server.known.add(job.task)
                    if job.task in self._references and not job.store_reference:
                        self._server.channel.send(self._message(self._references[job.task], -1))
                if job.store_reference:
                    # What a new server must run again, should this one die: it holds the result.
                    self._references[job.task] = replace(job, candidates=job.candidates[:1])
                message = self._message(job, numbers[0])
                if len(group) > 1:
                    message["candidates"] = [jobs[index].candidates[0] for index in group]
                    message["members"] = list(numbers)
                self._server.channel.send(message)
            except OSError:  # the server has just died; the next receive sees it
                return

    def _groups(self, jobs: Sequence[Job], indices: list[int]) -> Iterator[list[int]]:
        """Neighbours that may share a child, evenly so that no slot idles."""
        kinds = {index: replace(jobs[index], candidates=()) for index in indices}
        for kind, neighbours in groupby(indices, kinds.__getitem__):
            alike = list(neighbours)
            size = 1
            if not kind.store_reference and all(len(jobs[index].candidates) == 1 for index in alike):
                size = max(1, min(kind.group_size, -(-len(alike) // self._slots)))
            for start in range(0, len(alike), size):
                yield alike[start : start + size]

    def _message(self, job: Job, number: int) -> dict[str, Any]:
        return {
            "do": "job",
            "job": number,
            "task": job.task,
            "candidates": list(job.candidates),
            "limit": job.limit,
            "budget": job.budget,
            "store_reference": job.store_reference,
            "build_seconds": self.limits.build_seconds,
            "run_seconds": job.run_seconds or self.limits.run_seconds,
        }

    def _server_died(
        self, jobs: Sequence[Job], pending: dict[int, int], suspects: set[int]
    ) -> Iterator[tuple[int, list[Result]]]:
        """Go on with another server; the oldest jobs, which can have been in flight, once more and alone.

        They are blamed when it happens again: the first time it may have been anything, a lack of memory
        above all.  ``suspects`` are those of earlier deaths.
        """
        self._failures_in_a_row += 1
        if self._failures_in_a_row > 3:
            raise TuningError("the measuring process keeps dying", hint="is the machine out of memory?")
        oldest = [pending[number] for number in sorted(pending)]
        in_flight = oldest[: self._slots]
        lost = [index for index in in_flight if index in suspects]
        again = [index for index in in_flight if index not in suspects]
        suspects.update(in_flight)
        pending.clear()
        self.wait_ready()
        for index in again:
            self._submit(jobs, [index], pending)
        self._submit(jobs, oldest[self._slots :], pending)
        for index in lost:
            yield index, [Result(CRASH, None, "the measuring process died")] * len(jobs[index].candidates)

    def _cancel(self) -> None:
        try:
            self._server.channel.send({"do": "cancel"})
        except OSError:
            pass

    def _receive(self, timeout: float | None) -> list[dict[str, Any]] | None:
        """Messages; [] after ``timeout`` seconds without any; None when the server has died."""
        server = self._server
        end = None if timeout is None else monotonic() + timeout
        while True:
            if not server.channel.wait(None if end is None else max(0.0, end - monotonic())):
                return []
            messages = server.channel.receive()
            if messages:
                return messages
            if server.channel.closed:
                server.process.kill()
                server.process.wait()
                server.channel.close()
                self._server, self._ready = None, False
                return None
