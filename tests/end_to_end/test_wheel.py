"""The wheel holds the whole package and the shipped records, and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.thorough
def test_the_wheel_is_the_package(tmp_path):
    source = tmp_path / "source"
    unbuilt = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", ".*", "results")
    for name in ("hetero_tvm", "logs", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, ignore=unbuilt)
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "-w", tmp_path, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {str(path.relative_to(source)) for path in (source / "hetero_tvm").rglob("*") if path.is_file()}
    records = {f"hetero_tvm/logs/{path.name}" for path in (source / "logs").iterdir()}
    assert held == wanted | records and records
