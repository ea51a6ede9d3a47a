"""Costs of the memory accesses of a kernel, found without a GPU.

The CPU emulation runs one block and notes every address.  Of each instruction of a warp we count what it
costs and what it would cost at best: in shared memory wavefronts (32 banks of 4 bytes; the lanes of a
request take turns in groups of 128 bytes), in global memory sectors of 32 bytes.

Noted are ``ldmatrix``, ``cp.async`` and the vector accesses of ``schedules.cuda.device``; not noted are
accesses of plain C++ expressions, and what ``wgmma`` reads.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero_tvm.errors import BuildError
from hetero_tvm.targets.cuda.codegen import Launch
from hetero_tvm.targets.cuda.emulator import compiled, translate

BANKS, WORD, SECTOR = 32, 4, 32
_WIDTH = BANKS * WORD
_ALIGNED = 256
_NOTED = np.dtype([("line", "i4"), ("thread", "i4"), ("shared", "i4"), ("size", "i4"), ("address", "u8")])
# Statements whose accesses are noted; each leaves its number behind.
_SITE = re.compile(r"^(\s*)(?=(?:htvm_|ptx_cp_async|load_matrices\())", re.M)


@dataclass(frozen=True)
class Site:
    """Accesses of one statement of a kernel, over all warps and repetitions.

    Parameters
    ----------
    text : the statement, as emulated.
    shared : whether its accesses go to shared memory.
    requests : instructions of a warp.
    cost, least : wavefronts, or sectors, that they take, and the fewest that so many bytes can take.
    """

    text: str
    shared: bool
    requests: int
    cost: int
    least: int


def wavefronts(addresses: Sequence[int], size: int) -> tuple[int, int]:
    """Turns that shared memory takes for lanes that access ``size`` bytes each, and the least possible.

    >>> wavefronts([4 * lane for lane in range(32)], 4), wavefronts([128 * lane for lane in range(32)], 4)
    ((1, 1), (32, 1))
    """
    lanes = _WIDTH // max(size, WORD)
    cost = least = 0
    for start in range(0, len(addresses), lanes):
        words = {
            address // WORD + i
            for address in addresses[start : start + lanes]
            for i in range(-(-size // WORD))
        }
        banks = np.bincount([word % BANKS for word in words], minlength=BANKS)
        cost += int(banks.max())
        least += -(-len(words) // BANKS)
    return cost, least


def sectors(addresses: Sequence[int], size: int) -> tuple[int, int]:
    """Sectors of global memory that lanes touch, and the least that hold so many different bytes."""
    touched = {at // SECTOR for address in addresses for at in (address, address + size - 1)}
    return len(touched), -(-len(set(addresses)) * size // SECTOR)


def sites(source: str, kernel: str, launch: Launch, nbytes: int) -> list[Site]:
    """The accesses of the first block of ``kernel``, statement by statement.

    Parameters
    ----------
    source : CUDA C++ as TVM generates it (``DeviceModule.source``).
    nbytes : of the largest operand; all are zeros.

    Raises
    ------
    BuildError : the launch is only known at run time, or the emulation found a fault.
    """
    if None in (*launch.grid, *launch.block):
        raise BuildError(f"the launch of {kernel} is only known at run time")
    text = _SITE.sub(r"\1line = __LINE__, ", translate(source))
    lines = text.splitlines()
    noted = _run(text, kernel, launch, nbytes)
    warp = noted["thread"] // 32
    # The n-th access of a lane at a site belongs to the same request as that of its neighbours.
    order = np.lexsort((np.arange(len(noted)), noted["shared"], noted["line"], noted["thread"]))
    keys = np.stack([noted["thread"], noted["line"], noted["shared"]])[:, order]
    first = np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)]
    starts = np.flatnonzero(first)
    turn = np.empty(len(noted), "i8")
    turn[order] = np.arange(len(noted)) - np.repeat(starts, np.diff(np.r_[starts, len(noted)]))
    keys = np.stack([noted["line"], noted["shared"], warp, turn])
    order = np.lexsort((noted["thread"], *keys[::-1]))
    noted, keys = noted[order], keys[:, order]
    changes = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
    totals: dict[tuple[int, bool], list[int]] = {}
    for request in np.split(noted, changes):
        line, shared, size = int(request["line"][0]), bool(request["shared"][0]), int(request["size"].max())
        measure = wavefronts if shared else sectors
        cost, least = measure([int(address) for address in request["address"]], size)
        total = totals.setdefault((line, shared), [0, 0, 0])
        for i, count in enumerate((1, cost, least)):
            total[i] += count
    return [Site(_statement(lines[line - 1]), shared, *total) for (line, shared), total in totals.items()]


def _statement(line: str) -> str:
    return line.replace("line = __LINE__, ", "").strip()


def _run(text: str, kernel: str, launch: Launch, nbytes: int) -> np.ndarray:
    library = ctypes.CDLL(str(compiled(text, ["-DHETERO_TVM_TRACE", "-O0"])))
    count = ctypes.c_int.in_dll(library, f"sizes_{kernel}").value
    memory = [np.zeros(nbytes + _ALIGNED, "u1") for _ in range(count)]
    pointers = [ctypes.c_void_p(-(-array.ctypes.data // _ALIGNED) * _ALIGNED) for array in memory]
    values = (ctypes.c_void_p * count)(*(ctypes.addressof(pointer) for pointer in pointers))
    dims = (ctypes.c_int * 6)(*launch.grid, *launch.block)
    library.accesses_clear()
    if library[f"emulated_{kernel}"](values, dims, 0):
        raise BuildError(f"the emulation of {kernel} failed")
    library.accesses_count.restype = ctypes.c_long
    library.accesses_data.restype = ctypes.c_void_p
    count = library.accesses_count()
    if not count:
        return np.zeros(0, _NOTED)
    memory = (ctypes.c_char * (count * _NOTED.itemsize)).from_address(library.accesses_data())
    return np.frombuffer(bytearray(memory), _NOTED)
