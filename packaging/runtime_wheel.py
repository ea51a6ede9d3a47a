"""Builds ``hetero-tvm-runtime``: a wheel that loads and runs libraries, and holds no compiler.

    python packaging/runtime_wheel.py --out dist

It is made from the same tree: the rooms ``errors``, ``version``, ``import_path``, ``host``, ``pages``,
``runtime`` and ``generation`` (texts of language models), with TVM's two runtime libraries (5 MB) inside
instead of the package apache-tvm (300 MB).  It brings the package ``hetero_tvm``, and is installed instead of
hetero-tvm, not beside it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FILES = ("__init__.py", "__init__.pyi", "py.typed", "errors.py", "import_path.py", "version.py")
ROOMS = (*_FILES, "host", "pages", "runtime", "generation")
LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_extra.so")
_COMMAND = '''\
"""Says which wheel has this command: ``python -m`` would say only that there is no such module."""

if __name__ == "__main__":
    import sys

    print(
        "error: hetero-tvm-runtime, which only loads and runs libraries, has no command {command}\\n"
        "What to do: run it where hetero-tvm is installed (pip install . in its sources), and bring the .so",
        file=sys.stderr,
    )
    sys.exit(2)
raise ModuleNotFoundError("{module} is no part of hetero-tvm-runtime", name="{module}")
'''
"""Module in place of a command that the wheel does not have."""
_SETUP = """\
from setuptools import Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):  # no extension module: any Python 3 of this platform
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={{"bdist_wheel": Wheel}},
    name="hetero-tvm-runtime",
    version={version!r},
    description="Load and run libraries that hetero_tvm exported; needs no compiler",
    license="Apache-2.0",
    python_requires=">=3.10",
    install_requires=["apache-tvm-ffi=={ffi}", "ml_dtypes>=0.3", "numpy>=1.25,<3"],
    extras_require={{
        "generate": ["jinja2>=3.1", "tokenizers>=0.20"],
        "grammar": ["llguidance>=1.9,<2", "tokenizers>=0.20"],
    }},
    packages=find_packages(),
    package_data={{"": ["*", "**/*"]}},
    distclass=Binary,
)
"""


def stage(folder: Path) -> None:
    """Copy what the wheel consists of into an empty folder."""
    package = folder / "hetero_tvm"
    package.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "tvm.py")
    for room in ROOMS:
        source = ROOT / "hetero_tvm" / room
        if source.is_dir():
            shutil.copytree(source, package / room, ignore=ignored)
        else:
            shutil.copy2(source, package / room)
    for source in (ROOT / "hetero_tvm").glob("*.py"):
        if source.name not in ROOMS and "\ndef main(" in source.read_text(encoding="utf-8"):
            name = "hetero_tvm" if source.stem == "__main__" else f"hetero_tvm.{source.stem}"
            stub = _COMMAND.format(command=f"python -m {name}", module=f"hetero_tvm.{source.stem}")
            (package / source.name).write_text(stub, encoding="utf-8")
    found = importlib.util.find_spec("tvm")
    if found is None or found.origin is None:
        sys.exit("error: apache-tvm is not installed here: its two runtime libraries go into the wheel")
    libraries = package / "runtime" / "lib"
    libraries.mkdir()
    for name in LIBRARIES:
        shutil.copy2(Path(found.origin).parent / "lib" / name, libraries / name)
    (libraries / "VERSION").write_text(importlib.metadata.version("apache-tvm") + "\n", encoding="utf-8")
    shutil.copy2(ROOT / "LICENSE", folder / "LICENSE")
    version = (
        (ROOT / "hetero_tvm" / "version.py")
        .read_text(encoding="utf-8")
        .partition('VERSION = "')[2]
        .partition('"')[0]
    )
    ffi = importlib.metadata.version("apache-tvm-ffi")
    (folder / "setup.py").write_text(_SETUP.format(version=version, ffi=ffi), encoding="utf-8")


def _has_wheels() -> bool:
    """Whether the setuptools that is installed builds wheels by itself, as it does from 70.1 on.

    A new virtual environment has an older one (Python 3.10 and 3.11) or none.
    """
    try:
        return importlib.util.find_spec("setuptools.command.bdist_wheel") is not None
    except ModuleNotFoundError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), metavar="DIR", help="default: ./dist")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        stage(Path(scratch))
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", scratch, "-w", str(options.out)]
        if _has_wheels():  # pip would fetch setuptools; here it need not, as on machines without a network
            command.append("--no-build-isolation")
        if subprocess.run(command).returncode:
            sys.exit("error: pip could not build the wheel; its own message stands above")
    for path in options.out.glob("hetero_tvm_runtime-*.whl"):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
