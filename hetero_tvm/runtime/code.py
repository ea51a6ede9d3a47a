"""Code and constants of exported libraries: one copy of each file per process, freed with its last user.

TVM deserializes the constants of a library each time that it is loaded; libraries loaded from the same file
therefore share what the first of them has loaded, and each has a virtual machine of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero_tvm.errors import LibraryError
from hetero_tvm.runtime.forking import CallGuard
from hetero_tvm.runtime.huge_pages import on_huge_pages
from hetero_tvm.runtime.quiet import quiet_fd2
from hetero_tvm.runtime.tvm_runtime import TVMRuntime

# Constants of some MB come from the heap, where glibc would keep what they leave.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

Identity = tuple[int, int, int, int]
"""Device, inode, time of change in ns, and size of a file."""


@dataclass(eq=False)
class OpenCode:
    """A loaded library, until it is freed.

    Parameters
    ----------
    module : TVM's module; it holds the constants.
    path : the name by which the dynamic loader knows the file.
    file : descriptor that ``path`` goes through, open as long as this object lives; None where it needs none.
    """

    module: Any
    path: Path
    file: int | None

    def __post_init__(self) -> None:
        self._release = None
        """Ends the threads of the pool that run this library's code."""
        try:
            self.call = self.module.get_function("hetero_tvm_call", True)
            self._release = self.module.get_function("hetero_tvm_release", True)
        except AttributeError:
            raise LibraryError(
                f"{self.path} was exported by an older hetero_tvm: it brings no thread pool",
                hint="export the model again",
            ) from None

    def __del__(self) -> None:
        if self._release is not None:
            self._release()
        self.call = self._release = None
        self.module = None  # the loader forgets the name before another file can get it
        if self.file is not None:
            os.close(self.file)
        if _trim is not None:
            _trim(0)


@dataclass(eq=False)
class Code:
    """Loaded library as its users share it.

    Apart from the library itself: Python still hands out an object from weak references while its finalizer
    runs, which would be a library without code for whoever loads the file at that moment.
    """

    open: OpenCode


loading = CallGuard("a load")
"""Held while a library is loaded."""
_shared: weakref.WeakValueDictionary[Identity, Code] = weakref.WeakValueDictionary()
_kept: list[Code] = []
_names: dict[Path, Identity] = {}


def load_code(runtime: TVMRuntime, path: Path, free: bool) -> Code:
    """The code of a library, loaded unless it is already; see :data:`loading`.

    Parameters
    ----------
    free : whether the file is unloaded when its last user is gone.  Code that registers itself somewhere
        (a driver, say) must stay.

    Raises
    ------
    LibraryError : the loader refuses the file.
    """
    with loading:
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                code = _shared.get(identity)
                if code is None:
                    code = _shared[identity] = _load(runtime, path, file.fileno(), identity, free)
                return code
        except LibraryError:
            raise
        except Exception as error:
            raise LibraryError(f"cannot load {path}: {error}", hint="export the model again") from error


def _load(runtime: TVMRuntime, path: Path, file: int, identity: Identity, free: bool) -> Code:
    kept = None
    if _names.setdefault(path, identity) != identity:
        # The dynamic loader takes a path that it knows for the library that it knows, whatever the file is
        # by now.  A file that has replaced another is therefore loaded through a descriptor: a new name.
        kept = _copied(path, file) if _written_over(identity) else os.dup(file)
    elif not _has_utf8_name(path):
        kept = os.dup(file)
    name = path if kept is None else Path(f"/proc/self/fd/{kept}")
    try:
        with quiet_fd2():
            # Not by `load_module`, which tells the format from the suffix that a descriptor lacks.
            open_library = runtime.function("ffi.Module.load_from_file.so")
            module = on_huge_pages(lambda: open_library(str(name), "so"))
    except BaseException:
        if kept is not None:
            os.close(kept)
        raise
    code = Code(OpenCode(module, name, kept))
    if not free:
        _kept.append(code)
        runtime.function("ffi.ModuleGlobalsAdd")(module)
    return code


def _has_utf8_name(path: Path) -> bool:
    """Whether TVM, whose strings are UTF-8, can be given this path: bytes of another encoding stand in it as
    surrogates, and so does what Python read as ASCII (``LC_ALL=C`` without UTF-8 mode)."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _written_over(identity: Identity) -> bool:
    """Whether this very inode is loaded with other content: the loader knows inodes too."""
    return any(loaded[:2] == identity[:2] for loaded in list(_shared))


def _copied(path: Path, file: int) -> int:
    """Descriptor of a copy in memory, which needs no folder to write to."""
    try:
        with _closed_on_error(os.memfd_create(path.name[:200], os.MFD_CLOEXEC)) as copy:
            with open(file, "rb", closefd=False) as source, open(copy, "wb", closefd=False) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            return copy
    except OSError as error:
        raise LibraryError(
            f"{path} was written over after it had been loaded, and a copy in memory is refused ({error})",
            hint="replace the file (mv new.so model.so) instead of writing over it, or start a new process",
        ) from error


@contextlib.contextmanager
def _closed_on_error(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    except BaseException:
        os.close(descriptor)
        raise
