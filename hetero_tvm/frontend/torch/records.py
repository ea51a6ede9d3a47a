"""Weights of a ``.pt2`` file, read one by one into mapped files: PyTorch reads them all into memory."""

from __future__ import annotations

import contextlib
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from hetero_tvm.frontend.torch.untrusted import UNREADABLE
from hetero_tvm.host import mapped

_LOCK = threading.Lock()


@contextlib.contextmanager
def mapped_records(torch: ModuleType, path: Path) -> Iterator[None]:
    """While open, PyTorch's reader of ``path`` gets large weights as mapped files.

    Versions of PyTorch that read another way stay as they are.
    """
    try:
        package = torch.export.pt2_archive._package
        original = package.PT2ArchiveReader
        plain = {
            i.filename.partition("/")[2] for i in _members(path) if i.compress_type == zipfile.ZIP_STORED
        }
    except (AttributeError, *UNREADABLE):  # an older PyTorch; what is no archive is told by it
        yield
        return

    class Reader(original):
        def __init__(self, source: Any):
            super().__init__(source)
            self.archive_file = _Records(torch, self.archive_file, path, plain)

    with _LOCK:
        package.PT2ArchiveReader = Reader
        try:
            yield
        finally:
            package.PT2ArchiveReader = original


def _members(path: Path) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()


class _Records:
    """PyTorch's reader of an archive, but for the bytes of large members that are not compressed."""

    def __init__(self, torch: ModuleType, reader: Any, path: Path, plain: set[str]):
        self._torch, self._reader, self._path, self._plain = torch, reader, path, plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def get_storage_from_record(self, name: str, count: int, dtype: Any) -> Any:
        """A tensor of ``count`` elements whose storage is the member ``name``."""
        size = self._reader.get_record_size(name)
        if size < mapped.LARGE or name not in self._plain:
            return self._reader.get_storage_from_record(name, count, dtype)
        with self._path.open("rb") as stream:
            array = mapped.mapped_part(stream, self._reader.get_record_offset(name), size)
        return self._torch.from_numpy(array).view(dtype)
