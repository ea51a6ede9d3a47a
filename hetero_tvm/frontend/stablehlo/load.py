"""Reading of StableHLO programs through the MLIR bindings in jaxlib, which run nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hetero_tvm.errors import ModelError, UsageError, last_line
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


def read_program(source: Any) -> Any:
    """Module of a file, or of a ``jax.export.Exported``.

    The module belongs to an MLIR context that stays open as long as the module lives.

    Raises
    ------
    ModelError : the file cannot be read, or holds no StableHLO program.
    """
    ir, stablehlo, chlo = bindings()
    where = "the program"
    if isinstance(source, Path):
        where = str(source)
        try:
            data = source.read_bytes()
        except OSError as error:
            raise ModelError(f"{source} cannot be read: {error.strerror}") from error
    else:
        data = source.mlir_module().encode()
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext  # the one door to `func` and its like
    from jaxlib.mlir.dialects import sdy

    context, others = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(others)
    context.append_dialect_registry(others)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    sdy.register_dialect(context)  # shardings, which custom calls carry
    chlo.register_dialect(context)
    with context:
        try:
            if data[:4] == b"ML\xefR":
                artifact = b"StableHLO_v" in data[:64]  # for all versions; else plain bytecode
                module = (
                    stablehlo.deserialize_portable_artifact(context, data)
                    if artifact
                    else ir.Module.parse(data)
                )
            else:
                module = ir.Module.parse(data.decode())
        except Exception as error:  # jaxlib raises kinds of its own
            raise ModelError(f"{where} is no StableHLO program: {last_line(error)}") from error
    return module
