"""Many calling threads, forks and signals, seen from outside: numbers of threads, exit codes of children."""

import sys

import pytest

from tests.selection import thorough

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

START = """
import os, signal, sys, threading, time
import numpy as np
from hetero_tvm.errors import LibraryError
from hetero_tvm.runtime import load
x = np.ones((8, 64), "float32")
def in_thread(work):
    thread = threading.Thread(target=work); thread.start(); thread.join()
def child(work):
    '''Exit code of a forked child that calls ``work``; -1 when it hangs.'''
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(work() or 0)
        except LibraryError as error:
            print(error, flush=True)
            os._exit(7)
        except BaseException:
            os._exit(8)
    for _ in range(600):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
    return -1
"""


@pytest.mark.parametrize("threads", [*thorough([1]), 2])
def test_threads_that_have_called_leave_nothing_behind(run_python, mlp, threads):
    script = """
net = load(sys.argv[1], threads=int(sys.argv[2]), pin=False)
net(x)
before = len(os.listdir("/proc/self/task"))
for _ in range(100):
    in_thread(lambda: net(x))
time.sleep(0.3)  # a thread that has been joined is listed for a moment
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert run_python(START + script, mlp, threads).split() == ["0"]


def test_a_library_of_one_thread_has_no_thread(run_python, mlp):
    script = """
before = len(os.listdir("/proc/self/task"))
for _ in range(20):
    load(sys.argv[1], threads=1)(x)
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert run_python(START + script, mlp).split() == ["0"]


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_child_calls_what_its_parent_has_loaded(run_python, mlp, called, threads):
    script = """
net = load(sys.argv[1], threads=int(sys.argv[2]), pin=False)
if sys.argv[3] == "True":
    net(x)
def work():
    y = net(x)
    return 0 if y.shape == (8, 64) and (load(sys.argv[1])(x) == y).all() else 9
print(*(child(work) for _ in range(3)), child(lambda: child(work)), net(x).shape)
"""
    assert run_python(START + script, mlp, threads, called).strip() == "0 0 0 0 (8, 64)"


def test_a_fork_waits_for_calls_in_other_threads(run_python, mlp):
    script = """
net = load(sys.argv[1], threads=2, pin=False)
stop = False
def calls():
    while not stop:
        net(x)
threads = [threading.Thread(target=calls) for _ in range(3)]
for thread in threads: thread.start()
print(*(child(lambda: net(x) is None) for _ in range(5)))
stop = True
"""
    assert run_python(START + script, mlp).split() == ["0"] * 5


@pytest.mark.thorough
def test_a_child_of_a_long_call_is_told_to_load_again(run_python, mlp):
    script = """
from hetero_tvm.runtime import forking
forking.PATIENCE_S = 0.2
net = load(sys.argv[1], threads=2, pin=False)
inside, go = threading.Event(), threading.Event()
main = net._main
def slow(*tensors):
    inside.set(); go.wait(); return main(*tensors)
net._main = slow
thread = threading.Thread(target=lambda: net(x)); thread.start()
inside.wait()
print(child(lambda: net(x) is None), child(lambda: load(sys.argv[1])(x) is None))
go.set(); thread.join()
net._main = main
print(net(x).shape)
"""
    output = run_python(START + script, mlp)
    assert "in the middle of a call of mlp" in output and "load the library after forking" in output
    assert "7 0" in output and "(8, 64)" in output


def test_a_signal_handler_that_calls_gets_an_error(run_python, mlp):
    script = """
net = load(sys.argv[1], threads=2, pin=False)
main, caught = net._main, []
def slow(*tensors):
    time.sleep(0.5); return main(*tensors)
def handler(*_):
    try:
        net(x)
    except LibraryError as error:
        caught.append(str(error))
net._main = slow
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
print(net(x).shape, caught)
"""
    output = run_python(START + script, mlp)
    assert output.startswith("(8, 64)") and "signal handler" in output


def test_what_a_signal_handler_raises_is_not_the_librarys_error(run_python, mlp):
    """A time limit of the caller's passes as it is; it was a LibraryError."""
    script = """
net = load(sys.argv[1], threads=2, pin=False)
net(x)
def handler(*_):
    raise TimeoutError("mine")
signal.signal(signal.SIGALRM, handler)
kept = 0
for turn in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + turn % 7 * 1e-5)
        while True:
            net(x)
    except TimeoutError as error:
        kept += str(error) == "mine"
print(kept)
"""
    assert run_python(START + script, mlp).split() == ["200"]


def test_an_interrupted_call_is_whole_and_so_is_the_next(run_python, mlp):
    script = """
net = load(sys.argv[1], threads=2, pin=False)
y = net(x)
signal.signal(signal.SIGALRM, signal.default_int_handler)
interrupted = 0
for turn in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + turn % 7 * 1e-5)
        while True:
            assert (net(x) == y).all()
    except KeyboardInterrupt:
        interrupted += 1
print(interrupted, (net(x) == y).all())
"""
    assert run_python(START + script, mlp).split() == ["200", "True"]
