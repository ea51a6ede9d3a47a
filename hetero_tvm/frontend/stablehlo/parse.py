"""Parsing of StableHLO by jaxlib, and nothing else of ours: run as a program, a trial that may die.

MLIR's reader of bytecode takes some damaged files for its own faults, and aborts the process.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

BYTECODE = b"ML\xefR"
"""First bytes of bytecode, of one version of MLIR or for all of them."""
_SECONDS, _RATE = 5, 10 << 20
"""Processor time of a trial: seconds, and bytes that good files exceed many times in one more.  Some damaged
files are read without end."""


def program_in(data: bytes) -> bytes:
    """Bytecode inside of what ``jax.export.Exported.serialize`` gives, a FlatBuffer of which it is one vector
    (its length, then its bytes); other data as they are."""
    at = data.find(BYTECODE) if data[1:4] == bytes(3) else -1
    return data[at : at + int.from_bytes(data[at - 4 : at], "little")] if at > 4 else data


def parsed(data: bytes) -> Any:
    """Module of a program as text or bytecode; whatever jaxlib raises where it is none.

    The module belongs to an MLIR context that stays open as long as the module lives.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext  # the one door to `func` and its like
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    context, others = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(others)
    context.append_dialect_registry(others)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    sdy.register_dialect(context)  # shardings, which custom calls carry
    chlo.register_dialect(context)
    with context:
        if not data.startswith(BYTECODE):
            return ir.Module.parse(data.decode())
        if b"StableHLO_v" in data[:64]:  # for all versions; else plain bytecode
            return stablehlo.deserialize_portable_artifact(context, data)
        return ir.Module.parse(data)


if __name__ == "__main__":
    program = program_in(Path(sys.argv[1]).read_bytes())
    seconds = _SECONDS + len(program) // _RATE
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    parsed(program)
