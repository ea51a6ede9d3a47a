"""Tutorials run from top to bottom, and what they show is what a run printed."""

from __future__ import annotations

import ast
import base64
import importlib
import io
import re

import numpy as np
import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

from tests.import_graph import PACKAGE
from tests.tutorials.notebooks import NOTEBOOKS, code, execute, read, with_parameters, with_small_pictures

#: Smaller sizes for tests, for names that a notebook's cell of parameters assigns.
SMALLER: dict[str, dict] = {
    "01_quick_start": {"name": "minilm-l6-tiny", "trials": 4},
    "02_npu": {"model_name": "zoo:minilm-l6-tiny", "trials": 4},
    "04_pytorch_ahead_of_onnxruntime": {"width": 64, "layers": 1, "trials": 2, "rounds": 1},
    "05_why_did_it_not_fuse": {"width": 64, "heads": 2, "length": 16, "layers": 1},
    "06_write_a_design_space": {"n": 96, "trials": 4},
    "07_the_search": {"m": 16, "k": 32, "n": 64, "sample": 16, "trials": 4},
    "08_deploy": {"model_name": "zoo:minilm-l6-tiny", "sequence": 16, "workers": 2, "requests": 16},
    "09_your_own_target": {"model_name": "zoo:minilm-l6-tiny", "sequence": 8, "widths": (4, 8)},
}
#: Bytes of a picture in a notebook.
MOST_PICTURE = 150_000


def every(argvalues):
    return pytest.mark.parametrize("path", argvalues, ids=lambda path: path.stem)


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def texts(notebook):
    """All that outputs say, as text."""
    for output in outputs(notebook):
        yield from (output.get("text", ""), *map(str, output.get("traceback", ())))
        yield from (str(data) for kind, data in output.get("data", {}).items() if "image" not in kind)


def test_there_are_tutorials():
    numbers = [path.name[:2] for path in NOTEBOOKS]
    assert numbers and len(set(numbers)) == len(numbers)
    assert set(SMALLER) <= {path.stem for path in NOTEBOOKS}


@every(NOTEBOOKS)
def test_notebook_is_valid_and_compiles(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")
    assert "pip install" in notebook.cells[0].source + notebook.cells[1].source, "it says what to install"
    for text in code(notebook):
        ast.parse(text)


def named(tree):
    """Names of ours that a cell imports, or takes from the package: (module, name) or (module, None)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == PACKAGE
        ):
            yield PACKAGE, node.attr


@every(NOTEBOOKS)
def test_names_of_ours_exist(path):
    for text in code(read(path)):
        for module, name in named(ast.parse(text)):
            if module.split(".")[0] == PACKAGE:
                found = importlib.import_module(module)
                if name is not None and not hasattr(found, name):
                    importlib.import_module(f"{module}.{name}")


@every(NOTEBOOKS)
def test_saved_outputs_are_those_of_a_whole_run(path):
    """Cells ran in order, none failed, and nothing tells where."""
    notebook = read(path)
    ran = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert ran == list(range(1, len(ran) + 1)), "python -m tests.tutorials.notebooks saves them"
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    for text in texts(notebook):
        assert "Traceback (most recent" not in text
        found = re.search(r"(?<![\w.])/(tmp|home|root|work|usr|opt|var|mnt)/[^\s'\"]*", text)
        assert not found, f"a path of the machine that it ran on: {found[0]}"
    pictures = [o.data["image/png"] for o in outputs(notebook) if "image/png" in o.get("data", {})]
    assert pictures, "a tutorial shows what it measures"
    assert all(len(picture) * 3 // 4 <= MOST_PICTURE for picture in pictures)


@pytest.mark.thorough
@every(NOTEBOOKS)
def test_notebook_runs(path, tmp_path):
    notebook = execute(with_parameters(read(path), SMALLER.get(path.stem, {})), tmp_path)
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))


def test_unknown_parameters_are_refused():
    with pytest.raises(ValueError, match="assigns trails"):
        with_parameters(read(NOTEBOOKS[0]), {"trails": 1})


def test_pictures_are_saved_with_few_colours():
    """A picture that is saved anew must not grow beyond what a notebook may hold."""
    pictures = pytest.importorskip("PIL.Image")
    rows = np.arange(200 * 300 * 4, dtype="uint32").reshape(200, 300, 4) % 251
    large = io.BytesIO()
    pictures.fromarray(rows.astype("uint8"), "RGBA").save(large, "png")
    data = {"image/png": base64.b64encode(large.getvalue()).decode(), "text/plain": "<Figure>"}
    output = nbformat.v4.new_output("display_data", data)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("plot()", outputs=[output])])
    with_small_pictures(notebook)
    saved = base64.b64decode(output.data["image/png"])
    picture = pictures.open(io.BytesIO(saved))
    assert picture.mode == "P" and picture.size == (300, 200) and len(saved) < len(large.getvalue()) / 2
    assert output.data["text/plain"] == "<Figure>"
