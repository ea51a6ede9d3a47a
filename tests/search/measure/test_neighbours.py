import os

from hetero_tvm.search.measure.neighbours import Neighbours, processor_seconds


def process(folder, pid, name, ticks):
    (folder / str(pid)).mkdir(exist_ok=True)
    fields = ["R", *["0"] * 10, str(ticks), "1", *["0"] * 20]
    (folder / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")


def test_the_process_that_used_most_since_the_last_look(tmp_path):
    (tmp_path / "meminfo").write_text("")
    (tmp_path / "7").mkdir()  # ended meanwhile
    process(tmp_path, os.getpid(), "pytest", 0)
    process(tmp_path, 11, "old ) timer (", 9000)
    process(tmp_path, 12, "spin", 10)
    neighbours = Neighbours(tmp_path)
    assert neighbours.busiest() == ""  # nothing to compare with
    process(tmp_path, os.getpid(), "pytest", 500)
    process(tmp_path, 12, "spin", 30)
    assert neighbours.busiest() == "spin, pid 12"
    process(tmp_path, 11, "old ) timer (", 9001)
    assert neighbours.busiest() == "old ) timer (, pid 11"
    assert neighbours.busiest() == ""  # nobody did anything


def test_the_processes_of_this_machine():
    neighbours = Neighbours()
    neighbours.busiest()
    assert str(os.getpid()) not in neighbours.busiest().split()


def test_processor_time_of_a_process_and_its_children(tmp_path):
    tick = os.sysconf("SC_CLK_TCK")
    (tmp_path / "12").mkdir()
    fields = " ".join(["0"] * 10 + [str(n * tick) for n in (1, 2, 3, 4)] + ["9"] * 5)
    (tmp_path / "12" / "stat").write_text(f"12 (a ) b) S {fields}")
    assert processor_seconds(12, tmp_path) == 10
    assert processor_seconds(13, tmp_path) is None
    assert processor_seconds(os.getpid()) > 0
