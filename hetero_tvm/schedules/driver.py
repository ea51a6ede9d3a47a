"""Native functions that the kernels of a design space call."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero_tvm.host import native


@dataclass(frozen=True)
class Driver:
    """C or C++ sources with the functions that kernels call by name.

    They are compiled once and cached; exported libraries contain them, and the processes that time
    candidates load them.

    Parameters
    ----------
    sources : absolute paths of C or C++ files.
    functions : names that they export, with C linkage; no other library may have them.
    flags : for the C++ compiler.
    """

    sources: tuple[Path, ...]
    functions: tuple[str, ...]
    flags: tuple[str, ...] = ()

    def attach(self) -> None:
        """Make the functions known to this process.  Raises :class:`NativeBuildError`."""
        library = native.compile_shared(self.sources, flags=self.flags, name=self.functions[0])
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)

    def module(self) -> Any:
        """Object code for the attribute ``external_mods`` of a module that is compiled.

        Raises :class:`NativeBuildError`.
        """
        from hetero_tvm.host.tvm import tvm

        made = native.compile_object(self.sources, flags=self.flags, name=self.functions[0])
        return tvm.runtime.load_static_library(str(made), list(self.functions))
