import os
import sys

import pytest

from hetero_tvm import host
from hetero_tvm.errors import UsageError
from hetero_tvm.runtime import threads
from hetero_tvm.runtime.threads import ThreadPinning, choose_pinning
from tests.selection import thorough

two_cores = pytest.mark.skipif(len(host.available_cores()) < 2, reason="needs two cores")


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.delenv(threads.THREADS_VARIABLE, raising=False)
    monkeypatch.delenv(threads.PIN_VARIABLE, raising=False)
    monkeypatch.setattr(host, "available_cores", lambda: (4, 5, 6, 7))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5, 6, 7})
    return monkeypatch


def test_default_is_one_thread_per_core_where_the_scheduler_wants_it(four_cores):
    assert choose_pinning() == ThreadPinning(4)
    assert choose_pinning(pin=True) == ThreadPinning(4, (4, 5, 6, 7))


def test_the_pool_is_told_whether_somebody_asked(four_cores):
    """A number that nobody asked for shrinks where a forked child has fewer cores."""
    assert [choose_pinning(*a).limits().threads for a in ((), (3,), (None, [4, 5]))] == [-4, 3, 2]
    four_cores.setenv(threads.THREADS_VARIABLE, "2")
    assert choose_pinning().limits().threads == 2
    limits = choose_pinning(pin=[6, 5]).limits()
    assert (limits.pinned, limits.core[0], limits.core[1]) == (2, 6, 5)


def test_fewer_threads_are_left_to_the_scheduler_unless_asked(four_cores):
    assert choose_pinning(2) == ThreadPinning(2)
    assert choose_pinning(2, True) == ThreadPinning(2, (4, 5))
    assert choose_pinning(1) == ThreadPinning(1)


def test_a_quota_that_hides_cores_is_no_reason_to_pin(four_cores):
    four_cores.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert choose_pinning() == ThreadPinning(4)


def test_a_list_of_cores_settles_both(four_cores):
    assert choose_pinning(pin=[6, 5]) == ThreadPinning(2, (6, 5))
    assert choose_pinning(1, [6, 5]) == ThreadPinning(1, (6,))


@pytest.mark.parametrize(
    ("threads_text", "pin_text", "expected"),
    [
        ("3", "", ThreadPinning(3)),
        ("2", "1", ThreadPinning(2, (4, 5))),
        ("", "0", ThreadPinning(4)),
        ("", "5,7", ThreadPinning(2, (5, 7))),
        ("", "5-7", ThreadPinning(3, (5, 6, 7))),
        ("", "5,", ThreadPinning(1, (5,))),
    ],
)
def test_environment(four_cores, threads_text, pin_text, expected):
    four_cores.setenv(threads.THREADS_VARIABLE, threads_text)
    four_cores.setenv(threads.PIN_VARIABLE, pin_text)
    assert choose_pinning() == expected


def test_arguments_win_over_the_environment(four_cores):
    four_cores.setenv(threads.THREADS_VARIABLE, "3")
    four_cores.setenv(threads.PIN_VARIABLE, "4,5,6")
    assert choose_pinning(2, False) == ThreadPinning(2)


@pytest.mark.parametrize(
    ("count", "pin", "message"),
    [
        (0, None, "at least 1"),
        (True, None, "at least 1"),
        (5, True, "cannot be pinned"),
        (3, [4, 5], "3 threads need 3 cores"),
        (None, [4, 4], "listed twice"),
        (None, [3], "core 3 is not available"),
    ],
)
def test_impossible_requests_are_refused(four_cores, count, pin, message):
    with pytest.raises(UsageError, match=message):
        choose_pinning(count, pin)


def test_more_threads_than_cores_are_an_error_that_says_the_limit(run_python, mlp):
    script = """
import sys
from hetero_tvm.errors import UsageError
from hetero_tvm.runtime import load
try:
    load(sys.argv[1])
except UsageError as error:
    print(error)
"""
    output = run_python(script, mlp, HETERO_TVM_THREADS="100000")
    assert f"the limit on this machine is {os.cpu_count()}" in output
    assert "HETERO_TVM_THREADS=" in output
    count, runs, _ = show(run_python, mlp, '{"threads": 1}', TVM_NUM_THREADS="100000")
    assert (count, runs) == (1, [])


@pytest.mark.parametrize("value", ["-3", "0", "2.0", "+2", "1e3", "99999999999"])
def test_numbers_that_count_no_threads(four_cores, value):
    four_cores.setenv(threads.THREADS_VARIABLE, value)
    with pytest.raises(UsageError, match="is not a whole number of at least 1"):
        choose_pinning()


@pytest.mark.parametrize("name", [threads.THREADS_VARIABLE, threads.PIN_VARIABLE])
def test_nonsense_in_the_environment_is_named(four_cores, name):
    four_cores.setenv(name, "many")
    with pytest.raises(UsageError, match=f"{name}='many'"):
        choose_pinning()


# --- in processes of their own, to count threads -----------------------------------------------

SHOW = """
import json, os, sys, numpy as np
from hetero_tvm.runtime import load
before = set(os.listdir("/proc/self/task"))
mask = sorted(os.sched_getaffinity(0))
net = load(sys.argv[1], **json.loads(sys.argv[2]))
net(np.ones((8, 64), "float32"))
new = sorted(set(os.listdir("/proc/self/task")) - before, key=int)
print(json.dumps([net.threads, [sorted(os.sched_getaffinity(int(t))) for t in new],
                  sorted(os.sched_getaffinity(0)) == mask]))
"""


def show(run_python, library, options="{}", **env):
    import json

    return json.loads(run_python(SHOW, library, options, **env))


@pytest.mark.thorough
@two_cores
def test_workers_sit_on_their_own_cores(run_python, mlp):
    """And the calling thread is free again after the call."""
    first, second, *_ = host.available_cores()
    count, workers, free = show(run_python, mlp, f'{{"pin": [{first}, {second}]}}')
    assert (count, workers, free) == (2, [[second]], True)
    count, workers, free = show(run_python, mlp, "{}", HETERO_TVM_PIN=f"{second},{first}")
    assert (count, workers, free) == (2, [[first]], True)


@two_cores
@pytest.mark.parametrize("options", [*thorough(['{"threads": 2, "pin": false}']), '{"threads": 2}'])
def test_workers_are_not_pinned_unless_asked(run_python, mlp, options):
    cores = sorted(os.sched_getaffinity(0))
    count, workers, _ = show(run_python, mlp, options)
    assert (count, workers) == (2, [cores])


def test_one_thread_starts_no_worker(run_python, mlp):
    count, workers, _ = show(run_python, mlp, '{"threads": 1}')
    assert (count, workers) == (1, [])


@two_cores
def test_any_order_of_sizes_works(run_python, mlp):
    script = """
import sys, numpy as np
from hetero_tvm.runtime import load
x = np.ones((8, 64), "float32")
nets = [load(sys.argv[1], threads=count) for count in (1, 2, 1)]
print(*(net(x).shape == (8, 64) and net.threads for net in nets + nets))
"""
    assert run_python(script, mlp).split() == ["1", "2", "1"] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_fresh_process_imports_neither_compiler_nor_torch(run_python, mlp, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    script = """
import re, sys
from hetero_tvm.runtime import load
import numpy as np
sys.path.insert(0, sys.argv[2])
load(sys.argv[1])(np.ones((8, 64), "float32"))
assert "tvm" not in sys.modules and "torch" not in sys.modules, sorted(sys.modules)
assert "libtvm_compiler" not in open("/proc/self/maps").read()
print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""
    assert int(run_python(script, mlp, tmp_path)) < 100_000  # KiB


@pytest.mark.thorough
def test_it_works_beside_a_full_tvm(run_python, mlp):
    script = """
import sys
from hetero_tvm.host.tvm import tvm
from hetero_tvm.runtime import load
import numpy as np
print(load(sys.argv[1])(np.ones((8, 64), "float32")).shape)
"""
    assert "(8, 64)" in run_python(script, mlp)


@pytest.mark.thorough
@two_cores
def test_beside_a_compiler_any_order_of_sizes_works(run_python, mlp):
    script = """
import sys, numpy as np
from hetero_tvm.host.tvm import tvm
from hetero_tvm.runtime import load
x = np.ones((8, 64), "float32")
for count in (1, 2, 1):
    print(load(sys.argv[1], threads=count)(x).shape)
"""
    assert run_python(script, mlp).count("(8, 64)") == 3


@pytest.mark.parametrize("pin", ["x", "0,1", 3, [0.5], [None]])
def test_pinning_to_what_is_no_list_of_cores(pin):
    with pytest.raises(UsageError, match="True, False or a list of cores"):
        choose_pinning(pin=pin)
