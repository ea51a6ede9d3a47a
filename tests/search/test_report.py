import io
import json
import sys
import threading
from collections import Counter
from types import SimpleNamespace

from hetero_tvm.host.terminal import console
from hetero_tvm.search import progress as progress_module
from hetero_tvm.search.outcome import TaskReport, TuneReport
from hetero_tvm.search.progress import (
    NotebookProgress,
    Progress,
    describe,
    in_notebook,
    share_done,
    time_left,
)
from hetero_tvm.search.report import print_report, summary, table

EVENT = {
    "event": "trial",
    "task": "matmul",
    "status": "ok",
    "trials": 8,
    "of": 64,
    "elapsed": 1.0,
    "minutes": None,
    "best_seconds": 1e-3,
    "flops": 2e8,
    "peak_gflops": 400.0,
    "total_seconds": 2e-3,
}


def report():
    return TuneReport(
        [
            TaskReport("small", 1, 10**6, 10**5),
            TaskReport(
                "matmul",
                6,
                2 * 10**8,
                10**6,
                2e-3,
                1e-3,
                "record 2026-11-21, verified",
                0.8e-3,
                trials=7,
                failures=Counter(crash=1),
            ),
        ],
        trials=7,
        elapsed=0.5,
        curve=[(0.1, 1, 0.012)],
        peak_gflops=250.0,
        bandwidth_gbs=40.0,
        drift=0.01,
        warnings=["something"],
    )


def test_table():
    text = io.StringIO()
    print_report(report(), text)
    shown = text.getvalue()
    for part in ("matmul", "2.000", "1.000", "80%", "200.0", "100%", " 2026-11-21, verified", "1 crash"):
        assert part in shown, part
    assert shown.index("matmul") < shown.index("small")  # the heaviest first
    assert "1 of 2 kernels that were timed beside their defaults: 12.000 ms -> 6.000 ms (2.00 x)" in shown
    whole = report()
    whole.tasks = whole.tasks[1:]
    assert "all kernels together: 12.000 ms -> 6.000 ms" in "\n".join(summary(whole))
    assert "7 trials in 0.5 s, 14.0 per second" in shown
    assert "warning: something" in shown
    whole.elapsed = 140.0
    assert "7 trials in 140.0 s, 3.0 per minute" in "\n".join(summary(whole))


def test_a_command_among_the_notes_is_one_line_however_narrow_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    command = "  python -m pip install --extra-index-url https://example.org/simple 'xgboost-cpu<4,>=2.1'"
    text, found = io.StringIO(), report()
    found.notes.append(f"without XGBoost candidates are ranked less well; to install it:\n{command}")
    print_report(found, text)
    assert command in text.getvalue().splitlines()


def test_a_long_table_ends_where_kernels_take_little():
    tasks = [TaskReport(f"kernel{at}", 1, 0, 10**4, 1e-3, 1e-3 / (at + 1)) for at in range(50)]
    text = io.StringIO()
    print_report(TuneReport(tasks, trials=1, elapsed=1.0), text)
    shown = text.getvalue()
    assert "kernel39 " in shown and "kernel40 " not in shown
    assert "and 10 more kernels, with less time or none" in shown
    assert " 0.0 " not in shown  # no GFLOP/s of what only moves data


def test_short_kernels_keep_their_digits():
    report = TuneReport([TaskReport("norm", 1, 10**4, 10**4, 1.234e-6, 5.67e-7)], trials=1, elapsed=1.0)
    text = io.StringIO()
    print_report(report, text)
    for part in ("0.00123", "0.000567", "0.00123 ms -> 0.000567 ms"):
        assert part in text.getvalue()


def test_json():
    values = json.loads(json.dumps(report().to_dict()))
    assert values["trials_per_second"] == 14.0 and values["tasks"][1]["gflops"] == 200.0
    assert values["default_seconds"] == 12e-3 and values["failures"] == {"crash": 1}


def test_progress_line():
    assert describe(EVENT, failed=2) == (
        "trials 8/64  matmul  best 200.0 GFLOP/s (50% of peak)  model 2.00 ms  2 failed  7 s left"
    )
    assert time_left({**EVENT, "minutes": 0.05}) == 2.0
    assert time_left({**EVENT, "of": None}) is None


def test_time_left_neither_counts_waiting_as_work_nor_grows_while_nothing_is_told():
    assert time_left({**EVENT, "elapsed": 61.0, "waited": 60.0}) == 7.0
    assert time_left({**EVENT, "silence": 5.0}) == 2.0
    assert time_left({**EVENT, "silence": 9.0}) == 0.0 and "left" not in describe({**EVENT, "silence": 9.0})


def test_plain_lines_when_not_a_terminal():
    text = io.StringIO()
    with Progress(stream=text) as progress:
        progress({**EVENT, "event": "start", "task": None})
        for _ in range(20):
            progress(EVENT)
        progress({**EVENT, "event": "done"})
    assert 2 <= len(text.getvalue().splitlines()) <= 4


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_one_line_that_is_emptied_at_the_end(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    text = Terminal()
    with Progress(stream=text) as progress:
        progress(EVENT)
        progress({**EVENT, "task": None})
    pictures = text.getvalue().split("\r\x1b[K")
    assert "\n" not in text.getvalue() and pictures[0] == "" == pictures[-1]
    assert pictures[1] == "trials 8/64  model 2.00 ms  7 s left" and len(pictures[2]) < 50


def test_a_search_that_waits_says_so(monkeypatch):
    monkeypatch.setattr(progress_module, "_PLAIN_INTERVAL", 0.01)
    spoken, text = threading.Event(), io.StringIO()
    write = text.write
    text.write = lambda words: ("s compiling" in words and spoken.set()) or write(words)
    with Progress(stream=text) as progress:
        progress({**EVENT, "event": "start", "task": None})
        assert spoken.wait(30)


def test_a_search_that_prepares_says_so(monkeypatch):
    monkeypatch.setattr(progress_module, "_PLAIN_INTERVAL", 0.01)
    spoken, text = threading.Event(), io.StringIO()
    write = text.write
    text.write = lambda words: ("preparing the search" in words and spoken.set()) or write(words)
    with Progress(stream=text):
        assert spoken.wait(30)


def test_quiet():
    text = io.StringIO()
    with Progress(quiet=True, stream=text) as progress:
        progress(EVENT)
    assert text.getvalue() == ""


def test_no_number_is_cut_at_80_and_120_columns():
    for width in (80, 120):
        stream = io.StringIO()
        terminal = console(stream)
        terminal.width = width
        terminal.print(table(report(), width))
        shown = stream.getvalue()
        assert max(map(len, shown.splitlines())) <= width and "…" not in shown
        assert "2.000" in shown and "1.000" in shown


class Display:
    """Stand-in for IPython: what a cell would show."""

    def __init__(self):
        self.shown = []

    def display(self, thing, display_id):
        self.shown.append(thing)
        return SimpleNamespace(update=self.shown.append)


def test_a_bar_in_a_notebook(monkeypatch):
    screen = Display()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=screen.display))
    assert not in_notebook()
    bar = NotebookProgress()
    bar({**EVENT, "event": "start"})
    bar({**EVENT, "event": "done"})
    assert repr(screen.shown[-1]).startswith("100%") and "trials 8/64" in repr(screen.shown[-1])
    assert '<progress value="0.1250"' in screen.shown[1]._repr_html_()
    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=shell))
    assert in_notebook()


def test_the_share_that_is_done():
    assert share_done(EVENT) == 0.125
    assert share_done({**EVENT, "of": None, "minutes": 1 / 30}) == 0.5
    assert share_done({**EVENT, "event": "done"}) == 1.0


def test_a_wait_for_idle_cores_names_who_uses_them_and_its_bound():
    event = {**EVENT, "event": "waiting", "trials": 0, "of": 64, "busy": 1.02, "left": 41.6}
    assert describe(event) == "trials 0/64  100% of the cores used by others  waiting, 42 s at most"
    line = describe({**event, "busiest": "python3, pid 4711"})
    assert "used by python3, pid 4711  waiting" in line and len(line) < 80


def test_a_kernel_that_only_moves_data_has_a_time_and_no_rate():
    line = describe({**EVENT, "task": "block_64x8x80", "flops": 0})
    assert "best 1 ms" in line and "GFLOP" not in line
