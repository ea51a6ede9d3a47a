"""Pictures of the arena."""

import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.memory import Buffer, Problem
from hetero_tvm.memory import plot as plot_module
from hetero_tvm.memory.plot import plot
from tests.selection import thorough

PROBLEM = Problem([Buffer("a", 0, 3, 4096), Buffer("b", 1, 5, 2048), Buffer("none", 2, 2, 9)])
OFFSETS = {"a": 0, "b": 4096, "none": 0}


@pytest.mark.thorough
def test_a_picture_names_peak_capacity_and_unit(tmp_path):
    path = plot(PROBLEM, OFFSETS, tmp_path / "arena.svg", title="two buffers", capacity=8192)
    text = path.read_text()
    for words in ("peak 6,144 bytes", "capacity 8,192 bytes", "offset (KiB)", "two buffers"):
        assert f"<!-- {words} -->" in text


@pytest.mark.parametrize("suffix", [".png", ".pdf", *thorough([".PNG"])])
def test_other_formats(tmp_path, suffix):
    assert plot(PROBLEM, OFFSETS, tmp_path / f"arena{suffix}").stat().st_size > 1000


def test_nothing_to_draw(tmp_path):
    assert "peak 0 bytes" in plot(Problem([]), {}, tmp_path / "arena.svg").read_text()


def test_wrong_paths_are_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot plot to 'arena.gif'"):
        plot(PROBLEM, OFFSETS, tmp_path / "arena.gif")
    with pytest.raises(UsageError, match="cannot write"):
        plot(PROBLEM, OFFSETS, tmp_path / "none" / "arena.png")


def test_drawing_needs_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setattr(plot_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="drawing needs matplotlib") as caught:
        plot(Problem([Buffer("a", 0, 1, 8)]), {"a": 0}, tmp_path / "x.png")
    assert "pip install" in caught.value.hint
