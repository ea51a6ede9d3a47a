"""Reading of StableHLO programs through the MLIR bindings in jaxlib, which run nothing."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError, UsageError, last_line
from hetero_tvm.frontend.onnx.load import no_such_file
from hetero_tvm.frontend.stablehlo import parse
from hetero_tvm.host.install import extra_command

SUFFIXES = (".mlir", ".mlirbc", ".stablehlo")
"""Endings of files that hold a StableHLO program."""


def bindings() -> tuple[Any, Any, Any]:
    """``jaxlib.mlir.ir`` and the dialects ``stablehlo`` and ``chlo``.

    Raises
    ------
    UsageError : jaxlib is not installed.
    """
    try:
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import chlo, func, stablehlo  # noqa: F401 (func registers its operators)
    except ImportError as error:
        raise UsageError(
            f"StableHLO is read with jaxlib, which cannot be imported: {error}", hint=extra_command("jax")
        ) from error
    return ir, stablehlo, chlo


def is_serialized(path: Path) -> bool:
    """Whether a file is what ``jax.export.Exported.serialize`` gives, by its content."""
    try:
        with path.open("rb") as file:
            if file.read(4)[1:] != bytes(3):  # the place of a FlatBuffer's first table
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(parse.BYTECODE) > 4
    except (OSError, ValueError):  # no file, or none that can be read: who reads it says so
        return False


def read_program(source: Any) -> Any:
    """Module of a file, or of a ``jax.export.Exported``.

    The module belongs to an MLIR context that stays open as long as the module lives.

    Raises
    ------
    ModelError : the file cannot be read, or holds no StableHLO program.
    """
    bindings()
    where = "the program"
    if isinstance(source, Path):
        where = str(source)
        try:
            data = parse.program_in(source.read_bytes())
        except FileNotFoundError as error:
            raise no_such_file(source, f"*{source.suffix}") from error
        except OSError as error:
            raise ModelError(f"{source} cannot be read: {error.strerror}") from error
        if data.startswith(parse.BYTECODE) and (end := _trial(source)) < 0:
            raise ModelError(f"{where} is no StableHLO program: its reader ends by signal {-end}")
    else:
        data = source.mlir_module().encode()
    try:
        return parse.parsed(data)
    except Exception as error:  # jaxlib raises kinds of its own
        raise ModelError(f"{where} is no StableHLO program: {last_line(error)}") from error


def written_numbers(text: str, kind: str) -> np.ndarray:
    """Numbers of a constant as MLIR writes it, of a type that NumPy or ml_dtypes knows; flat.

    Of complex numbers the parts follow one another: ``kind`` is theirs.

    MLIR writes few numbers in words, those that have none (NaN) as their bits, and many as bytes.
    """
    import ml_dtypes

    numpy_type = np.dtype(getattr(ml_dtypes, kind, None) or kind)
    inside = text[text.index("<") + 1 : text.rindex(">")]
    inside = inside[: inside.rindex(">")] if "> : tensor" in text else inside
    if inside.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(inside[3:-1]), numpy_type)
    words = re.findall(r"[^\s,()\[\]]+", inside)
    bits = np.dtype(f"uint{8 * numpy_type.itemsize}")
    numbers = [
        np.array(int(word, 16), bits).view(numpy_type)
        if word.startswith("0x")
        else np.array(float(word)).astype(numpy_type)
        for word in words
    ]
    return np.array(numbers, numpy_type)


def _trial(path: Path) -> int:
    """Status of a process that parses a file, below zero where it dies."""
    command = [sys.executable, parse.__file__, str(path.resolve())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, capture_output=True, env=environment).returncode
