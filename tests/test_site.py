"""The site of the documents is built without a warning, where mkdocs-material is installed."""

import importlib.util
import subprocess
import sys

import pytest

from tests.import_graph import ROOT


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="needs pip install '.[docs]'")
def test_site_is_built(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "--site-dir", str(tmp_path)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "api" / "index.html").is_file()
    assert "stylesheets/tables.css" in (tmp_path / "commands" / "index.html").read_text()
