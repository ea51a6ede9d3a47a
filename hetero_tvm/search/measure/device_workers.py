"""Measuring on a device that only one process at a time should use: a GPU, or another machine.

Compiling needs cores and no device, measuring needs the device and hardly a core.  So several processes
compile, none of which ever touches the device, while one process per device measures what they made.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

from hetero_tvm import host
from hetero_tvm.host.scratch import temporary_folder
from hetero_tvm.machines.base import Machine
from hetero_tvm.machines.roofs import Roofs
from hetero_tvm.search.measure.device_client import DeviceClient, DeviceDoor, LocalDevice
from hetero_tvm.search.measure.peer import Peer, PeerLost
from hetero_tvm.search.measure.service import BUILD_ERROR, CRASH, TIMEOUT, Job, Limits, Result, wire_task

_COMPILE_MODULE = "hetero_tvm.search.measure.compile_process"
DEVICE_LIMITS = Limits(build_seconds=90.0, run_seconds=20.0, memory=32 << 30)
"""Compilers of devices take longer than LLVM, and map more; inputs have to reach the device."""
_WAITING = 8
"""Compiled candidates that may wait for the device: bounds the age of what the search knows."""


def batch_size(trials: int | None, tasks: int, slots: int) -> int | None:
    """Candidates to propose at once: as many as keep all compilers at work while the device measures.

    No more than a quarter of a task's trials, so that the search learns on the way; None leaves the number
    to the search, where fewer are enough.
    """
    wanted = 2 * slots if trials is None else min(2 * slots, trials // (4 * max(1, tasks)))
    return wanted if wanted > 8 else None


def open_devices(
    door: DeviceDoor, environment: Mapping[str, str], indices: Sequence[int], rpc: str | None
) -> list[DeviceClient]:
    """Devices that candidates can be measured on, opened; the caller closes them.

    Parameters
    ----------
    environment : variables of the processes that own the devices.
    indices : numbers of this machine's devices; not asked with ``rpc``.
    rpc : address of another machine (see :class:`hetero_tvm.search.measure.remote.Address`), or None.

    Raises
    ------
    TuningError : a device is there and cannot be used, or nothing answers at the address.
    UsageError : the address is none.
    """
    if rpc is not None:
        from hetero_tvm.search.measure.remote import Address, RemoteDevice

        devices: list[DeviceClient] = [RemoteDevice(Address.parse(rpc), door.device, environment)]
    else:
        devices = [LocalDevice(door.device, index, environment) for index in indices]
    try:
        for device in devices:
            device.open()
    except BaseException:
        for device in devices:
            device.close()
        raise
    return devices


class DeviceWorkers:
    """Measuring service for devices (see :class:`hetero_tvm.search.measure.service.Workers`).

    Parameters
    ----------
    devices : devices of one kind and name, opened; each measures one job at a time.
    machine : what candidates are compiled for.
    compiler : ``module:function`` that makes a shared library of a kernel: ``(PrimFunc, machine, path)
        -> facts`` (see :class:`DeviceDoor`).
    slots : candidates compiled at once; default one per available core.
    """

    def __init__(
        self,
        devices: Sequence[DeviceClient],
        machine: Machine,
        compiler: str,
        limits: Limits | None = None,
        slots: int | None = None,
        seed: int = 0,
    ):
        self._devices, self._machine, self._seed = list(devices), machine, seed
        self.limits = limits or Limits()
        self._open = ExitStack()
        self._folder = self._open.enter_context(temporary_folder("hetero_tvm-candidates-"))
        hello = {
            "compile": compiler,
            "memory": self.limits.memory,
            "sys_path": [path or str(Path.cwd()) for path in sys.path],
        }
        environment = {
            "HETERO_TVM_THREADS": "1",
            "TVM_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._compilers = [
            Peer(_COMPILE_MODULE, hello, environment) for _ in range(slots or len(host.available_cores()))
        ]
        self._specs: dict[str, dict[str, Any]] = {}
        self._numbers = count()
        self.spent: dict[str, float] = {}
        """Seconds by phase, summed over processes: ``build``, ``measure``."""
        self._lock = threading.Lock()

    def __enter__(self) -> DeviceWorkers:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def close(self) -> None:
        for process in [*self._compilers, *self._devices]:
            process.close()
        self._open.close()

    @property
    def slots(self) -> int:
        """Candidates compiled at once."""
        return len(self._compilers)

    def use(self, machine: Machine) -> None:
        """Compile tasks that are added from now on for another variant of the same device."""
        self._machine = machine

    def wait_ready(self) -> None:
        """Start the compiling processes, all at once."""
        starting = [threading.Thread(target=self._start, args=(peer,)) for peer in self._compilers]
        for thread in starting:
            thread.start()
        for thread in starting:
            thread.join()

    @staticmethod
    def _start(peer: Peer) -> None:
        try:
            peer.start()
        except PeerLost:  # told by the first candidate that needs it
            pass

    @staticmethod
    def roofs() -> Roofs:
        """Unknown: what can be measured here says nothing of the device."""
        return Roofs(None, None)

    def add_task(self, name: str, spec: dict[str, Any]) -> None:
        """Declare a task (:func:`hetero_tvm.search.measure.service.contract_spec`)."""
        self._specs[name] = wire_task(spec, self._machine, self._machine.codegen_target(), self._seed)

    def measure(
        self, jobs: Sequence[Job], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, list[Result]]]:
        """See :meth:`hetero_tvm.search.measure.service.Workers.measure`."""
        run = _Run(self, jobs)
        try:
            yield from run.results(stop)
        finally:
            run.cancel()

    def compile_all(self, jobs: Sequence[Job]) -> list[list[Path | Result]]:
        """Compile candidates on all cores without running them: their libraries, or how they failed.

        Libraries stay until this is closed.
        """
        found: list[list[Path | Result]] = [[] for _ in jobs]
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(jobs)):
            todo.put(index)

        def work(peer: Peer) -> None:
            while True:
                try:
                    index = todo.get_nowait()
                except queue.Empty:
                    return
                found[index] = [self.compile(peer, jobs[index], one) for one in jobs[index].candidates]

        threads = [threading.Thread(target=work, args=(peer,)) for peer in self._compilers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    # one job -----------------------------------------------------------------------------------
    def compile(self, peer: Peer, job: Job, candidate: Any) -> Path | Result:
        """The library of a candidate, or how it failed."""
        path = self._folder / f"{next(self._numbers)}.so"
        message = {"spec": self._specs[job.task], "candidate": candidate, "path": str(path)}
        try:
            with self._timed("build"):
                peer.start()
                reply = peer.ask(message, self.limits.build_seconds)
        except PeerLost as lost:
            return Result(TIMEOUT if lost.hung else CRASH, None, f"while compiling: {lost}")
        return Result(BUILD_ERROR, None, reply["failed"]) if "failed" in reply else path

    def run(self, device: DeviceClient, job: Job, libraries: Sequence[Path | Result]) -> list[Result]:
        """Results of a job whose candidates were compiled, or not."""
        good = [index for index, library in enumerate(libraries) if isinstance(library, Path)]
        results = [library if isinstance(library, Result) else None for library in libraries]
        if good:
            with self._timed("measure"):
                answers = device.measure(
                    job.task,
                    self._specs[job.task],
                    [job.candidates[index] for index in good],
                    [libraries[index] for index in good],
                    job.budget,
                    job.limit,
                    job.run_seconds or self.limits.run_seconds * len(good),
                )
            for index, answer in zip(good, answers, strict=True):
                results[index] = Result(*answer)
                libraries[index].unlink(missing_ok=True)
        return results

    def _timed(self, phase: str) -> _Timed:
        return _Timed(self, phase)


class _Timed:
    """Adds the seconds of a ``with`` block to what a phase has spent."""

    def __init__(self, workers: DeviceWorkers, phase: str):
        self._workers, self._phase = workers, phase

    def __enter__(self) -> None:
        self._began = monotonic()

    def __exit__(self, *exc: Any) -> None:
        with self._workers._lock:
            spent = self._workers.spent
            spent[self._phase] = spent.get(self._phase, 0.0) + monotonic() - self._began


class _Run:
    """Call of :meth:`DeviceWorkers.measure`: its threads, and the queues between them."""

    def __init__(self, workers: DeviceWorkers, jobs: Sequence[Job]):
        self._workers, self._jobs = workers, jobs
        self._todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(jobs)):
            self._todo.put(index)
        self._built: queue.Queue[tuple[int, list[Path | Result]] | None] = queue.Queue(_WAITING)
        self._done: queue.SimpleQueue[tuple[int, list[Result]] | BaseException] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._threads = [
            *(threading.Thread(target=self._guarded, args=(self._compile, p)) for p in workers._compilers),
            *(threading.Thread(target=self._guarded, args=(self._measure_on, d)) for d in workers._devices),
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def results(self, stop: Callable[[], bool]) -> Iterator[tuple[int, list[Result]]]:
        missing = len(self._jobs)
        while missing and not stop():
            try:
                result = self._done.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(result, BaseException):
                raise result
            missing -= 1
            yield result

    def cancel(self) -> None:
        """Drop what has not begun, end what is in flight."""
        self._cancelled.set()
        busy = any(thread.is_alive() for thread in self._threads)
        unfinished = busy and (not self._todo.empty() or not self._built.empty())
        for thread in self._threads:
            thread.join(timeout=0.5 if not unfinished else 0.0)
        if any(thread.is_alive() for thread in self._threads):
            for peer in self._workers._compilers:
                peer.close()
            for device in self._workers._devices:
                device.restart()
            for thread in self._threads:
                thread.join(timeout=5.0)

    def _guarded(self, work: Callable[[Any], None], with_what: Any) -> None:
        try:
            work(with_what)
        except BaseException as error:  # goes to the thread that waits for results
            self._done.put(error)

    def _compile(self, peer: Peer) -> None:
        while not self._cancelled.is_set():
            try:
                index = self._todo.get_nowait()
            except queue.Empty:
                return
            job = self._jobs[index]
            made = [self._workers.compile(peer, job, candidate) for candidate in job.candidates]
            while not self._cancelled.is_set():
                try:
                    self._built.put((index, made), timeout=0.1)
                    break
                except queue.Full:
                    continue

    def _measure_on(self, device: DeviceClient) -> None:
        compiling = self._threads[: len(self._workers._compilers)]
        while not self._cancelled.is_set():
            over = not any(thread.is_alive() for thread in compiling)
            try:
                index, libraries = self._built.get(timeout=0.02)
            except queue.Empty:
                if over:
                    return
                continue
            self._done.put((index, self._workers.run(device, self._jobs[index], libraries)))
