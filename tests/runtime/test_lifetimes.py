"""Calls at the edges of a process's life: its end, forks of every kind, event loops, many loads."""

import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")

SLOW = pytest.mark.exhaustive

START = """
import gc, os, sys, threading, time
import numpy as np
from hetero_tvm.errors import LibraryError
from hetero_tvm.runtime import load
x = np.random.default_rng(1).standard_normal((8, 64)).astype("float32")
"""


@pytest.fixture
def run_file(run_python, tmp_path):
    """Run a script as a file, as processes that are spawned need it; returns its stdout."""

    def run(script, *args, **env):
        path = tmp_path / "script.py"
        path.write_text(START + script)
        runner = (
            "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        return run_python(runner, path, *args, **env)

    return run


def test_calls_at_exit_and_while_modules_are_taken_down(run_python, mlp):
    script = """
import atexit
net = load(sys.argv[1], threads=2, pin=False)
y = net(x)
class Last:
    def __init__(self): self.net = net
    def __del__(self):
        try:
            self.net(x)
        except BaseException:
            pass  # an error is as good as numbers here; a crash or a hang is not
last = Last()
last.circle = last
atexit.register(lambda: print("at exit", (net(x) == y).all(), flush=True))
"""
    assert run_python(START + script, mlp).strip() == "at exit True"


@pytest.mark.parametrize("daemon", [pytest.param(False, marks=SLOW), True])
def test_a_thread_calls_while_the_interpreter_ends(run_python, mlp, daemon):
    script = """
net = load(sys.argv[1], threads=2, pin=False)
y = net(x)
wrong = []
def calls():
    for _ in range(10**9 if sys.argv[2] == "True" else 300):
        if not (net(x) == y).all():
            print("wrong", flush=True)
threads = [threading.Thread(target=calls, daemon=sys.argv[2] == "True") for _ in range(3)]
for thread in threads: thread.start()
print("main is through", flush=True)
"""
    assert run_python(START + script, mlp, daemon).strip() == "main is through"


def test_functions_called_at_exit_may_call(run_python, mlp):
    script = """
net = load(sys.argv[1], threads=2, pin=False)
last = lambda name: print(name, net(x).shape, load(sys.argv[1])(x).shape, flush=True)
atexit.register(last, "handler")
def forever():
    while True: net(x)
threading.Thread(target=forever, daemon=True).start()
"""
    script = "import atexit\natexit.register(lambda: last('first'))\n" + START + script
    assert run_python(script, mlp).split("\n")[:2] == [f"{n} (8, 64) (8, 64)" for n in ("handler", "first")]


@pytest.mark.parametrize("place", ["sys", "builtins"])
def test_calls_of_objects_that_end_with_the_interpreter(run_python, mlp, place):
    """Modules have lost their names when ``sys`` is cleared: the call works, or says why it does not."""
    script = f"""
import builtins, os
class Last:
    net = load(sys.argv[1], threads=1, pin=False)
    def __init__(self, value, ours):
        self.value, self.ours, self.say = value, ours, os.write
    def __del__(self, other=Exception):
        try:
            self.net(self.value)
            self.say(1, b"worked")
        except self.ours as error:
            self.say(1, error.message.encode())
        except other as error:
            self.say(1, b"another error")
import hetero_tvm
{place}.last = [Last(value, hetero_tvm.HeteroTVMError) for value in (x, x.tolist())]
"""
    said = run_python(START + script, mlp)
    assert "Python is ending" in said
    assert "another error" not in said


@pytest.mark.parametrize("method", ["fork", *(pytest.param(m, marks=SLOW) for m in ("spawn", "forkserver"))])
def test_pools_of_processes(run_file, mlp, method):
    script = """
import multiprocessing
net = None
def work(seed):
    global net
    if net is None:
        net = load(sys.argv[1], threads=1)
    array = np.random.default_rng(seed).standard_normal((8, 64)).astype("float32")
    return net(array)
if __name__ == "__main__":
    here = [work(seed) for seed in range(6)]
    context = multiprocessing.get_context(sys.argv[2])
    with context.Pool(2) as pool:
        there = pool.map(work, range(6))
    print(all((a == b).all() for a, b in zip(here, there)), (net(x) == work(1)).all())
"""
    assert run_file(script, mlp, method).split() == ["True", "True"]


@SLOW
def test_executors_of_an_event_loop(run_python, mlp):
    script = """
import asyncio, multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
net = load(sys.argv[1], threads=2, pin=False)
def call(seed):
    array = np.random.default_rng(seed).standard_normal((8, 64)).astype("float32")
    return net(array)
async def main(executor):
    loop = asyncio.get_running_loop()
    return await asyncio.gather(*(loop.run_in_executor(executor, call, seed) for seed in range(20)))
truth = [call(seed) for seed in range(20)]
for make in (ThreadPoolExecutor, lambda n: ProcessPoolExecutor(n, multiprocessing.get_context("fork"))):
    with make(3) as executor:
        print(all((a == b).all() for a, b in zip(asyncio.run(main(executor)), truth)))
"""
    assert run_python(START + script, mlp).split() == ["True", "True"]


def test_greenlets(run_python, mlp):
    module = pytest.importorskip("greenlet")
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[2]), str(Path(module.__file__).parents[1])])
    script = """
from greenlet import greenlet
net = load(sys.argv[1], threads=2, pin=False)
y, right = net(x), []
def work():
    for _ in range(5):
        right.append((net(x) == y).all())
        main.switch()
main = greenlet.getcurrent()
tasks = [greenlet(work) for _ in range(4)]
for _ in range(5):
    for task in tasks: task.switch()
print(len(right), all(right))
"""
    assert run_python(START + script, mlp, PYTHONPATH=paths).split() == ["20", "True"]


@pytest.mark.thorough
def test_loads_and_unloads_of_many_files_leave_nothing(run_python, mlp, tmp_path):
    script = """
import shutil
def one(number):
    path = f"{sys.argv[2]}/copy{number}.so"
    shutil.copyfile(sys.argv[1], path)
    assert load(path, threads=1)(x).shape == (8, 64)
    os.unlink(path)
def held():
    gc.collect(); time.sleep(0.3)
    pages = int(open("/proc/self/statm").read().split()[1])
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages * 4096
for n in range(5): one(n)
before = held()
for n in range(30): one(n)
after = held()
print(after[0] - before[0], after[1] - before[1], after[2] - before[2])
"""
    descriptors, threads, size = map(int, run_python(START + script, mlp, tmp_path).split())
    assert descriptors == 0 and threads <= 1
    assert size < 30 * 60_000  # each file maps about 100 kB


@pytest.mark.thorough
def test_loads_while_the_last_user_goes(run_python, mlp):
    """A thread loads the file that another thread is about to free."""
    script = """
errors, expected = [], load(sys.argv[1])(x)

def serve():
    try:
        for _ in range(100):
            assert (load(sys.argv[1])(x) == expected).all()
    except Exception as error:
        errors.append(error)

threads = [threading.Thread(target=serve) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(errors)
"""
    assert run_python(START + script, mlp).strip() == "[]"


@SLOW
def test_forks_in_the_middle_of_calls(run_python, mlp):
    script = """
net = load(sys.argv[1], threads=2, pin=False)
y, stop = net(x), False
def calls():
    while not stop:
        assert (net(x) == y).all()
threads = [threading.Thread(target=calls) for _ in range(4)]
for thread in threads: thread.start()
codes = []
for _ in range(40):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if all((net(x) == y).all() for _ in range(5)) else 9)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
stop = True
print(set(codes))
"""
    assert run_python(START + script, mlp).strip() == "{0}"
