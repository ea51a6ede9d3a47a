"""The fork server: one process that has everything imported and forks a child per candidate.

Started as ``python -m hetero_tvm.search.measure.zygote FD`` by ``forked_workers.py``.

It compiles, but never runs a kernel, so that it has no threads and no memory that a candidate has touched:
each child starts its own thread pool, and dies with it.  A child costs 6 ms instead of the 0.7 s of
a fresh interpreter, and inherits the inputs and the reference of its task.

Builds use one core each and run side by side; timing uses all cores and must not be disturbed.  So
the server alternates: build until a few candidates wait, then time them one after another, then
build again.

It ends, children included, when the socket to its parent is closed, which the kernel does also when
the parent is killed.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from select import select
from time import monotonic
from typing import Any

from hetero_tvm.errors import TuningError
from hetero_tvm.search.measure.neighbours import processor_seconds
from hetero_tvm.search.measure.wire import Channel

_MOST_WAITING = 8
"""Built candidates that may wait for their turn: bounds memory and the age of what the search knows."""
_MOST_PREPARED_BYTES = 2 << 30
_LEAVE_SECONDS = 5.0
_LEAST_SHARE = 0.1
"""Share of a core that a build has at least which does not hang, however crowded the machine is."""
_LEAST_WAIT = 0.5


@dataclass
class _Child:
    job: dict[str, Any]
    pid: int
    channel: Channel
    log: int
    deadline: float
    reported: int = 0
    """Members of a group whose results are known."""
    phase: str = "build"
    """``build``, ``wait`` for its turn, ``run``, ``leave`` (has reported, is being torn down)."""
    seen: tuple[float, float] = field(default_factory=lambda: (monotonic(), 0.0))
    """Moment of the last look at its processor time, and what that was."""


class Server:
    def __init__(self, parent: Channel, hello: dict[str, Any]):
        self._parent = parent
        self._slots: int = hello["slots"]
        self._memory: int = hello["memory"]
        self._constants = {"cores": hello["cores"], "cache": hello["cache"]}
        self._specs: dict[str, dict[str, Any]] = {}
        self._prepared: OrderedDict[str, Any] = OrderedDict()
        self._unpreparable: dict[str, str] = {}
        self._queue: deque[dict[str, Any]] = deque()
        self._children: list[_Child] = []
        self._draining = False

    def serve(self) -> None:
        """Run until the parent hangs up."""
        while not self._parent.closed:
            self._start_what_may_run()
            deadline = min((c.deadline for c in self._children), default=None)
            timeout = None if deadline is None else max(0.0, deadline - monotonic())
            ready, _, _ = select([self._parent, *(c.channel for c in self._children)], [], [], timeout)
            if self._parent in ready:
                for message in self._parent.receive():
                    self._accept(message)
            for child in [c for c in self._children if c.channel in ready]:
                self._hear(child)
            for child in [c for c in self._children if c.deadline <= monotonic()]:
                if child.phase == "build" and (more := _wait_for(child)):
                    child.deadline = monotonic() + more
                    continue
                allowed = child.job.get(f"{child.phase}_seconds", _LEAVE_SECONDS)
                self._end(child, "timeout", f"no result {allowed:g} s into the {child.phase} phase")

    def kill_children(self) -> None:
        for child in self._children:
            _kill(child.pid)

    # requests ----------------------------------------------------------------------------------
    def _accept(self, message: dict[str, Any]) -> None:
        if message["do"] == "task":
            self._specs[message["task"]] = message["spec"]
            self._unpreparable.pop(message["task"], None)
            self._prepared.pop(message["task"], None)
        elif message["do"] == "job":
            self._queue.append(message)
        elif message["do"] == "cancel":
            self._queue.clear()
            self.kill_children()

    def _start_what_may_run(self) -> None:
        if any(c.phase == "run" for c in self._children):
            return
        waiting = [c for c in self._children if c.phase == "wait"]
        building = sum(c.phase == "build" for c in self._children)
        most = self._most_waiting()
        draining = waiting and (not self._queue or len(waiting) >= most or self._draining)
        self._draining = bool(draining)
        if draining:
            if not building:
                child = min(waiting, key=lambda c: not c.job["store_reference"])  # others need its result
                child.phase = "run"
                child.deadline = monotonic() + child.job["run_seconds"]
                try:
                    child.channel.send({"go": True})
                except OSError:  # it has died while waiting; its hang-up is about to be read
                    pass
            return
        while self._queue and building < self._slots and building + len(waiting) < most:
            if self._fork(self._queue.popleft()):
                building += 1

    def _most_waiting(self) -> int:
        """Each waiting child holds its own copies of the constants."""
        if not self._queue:
            return _MOST_WAITING
        task = self._prepared.get(self._queue[0]["task"])
        held = max(1, 4 * task.nbytes) if task is not None else 1
        return max(self._slots, min(_MOST_WAITING, _MOST_PREPARED_BYTES // held))

    def _task(self, name: str) -> Any:
        from hetero_tvm.search.measure.prepared import Prepared

        if name in self._unpreparable:
            raise TuningError(self._unpreparable[name])
        if name not in self._prepared:
            try:
                self._prepared[name] = Prepared(self._specs[name])
            except Exception as error:
                self._unpreparable[name] = f"preparing the task failed: {type(error).__name__}: {error}"
                raise TuningError(self._unpreparable[name]) from error
            gc.freeze()  # keeps the collector from touching, and so copying, shared pages in children
        self._prepared.move_to_end(name)
        self._forget_oldest(keep=name)
        return self._prepared[name]

    def _forget_oldest(self, keep: str) -> None:
        """Bound what all tasks hold; a reference that a child has computed cannot be made again here."""
        expendable = [n for n, task in self._prepared.items() if task.shared is None and n != keep]
        held = sum(task.nbytes for task in self._prepared.values())
        while expendable and held > _MOST_PREPARED_BYTES:
            held -= self._prepared.pop(expendable.pop(0)).nbytes

    def _fork(self, job: dict[str, Any]) -> bool:
        try:
            task = self._task(job["task"])
        except TuningError as error:  # fails all candidates of the task
            failure = ["build_error", None, str(error)[:2000]]
            for index in range(len(job.get("members", ()))):
                self._report(_member(job, index), [failure])
            if "members" not in job:
                self._report(job, [failure] * len(job["candidates"]))
            return False
        ours, theirs = socket.socketpair()
        log = os.memfd_create("candidate")
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                from hetero_tvm.search.measure import child

                ours.close()
                self._parent.close()
                for other in self._children:
                    other.channel.close()
                child.confine(log, self._memory, parent)
                child.run(task, {**job, **self._constants}, Channel(theirs))
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass
        deadline = monotonic() + job["build_seconds"] * len(job["candidates"])
        self._children.append(_Child(job, pid, Channel(ours), log, deadline))
        return True

    # answers -----------------------------------------------------------------------------------
    def _hear(self, child: _Child) -> None:
        for message in _safely(child.channel.receive):
            if message.get("phase") == "built":
                child.phase, child.deadline = "wait", float("inf")
                self._parent.send({"event": "built", "job": child.job["job"]})
            elif message.get("phase") == "one" and child.phase == "run":
                self._report(_member(child.job, child.reported), [message["result"]], message["spent"])
                child.reported += 1
                child.deadline = monotonic() + child.job["run_seconds"]
            elif message.get("phase") == "done" and "members" in child.job:
                self._leave(child)
            elif message.get("phase") == "done" and child.phase != "leave":
                results = message.get("results")
                if isinstance(results, list) and len(results) == len(child.job["candidates"]):
                    self._report(child.job, results, message.get("spent"))
                    self._leave(child)
        if child.channel.closed:
            self._end(child, "crash", "")

    def _leave(self, child: _Child) -> None:
        """Let the next one run: its first, untimed call is longer than this one's way out."""
        if child.phase != "leave":
            child.phase, child.deadline = "leave", monotonic() + _LEAVE_SECONDS
            self._again(child.job, child.reported)

    def _again(self, job: dict[str, Any], first: int) -> None:
        """Queue the members of a group from the ``first`` on, each for a process of its own."""
        if "members" in job:
            for index in reversed(range(first, len(job["members"]))):
                self._queue.appendleft(_member(job, index))

    def _end(self, child: _Child, status: str, text: str) -> None:
        """Reap a child; one that has not reported ends with ``status`` for all its candidates."""
        _kill(child.pid)
        _, code = os.waitpid(child.pid, 0)
        self._children.remove(child)
        child.channel.close()
        if child.phase != "leave":
            if status == "crash":
                text = f"{_describe(code)} in the {child.phase} phase"
            text = "\n".join(filter(None, [text, _excerpt(child.log)]))
            if "members" not in child.job:
                self._report(child.job, [[status, None, text]] * len(child.job["candidates"]))
            elif child.phase == "run":
                self._report(_member(child.job, child.reported), [[status, None, text]])
                self._again(child.job, child.reported + 1)
            else:
                self._again(child.job, 0)  # which one is to blame shows when each has its own process
        os.close(child.log)

    def _report(
        self, job: dict[str, Any], results: list[list[Any]], spent: dict[str, float] | None = None
    ) -> None:
        self._parent.send({"event": "done", "job": job["job"], "results": results, "spent": spent or {}})


def _wait_for(child: _Child) -> float:
    """Seconds for which a build is waited for beyond its time, as others had the cores; 0 for one that hangs.

    Its time is the processor's then: a neighbour makes no candidate a bad one.
    """
    allowed = child.job["build_seconds"] * len(child.job["candidates"])
    used = processor_seconds(child.pid)
    now, before = monotonic(), child.seen
    child.seen = (now, used or 0.0)
    if used is None or used >= allowed or used - before[1] < _LEAST_SHARE * (now - before[0]):
        return 0.0
    return max(_LEAST_WAIT, allowed - used)


def _member(job: dict[str, Any], index: int) -> dict[str, Any]:
    """Job for one member of a group."""
    alone = {name: value for name, value in job.items() if name != "members"}
    return alone | {"job": job["members"][index], "candidates": [job["candidates"][index]]}


def _safely(receive: Any) -> list[dict[str, Any]]:
    """Messages of a child; a child that sends rubbish is treated as silent."""
    try:
        return [message for message in receive() if isinstance(message, dict)]
    except ValueError:
        return []


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def _describe(code: int) -> str:
    if os.WIFSIGNALED(code):
        try:
            return f"killed by {signal.Signals(os.WTERMSIG(code)).name}"
        except ValueError:
            return f"killed by signal {os.WTERMSIG(code)}"
    return f"exit status {os.waitstatus_to_exitcode(code)}"


def _excerpt(log: int, limit: int = 300) -> str:
    """Beginning and end of what a child printed (TVM's crash handler prints a long backtrace)."""
    size = os.fstat(log).st_size
    head, tail = os.pread(log, limit, 0), os.pread(log, limit, max(limit, size - limit))
    return (head + (b" ... " if size > 2 * limit else b"") + tail).decode(errors="replace").strip()


def warm_up(target: dict[str, Any]) -> None:
    """Initialise all that a child will need, by compiling (not running) one small kernel."""
    from hetero_tvm.search.measure import child

    tvm = child.tvm
    from hetero_tvm.codegen import thread_pool
    from hetero_tvm.codegen.pipeline import compile_kernels
    from hetero_tvm.host.tvm import te

    thread_pool.attach()  # candidates are timed on the pool that libraries run on

    x = te.placeholder((16,), "float32", name="x")
    function = te.create_prim_func([x, te.compute((16,), lambda i: x[i] + 1.0, name="y")])
    compile_kernels(function, tvm.target.Target(target)).jit()["main"]
    gc.collect()
    gc.freeze()


def main() -> None:
    parent = Channel(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tuner's to handle
    try:
        _serve(parent)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the tuner is gone, perhaps while this process was still starting


def _serve(parent: Channel) -> None:
    hellos: list[Any] = []
    failure = None
    try:  # while the tuner is still finding out what for
        from hetero_tvm.codegen import pipeline  # noqa: F401
        from hetero_tvm.search.measure import child  # noqa: F401
    except Exception as error:
        failure = error
    while not hellos and not parent.closed:
        hellos = parent.receive()
    if not hellos:
        return
    hello, *rest = hellos
    sys.path[:] = hello["sys_path"]
    try:
        if failure is not None:
            raise failure
        warm_up(hello["target"])
    except Exception as error:
        parent.send({"event": "failed", "text": f"{type(error).__name__}: {error}"})
        return
    server = Server(parent, hello)
    for message in rest:
        server._accept(message)
    parent.send({"event": "ready", "pid": os.getpid()})
    try:
        server.serve()
    finally:
        server.kill_children()


if __name__ == "__main__":
    main()
    os._exit(0)
