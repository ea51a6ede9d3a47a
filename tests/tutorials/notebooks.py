"""Tutorials as files: read them, run them, keep what they print.

``python -m tests.tutorials.notebooks 04 05`` runs these from top to bottom and saves their outputs; without
numbers it runs all.  Do so on an idle machine: the times that they print are what readers see.
"""

from __future__ import annotations

import ast
import base64
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from PIL import Image

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> Any:
    """A notebook as nbformat has it."""
    return nbformat.read(path, as_version=4)


def code(notebook: Any) -> list[str]:
    """Plain Python of each cell: lines for the shell are calls."""
    plain = TransformerManager().transform_cell
    return [plain(cell.source) for cell in notebook.cells if cell.cell_type == "code"]


def with_parameters(notebook: Any, values: dict[str, Any]) -> Any:
    """The notebook with other values for names that its cell tagged ``parameters`` assigns.

    Raises
    ------
    ValueError : the cell assigns no such name.
    """
    if not values:
        return notebook
    tagged = [n for n, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ())]
    assigned = {
        node.id
        for n in tagged
        for node in ast.walk(ast.parse(notebook.cells[n].source))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    if unknown := sorted(values.keys() - assigned):
        raise ValueError(f"no cell tagged 'parameters' assigns {', '.join(unknown)}")
    lines = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    notebook.cells.insert(tagged[0] + 1, nbformat.v4.new_code_cell(lines))
    return notebook


def execute(notebook: Any, folder: Path) -> Any:
    """Run all cells in ``folder``; an error in one is raised."""
    given = os.environ.get("PYTHONPATH")
    paths = [str(ROOT), *([given] if given else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    client = nbclient.NotebookClient(
        notebook, kernel_name="python3", timeout=600, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=environment)
    return notebook


def with_small_pictures(notebook: Any) -> Any:
    """The notebook with pictures of 64 colours, a third of the size: plots have few."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "image/png" in (data := output.get("data", {})):
                picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).convert("RGB")
                small = io.BytesIO()
                picture.quantize(64, dither=Image.Dither.NONE).save(small, "png", optimize=True)
                data["image/png"] = base64.b64encode(small.getvalue()).decode()
    return notebook


def main(numbers: list[str]) -> None:
    """Run the tutorials with these numbers, and save their outputs."""
    for path in NOTEBOOKS:
        if numbers and path.name[:2] not in numbers:
            continue
        print(path.name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(read(path), Path(folder))
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # when it ran is no news
        with_small_pictures(notebook)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main(sys.argv[1:])
