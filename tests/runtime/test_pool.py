"""The thread pool as its users see it: forks, signals, many callers, unloading, limits, programs in C++."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hetero_tvm import host
from hetero_tvm.host import native
from hetero_tvm.host.cores import cpu_quota
from tests.runtime.test_callers import START
from tests.selection import thorough

SOURCES = Path(importlib.util.find_spec("hetero_tvm.runtime").origin).parent / "cpp/pool"
FFI = Path(importlib.util.find_spec("tvm_ffi").origin).parent / "include"
two_cores = pytest.mark.skipif(len(host.available_cores()) < 2, reason="needs two cores")
STRESS = Path(__file__).with_name("pool_stress.cc")


def build_stress(folder: Path, *flags: str) -> Path:
    program = folder / "stress"
    files = [SOURCES / f"{name}.cc" for name in ("pool", "cell", "limits")]
    command = [*native.find_compiler(), "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    command += [*flags, f"-I{SOURCES}", f"-I{FFI}", str(STRESS), *map(str, files), "-o", str(program), "-ldl"]
    subprocess.run(command, check=True)
    return program


def run_stress(program: Path, case: str, **env: str) -> str:
    command = [str(program), case]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def stress(tmp_path_factory):
    return build_stress(tmp_path_factory.mktemp("stress"))


CASES = ("tasks", "callers", "nested", "errors", "fork", "signal", "end", "pinned", "one")


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_every_task_runs_once_whatever_happens(stress, case):
    assert "ok" in run_stress(stress, case, HETERO_TVM_THREADS="3")


@pytest.mark.exhaustive
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sanitizers_find_nothing(tmp_path, sanitizer):
    program = build_stress(tmp_path, f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    for case in CASES:
        if sanitizer == "thread" and case in ("fork", "signal"):
            continue  # the tool neither follows threads into a child nor interrupts what computes
        run_stress(
            program,
            case,
            HETERO_TVM_THREADS="4",
            TSAN_OPTIONS="halt_on_error=1",
            ASAN_OPTIONS="detect_leaks=0",
        )


# --- limits: the same answers in C++ and in Python --------------------
GROUPS = {
    "unified": ("0::/user/app\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
    "legacy": (
        "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n",
        "33 32 0:29 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
    ),
    "root": ("0::/\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
    "broken": ("nonsense\n", "nonsense\n"),
}
FILES = {
    "unified": {"user/cpu.max": "150000 100000", "user/app/cpu.max": "max 100000"},
    "legacy": {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"},
    "root": {"cpu.max": "max 100000"},
    "broken": {},
}


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "limit"), [("unified", 1.5), ("legacy", 2.5), ("root", 0), ("broken", 0)])
def test_quotas_are_read_as_python_reads_them(stress, tmp_path, kind, limit):
    cgroup, mounts = GROUPS[kind]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    (tmp_path / "proc/self/mountinfo").write_text(mounts)
    for name, text in FILES[kind].items():
        path = tmp_path / "root/sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    command = [stress, "quota", tmp_path / "proc", tmp_path / "root"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[0]) == limit
    if kind != "broken":
        assert (cpu_quota(tmp_path / "proc", tmp_path / "root") or 0) == limit


@pytest.mark.parametrize(
    ("variables", "limit", "pinned"),
    [
        ({"HETERO_TVM_THREADS": "3"}, 3, 0),
        ({"HETERO_TVM_THREADS": "nonsense"}, None, 0),
        ({"TVM_NUM_THREADS": "7", "OMP_NUM_THREADS": "7"}, None, 0),
        ({"HETERO_TVM_PIN": "0,"}, 1, 1),
        ({"HETERO_TVM_PIN": "5-7,9"}, 4, 4),
        ({"HETERO_TVM_PIN": "5-7", "HETERO_TVM_THREADS": "2"}, 2, 3),
        ({"HETERO_TVM_PIN": "x"}, None, 0),
    ],
)
def test_limits_of_a_program_without_python(stress, variables, limit, pinned):
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("HETERO_TVM", "TVM_", "OMP_"))}
    done = subprocess.run(
        [stress, "limits"], capture_output=True, text=True, check=True, env=keep | variables
    )
    limit = len(host.available_cores()) if limit is None else limit
    assert done.stdout.split() == [str(limit), str(pinned)]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("HETERO_TVM_THREADS", "-3", "is not a whole number of at least 1"),
        ("HETERO_TVM_THREADS", "abc", "is not a whole number of at least 1"),
        ("HETERO_TVM_THREADS", "0", "is not a whole number of at least 1"),
        ("HETERO_TVM_THREADS", "2 3", "is not a whole number of at least 1"),
        ("HETERO_TVM_THREADS", "99999999999999999999", "is not a whole number of at least 1"),
        ("HETERO_TVM_THREADS", "100000", "is above the limit of 256"),
        ("HETERO_TVM_PIN", "x", "is not 0, 1, or a list of core ids"),
        ("HETERO_TVM_THREADS", "", "fine"),
        ("HETERO_TVM_THREADS", " 2 ", "fine"),
        ("HETERO_TVM_PIN", "0,", "fine"),
    ],
)
def test_nonsense_in_the_environment_is_an_error_of_the_launch(stress, variable, value, said):
    """Unless the caller says how many threads it wants."""
    done = subprocess.run(
        [stress, "environment"], capture_output=True, text=True, check=True, env={variable: value}
    )
    expected = "fine" if said == "fine" else f"{variable}='{value}' {said}"
    assert [line.split(" such as")[0] for line in done.stdout.splitlines()] == [expected, "fine"]


# --- libraries in a process --------------------
@two_cores
def test_libraries_of_several_files_share_one_pool(run_python, mlp, wide, heavy):
    script = """
nets = [load(path, threads=2) for path in sys.argv[1:]]
inputs = [np.ones(net.signature.inputs[0].shape, "float32") for net in nets]
before = len(os.listdir("/proc/self/task"))
for net, x in zip(nets, inputs): net(x)
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert run_python(START + script, mlp, wide, heavy).split() == ["1"]


@two_cores
@pytest.mark.parametrize("variables", [{}, *thorough([{"TVM_NUM_THREADS": "9", "TVM_BIND_THREADS": "1"}])])
def test_200_callers_add_no_thread_and_all_get_their_turn(run_python, wide, variables):
    script = """
net = load(sys.argv[1], threads=2)
x = np.arange(64 * 256, dtype="float32").reshape(64, 256)
y = net(x)
before = len(os.listdir("/proc/self/task"))
go, wrong, most = threading.Barrier(201), [], [0]
def calls():
    go.wait()
    for _ in range(20):
        if (net(x) != y).any(): wrong.append(1)
threads = [threading.Thread(target=calls) for _ in range(200)]
for thread in threads: thread.start()
go.wait()
while any(thread.is_alive() for thread in threads):
    most[0] = max(most[0], len(os.listdir("/proc/self/task")))
    threads[0].join(0.01)
    threads = [thread for thread in threads if thread.is_alive()] or [threading.current_thread()]
    if threads == [threading.current_thread()]: break
print(most[0] - before <= 200, len(wrong))
"""
    assert run_python(START + script, wide, **variables).split() == ["True", "0"]


@two_cores
@pytest.mark.parametrize("how", ["threads=2", *thorough(["pin=sorted(os.sched_getaffinity(0))[:2]"])])
def test_unloading_ends_the_threads_and_the_next_library_starts_its_own(run_python, mlp, wide, how):
    script = """
import gc
mapped = lambda path: path in open("/proc/self/maps").read()
before = len(os.listdir("/proc/self/task"))
for turn in range(5):
    for path, shape in ((sys.argv[1], (8, 64)), (sys.argv[2], (64, 256))):
        net = load(path, HOW)
        net(np.ones(shape, "float32"))
        assert mapped(path)
        del net; gc.collect()
        assert not mapped(path), path
net = load(sys.argv[2], HOW)
print(net(np.ones((64, 256), "float32"))[0, 0], len(os.listdir("/proc/self/task")) - before)
"""
    assert run_python(START + script.replace("HOW", how), mlp, wide).split() == ["2.0", "1"]


@two_cores
def test_a_process_whose_cores_are_taken_away_goes_on(run_python, wide):
    script = """
net = load(sys.argv[1])
x = np.ones((64, 256), "float32")
net(x)
for tid in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(tid), {min(os.sched_getaffinity(0))})
print(all((net(x) == 2).all() for _ in range(200)))
"""
    assert run_python(START + script, wide).split() == ["True"]


@two_cores
def test_a_forked_server_gives_each_worker_what_it_may_use(run_python, wide):
    script = """
net = load(sys.argv[1])
x = np.ones((64, 256), "float32")
net(x)
def work():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    good = all((net(x) == 2).all() for _ in range(50))
    return 0 if good and len(os.listdir("/proc/self/task")) == 1 else 9
print([child(work) for _ in range(4)])
"""
    assert run_python(START + script, wide).strip() == "[0, 0, 0, 0]"


def test_a_library_without_a_pool_is_refused(run_python, mlp, tmp_path):
    script = """
import sys
from hetero_tvm.errors import LibraryError
from hetero_tvm.runtime import load
try:
    load(sys.argv[1], verify=False)
except LibraryError as error:
    print(error)
"""
    old = tmp_path / "old.so"
    old.write_bytes(mlp.read_bytes().replace(b"__tvm_ffi_hetero_tvm_call", b"__tvm_ffi_hetero_tvm_cold"))
    # The hash table of the file still knows the old name, so that neither is found.
    output = run_python(script, old)
    assert "older hetero_tvm" in output and "export the model again" in output


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_the_loader_leaves_the_launch_alone(mlp):
    """The variable that TVM's loader would fill in is not there for it to find."""
    library = ctypes.CDLL(str(mlp))
    assert not hasattr(library, "__TVMBackendParallelLaunch")
    assert hasattr(library, "hetero_tvm_parallel_launch")
