"""Large arrays in memory that is backed by a file without a name: the kernel may drop their pages and read
them back.

A model's weights pass through several forms between the user's file and the library (as stored, transposed,
packed).  Each form would stay in memory as long as anything refers to it; in a file only what is being worked
on is resident.  The files have no name, so nothing is left behind, whatever ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

LARGE = 1 << 20
"""Size in bytes from which an array is worth a file."""

_RESERVE = 1 << 30
"""Bytes that stay free on the disk of the files."""
_RESIDENT = 64 << 20
"""Bytes that may be touched before pages are given back to the kernel."""
_PIECE = 16 << 20
_INTERVAL = 0.02
"""Seconds between two times that :func:`given_back` gives pages back: memory is read at some 10 GB/s."""
_SCRATCH = "/var/tmp"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_trim = getattr(_libc, "malloc_trim", None)

_lock = threading.Lock()
_touched = 0


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)  # another thread may have held it


class _Mapping:
    """Shared mapping of a whole file; it lives as long as an array over it."""

    def __init__(self, file: BinaryIO, size: int):
        address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file.fileno(), 0)
        if address == _FAILED:
            raise _NoRoomError(os.strerror(ctypes.get_errno()))
        self.address, self.size = address, size
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }
        with _lock:
            _mappings.add(self)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            _libc.munmap(self.address, self.size)


_mappings: weakref.WeakSet[_Mapping] = weakref.WeakSet()
_notes: weakref.WeakKeyDictionary[_Mapping, Any] = weakref.WeakKeyDictionary()


def mapped(array: np.ndarray) -> np.ndarray:
    """The same values in a file; the array itself where it is small, or there, or no file can be had."""
    if array.nbytes < LARGE or is_mapped(array) or array.dtype.hasobject:
        return array
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with (
        contextlib.suppress(_NoRoomError),
        _file(flat.size) as file,
    ):  # a full disk: the array stays in memory
        for start in range(0, flat.size, _PIECE):
            _write(file, flat[start : start + _PIECE])
        return _over(file, flat.size, array.dtype, array.shape)
    return array


def empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array to be filled, in a file where it is large and there is room.

    Who fills it tells :func:`touched` as it goes, so that little of it is resident at a time.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size >= LARGE and not dtype.hasobject:
        with contextlib.suppress(_NoRoomError), _file(size) as file:
            try:
                # Writing to a mapping without room ends the process.
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise _NoRoomError from error
            return np.asarray(_Mapping(file, size)).view(dtype).reshape(tuple(shape))
    return np.empty(tuple(shape), dtype)


def converted(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The values in another type; of a large array piece by piece, into a file."""
    if array.nbytes < LARGE or not array.flags.c_contiguous:
        return array.astype(dtype)
    result = empty(array.shape, dtype)
    source, target = array.reshape(-1), result.reshape(-1)
    step = _PIECE // max(array.itemsize, result.itemsize)
    for start in range(0, source.size, step):
        target[start : start + step] = source[start : start + step]
        touched(step * (array.itemsize + result.itemsize))
    return result


def mapped_part(source: BinaryIO, offset: int, size: int) -> np.ndarray:
    """Bytes of a file: copied to one of our own, since the user's may be written over while we need it.

    Raises
    ------
    OSError : the file cannot be read.
    EOFError : it is shorter than that.
    """
    with contextlib.suppress(_NoRoomError), _file(size) as file:
        for piece in _pieces(source, offset, size):
            _write(file, piece)
        return _over(file, size, np.dtype(np.uint8), (size,))
    whole, at = np.empty(size, np.uint8), 0
    for piece in _pieces(source, offset, size):
        whole[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return whole


def is_mapped(array: np.ndarray) -> bool:
    """Whether an array is contiguous, aligned for vector loads, and lies in a mapped file."""
    start = array.ctypes.data
    if not array.flags.c_contiguous or start % 64:
        return False
    stop = start + array.nbytes
    return any(m.address <= start and stop <= m.address + m.size for m in _alive())


def note(address: int, about: Any) -> None:
    """Keep something with the mapped array that begins at an address, as long as that lives."""
    for mapping in _alive():
        if mapping.address == address:
            _notes[mapping] = about


def noted(address: int) -> Any:
    """Note of the mapped array that begins at an address; None where there is none."""
    return next((about for mapping, about in list(_notes.items()) if mapping.address == address), None)


def touched(size: int) -> None:
    """Note that ``size`` bytes of mapped arrays are read; from time to time all pages are given back."""
    global _touched
    with _lock:
        _touched += size
        full = _touched > _RESIDENT
        if full:
            _touched = 0
    if full:
        release()


def release() -> None:
    """Give the pages of all mapped arrays back to the kernel, which reads them again when they are needed."""
    for mapping in _alive():
        _libc.madvise(mapping.address, mapping.size, mmap.MADV_DONTNEED)


def settle() -> None:
    """Give back what a step is done with: pages of mapped arrays, and free memory that glibc would keep.

    Arrays of some MB come from the heap, where the holes that they leave stay resident.
    """
    release()
    if _trim is not None:
        _trim(0)


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """Give pages back all the while that a block runs: code that knows nothing of files reads all weights."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(_INTERVAL):
            release()

    thread = threading.Thread(target=work, name="hetero_tvm-mapped", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        settle()


def _alive() -> list[_Mapping]:
    """The mappings that there are; other threads may add some."""
    with _lock:
        return list(_mappings)


class _NoRoomError(Exception):
    """There is no room for a scratch file."""


@contextlib.contextmanager
def _file(size: int) -> Iterator[BinaryIO]:
    """A file without a name, of ``size`` bytes later; :class:`_NoRoomError` when there can be none."""
    chosen = os.environ.get("TMPDIR") or (_SCRATCH if os.access(_SCRATCH, os.W_OK) else tempfile.gettempdir())
    try:
        if shutil.disk_usage(chosen).free < size + _RESERVE:
            raise _NoRoomError(chosen)
        file = tempfile.TemporaryFile(prefix="hetero_tvm-", dir=chosen, buffering=0)
    except OSError as error:
        raise _NoRoomError from error
    with file:
        yield file


def _write(file: BinaryIO, data: Any) -> None:
    """Write all of ``data``: through the file, since touching a mapping without room ends the process."""
    view = memoryview(data)
    try:
        while view:
            view = view[file.write(view) :]
    except OSError as error:
        raise _NoRoomError from error


def _over(file: BinaryIO, size: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(_Mapping(file, size)).view(dtype).reshape(shape)
    touched(size)
    return array


def _pieces(source: BinaryIO, offset: int, size: int) -> Iterator[bytes]:
    end = offset + size
    while offset < end:
        piece = os.pread(source.fileno(), min(_PIECE, end - offset), offset)
        if not piece:
            raise EOFError(f"{end - offset} bytes are missing")
        yield piece
        offset += len(piece)
