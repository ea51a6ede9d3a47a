"""Tutorials run from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

FOLDER = Path(__file__).parents[2] / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_tutorials():
    assert NOTEBOOKS


#: Half a minute each, nearly all of it a whole model on the NPU's simulator.
LONG = {"02_npu"}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.exhaustive if path.stem in LONG else ())
        for path in NOTEBOOKS
    ],
)
def test_notebook_runs(path, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "commit notebooks without outputs"
    client = nbclient.NotebookClient(
        notebook, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    plots = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    assert plots, "a tutorial shows what it measures"
