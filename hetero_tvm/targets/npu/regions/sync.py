"""Synchronisation: set and wait flags between the queues, from the byte intervals of the accesses.

Intervals may have gaps: columns of a matrix are runs of some bytes every row.  Two accesses with equal
pitch whose runs lie beside one another do not conflict, so a kernel may start on the first columns of a
result whose last ones are still on their way.

Queues run in order and know nothing of each other.  For every instruction this pass looks for
earlier conflicting accesses (the same bytes, at least one of them written) on other queues, and
orders what no earlier flag orders already: a flag is set behind the producer and waited for before
the consumer.  What each queue knows of the others is a vector clock, so a flag is placed only where
the order does not follow from others.

One event per pair of queues is enough: the i-th wait of an event pairs with its i-th set, and both
queues meet their flags in the same order, because a queue never waits for a set that is older than
one it has waited for.

The work is done in C++ (``targets/npu/cpp/npu_sync.cc``), which also fills in addresses: a model has
some hundred thousand instructions, and a search compiles it some hundred times.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_tvm.errors import BuildError
from hetero_tvm.host import native
from hetero_tvm.machines.npu.spec import SCRATCHPADS
from hetero_tvm.targets.npu.isa import instructions as isa
from hetero_tvm.targets.npu.regions.sites import Instr

QUEUES = len(isa.QUEUES)
ONLY_READ = -1
"""Key of bytes that need no flags."""

_INTERVAL = [("low", "<i8"), ("high", "<i8"), ("pitch", "<i8"), ("run", "<i8")]
_ACCESS = np.dtype([("location", "<i4"), ("write", "<i4"), *_INTERVAL])
_PATCH = np.dtype([("location", "<i4"), ("at", "<i2"), ("width", "<i2"), ("offset", "<i8")])
_FLAG = np.dtype([("source", "<i4"), ("target", "<i4"), ("after", "<i4"), ("before", "<i4")])
_WIDTH = {"<I": 4, "<Q": 8}


@dataclass(frozen=True)
class Location:
    """Memory and offset of a kernel's scratchpad or parameter."""

    key: int
    """Number of the memory, equal where bytes may be the same: :func:`scratchpad_key`, :func:`slot_key`."""
    shift: int = 0
    """Offset of byte 0 in the memory."""
    wrap: int = 0
    """Size after which offsets begin again at 0; 0: they never do."""


def scratchpad_key(name: str) -> int:
    """Key of a scratchpad."""
    return SCRATCHPADS.index(name)


def slot_key(slot: int) -> int:
    """Key of a slot of DRAM."""
    return len(SCRATCHPADS) + slot


class Packed:
    """Instructions as arrays; locations are numbered: scratchpads in their order, then parameters."""

    def __init__(self, instrs: Sequence[Instr]):
        accesses: list[tuple[int, ...]] = []
        patches: list[tuple[int, int, int, int]] = []
        code_at, access_at, patch_at = [0], [0], [0]
        for instr in instrs:
            accesses += [
                (_number(where), write, low, high, *(runs or (0, 0)))
                for where, low, high, write, *runs in instr.accesses
            ]
            if instr.reference is not None:
                parameter, slot_at, address_at, offset = instr.reference
                patches += [(~parameter, slot_at, 2, 0), (_number(parameter), address_at, 8, offset)]
            for found in (instr.in_l1, instr.in_ub):
                if found is not None:
                    owner, at, form, offset = found
                    patches.append((_number("l1" if owner is None else owner), at, _WIDTH[form], offset))
            patches += [(_number(where), at, 4, offset) for where, at, offset in instr.in_l0]
            code_at.append(code_at[-1] + len(instr.code))
            access_at.append(len(accesses))
            patch_at.append(len(patches))
        self.count = len(instrs)
        self._arrays = (
            np.frombuffer(b"".join(instr.code for instr in instrs), np.uint8),
            np.array(code_at, np.int64),
            np.array([instr.queue for instr in instrs], np.uint8),
            np.array(access_at, np.int64),
            np.array(accesses, _ACCESS),
            np.array(patch_at, np.int64),
            np.array(patches, _PATCH),
        )
        self.pointers = [array.ctypes.data for array in self._arrays]


def _number(where: str | int) -> int:
    """Number of the location of a scratchpad (by name) or a parameter (by index)."""
    return scratchpad_key(where) if isinstance(where, str) else len(SCRATCHPADS) + where


class Synchronizer:
    """Builder of one stream: takes kernels in program order, inserts the flags between queues."""

    def __init__(self) -> None:
        self._library = _library()
        self._stream = self._library.npu_sync_new()

    def __del__(self) -> None:
        if getattr(self, "_stream", None):
            self._library.npu_sync_delete(self._stream)

    def add(
        self,
        kernel: Packed,
        locations: Iterable[Location],
        slots: Sequence[int] = (),
        tag: int = 0,
        first: int = 0,
        last: int | None = None,
    ) -> None:
        """Append instructions of a kernel.

        Parameters
        ----------
        locations : those of the scratchpads, then those of the parameters.
        slots : slot of DRAM of each parameter.
        first, last : first instruction and one past the last; all of the kernel's by default.
        """
        table = np.array([(at.key, at.shift, at.wrap) for at in locations], np.int64)
        numbers = np.array(slots, np.int32)
        last = kernel.count if last is None else last
        if self._library.npu_sync_add(
            self._stream, first, last, *kernel.pointers, table.ctypes.data, numbers.ctypes.data, tag
        ):
            raise BuildError(f"not enough memory to synchronise {last - first} instructions")

    def mark(self) -> np.ndarray:
        """Instructions of each queue so far: a position in the stream for :meth:`after` and :meth:`merge`."""
        counts = np.empty(QUEUES, np.int32)
        self._library.npu_sync_mark(self._stream, counts.ctypes.data)
        return counts

    def after(self, target: str, source: str, mark: np.ndarray) -> None:
        """Let the next instruction, one of queue ``target``, wait for all of ``source`` before a mark."""
        queue = isa.QUEUES.index(source)
        self._library.npu_sync_after(self._stream, isa.QUEUES.index(target), queue, int(mark[queue]))

    def merge(self, location: Location, size: int, mark: np.ndarray) -> None:
        """Forget the pieces in which ``size`` bytes of a location were accessed before a mark: one interval
        per queue and kind remains.

        Keeps the pass fast when a kernel has written a tensor tile by tile.
        """
        begin = location.shift
        self._library.npu_sync_merge(self._stream, location.key, begin, begin + size, mark.ctypes.data)

    @property
    def flags(self) -> np.ndarray:
        """Flags in the order in which they were found: set by queue ``source`` behind instruction ``after``
        (an index without flags), waited for by ``target`` before instruction ``before``."""
        found = np.empty(self._library.npu_sync_flags(self._stream, None), _FLAG)
        self._library.npu_sync_flags(self._stream, found.ctypes.data)
        return found

    def code(self) -> bytes:
        """The instructions with their flags."""
        flags = _flag_codes()
        size = self._library.npu_sync_code(self._stream, *flags, None)
        code = ctypes.create_string_buffer(size)
        self._library.npu_sync_code(self._stream, *flags, code)
        return code.raw


@functools.lru_cache(maxsize=1)
def _flag_codes() -> tuple[bytes, bytes, int]:
    """Encoded set flags and wait flags, each by source and target; bytes of one."""
    tables = []
    for name in ("set_flag", "wait_flag"):
        empty = bytes(len(isa.encode(name, source=isa.QUEUES[0], target=isa.QUEUES[1], event=0)))
        codes = [
            isa.encode(name, source=source, target=target, event=0) if source != target else empty
            for source, target in itertools.product(isa.QUEUES, repeat=2)
        ]
        tables.append(b"".join(codes))
    return tables[0], tables[1], len(empty)


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    path = native.compile_shared(["targets/npu/cpp/npu_sync.cc"], name="npu-sync")
    library = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.npu_sync_new.restype = pointer
    library.npu_sync_new.argtypes = []
    library.npu_sync_delete.restype = None
    library.npu_sync_delete.argtypes = [pointer]
    library.npu_sync_add.restype = ctypes.c_int
    library.npu_sync_add.argtypes = [pointer, number, number, *[pointer] * 9, ctypes.c_uint16]
    library.npu_sync_after.restype = None
    library.npu_sync_after.argtypes = [pointer, ctypes.c_int, ctypes.c_int, ctypes.c_int32]
    library.npu_sync_merge.restype = None
    library.npu_sync_merge.argtypes = [pointer, number, number, number, pointer]
    library.npu_sync_mark.restype = None
    library.npu_sync_mark.argtypes = [pointer, pointer]
    library.npu_sync_flags.restype = number
    library.npu_sync_flags.argtypes = [pointer, pointer]
    library.npu_sync_code.restype = number
    library.npu_sync_code.argtypes = [pointer, ctypes.c_char_p, ctypes.c_char_p, number, pointer]
    return library
