"""Folder of compiled graphs: found by what they were made from, shared by processes, bounded in bytes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from hetero_tvm.errors import BuildError, LibraryError
from hetero_tvm.host.scratch import scratch_folder

_LIBRARY = "model.so"
_STRIPES = 2
"""Hexadecimal digits of a key that choose its lock: 256 files, which are never removed."""

Opened = TypeVar("Opened")


class GraphCache:
    """Compiled libraries by key.

    Parameters
    ----------
    folder : made where it is missing.
    most_bytes : when an entry is added, those that were used longest ago are removed until the rest fits.
    """

    def __init__(self, folder: Path, most_bytes: int):
        self.folder = folder
        self.most_bytes = most_bytes

    def get(
        self, key: str, make: Callable[[Path], object], open_library: Callable[[Path], Opened]
    ) -> tuple[Opened, bool]:
        """Open the library of ``key``, which is made where there is none; and whether it was there.

        Parameters
        ----------
        key : hexadecimal digits.
        make : writes the library to a path.
        open_library : loads it; a damaged file (:class:`LibraryError`) is made again.

        Of several processes that ask at once, one makes it and the others wait.

        Raises
        ------
        BuildError : the folder cannot be written.
        """
        with self._locked(key):
            if (found := self._open(key, open_library)) is not None:
                return found, True
            try:
                with scratch_folder(self.folder, ".making-") as scratch:
                    make(scratch / _LIBRARY)
                    self._drop(key)
                    fresh = scratch / "entry"
                    fresh.mkdir()
                    for file in scratch.iterdir():
                        if file.is_file():
                            os.replace(file, fresh / file.name)
                    os.replace(fresh, self._entry(key))
            except OSError as error:
                raise self._unwritable(error) from error
            opened = open_library(self._entry(key) / _LIBRARY)
        self._trim(key)
        return opened, False

    def _open(self, key: str, open_library: Callable[[Path], Opened]) -> Opened | None:
        entry = self._entry(key)
        if not entry.is_dir():
            return None
        try:
            opened = open_library(entry / _LIBRARY)
        except LibraryError:  # damaged, or removed by another process meanwhile
            return None
        with contextlib.suppress(OSError):
            os.utime(entry)  # the time of its last use
        return opened

    def _entry(self, key: str) -> Path:
        return self.folder / key

    def _drop(self, key: str) -> None:
        shutil.rmtree(self._entry(key), ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(
                self.folder / f".lock-{key[:_STRIPES]}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            with contextlib.suppress(OSError):  # a file system without locks: the same is made twice
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _unwritable(self, error: OSError) -> BuildError:
        return BuildError(
            f"cannot write to the folder of compiled graphs {self.folder}: {error.strerror}",
            hint="name another: options={'cache': '/path/to/folder'}, or export HETERO_TVM_CACHE=...",
        )

    def _trim(self, newest: str) -> None:
        """Remove the entries that were used longest ago, but for ``newest``."""
        entries = []
        for path in self.folder.iterdir():
            if path.name.startswith("."):
                continue
            with contextlib.suppress(OSError):  # removed by another process
                size = sum(file.stat().st_size for file in path.iterdir())
                entries.append((path.stat().st_mtime_ns, size, path.name))
        total = sum(size for _, size, _ in entries)
        for _, size, name in sorted(entries):
            if total <= self.most_bytes:
                break
            if name != newest:
                self._drop(name)  # whoever has it loaded keeps it: the loader has mapped the file
                total -= size
