"""Facts of kernels in a cubin, which is an ELF file; nothing runs.

Registers stand in the upper byte of the code section's ``sh_info``; stack and parameters are in the
``.nv.info`` sections (attributes as ``cuobjdump -elf`` prints them).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_FRAME_SIZE, _MIN_STACK, _REGCOUNT, _MAX_STACK = 0x11, 0x12, 0x2F, 0x23


@dataclass(frozen=True)
class KernelFacts:
    """Registers of a thread, bytes of its stack (spills live there), bytes of static shared memory."""

    registers: int
    stack: int
    shared: int


def kernels_of(cubin: bytes) -> dict[str, KernelFacts]:
    """The kernels of a cubin by name.

    Raises
    ------
    ValueError : not a 64-bit ELF file.
    """
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("this is not a cubin")
    (table,) = struct.unpack_from("<Q", cubin, 40)
    entry, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * entry) for i in range(count)]
    strings = headers[names_index]

    def text(header: tuple[int, ...], at: int) -> str:
        start = header[4] + at
        return cubin[start : cubin.index(b"\0", start)].decode()

    sections = {text(strings, h[0]): h for h in headers}
    symbols = next((h for h in headers if h[1] == 2), None)
    names = {}
    if symbols is not None:
        labels = headers[symbols[6]]
        for i in range(symbols[5] // 24):
            (label,) = struct.unpack_from("<I", cubin, symbols[4] + 24 * i)
            names[i] = text(labels, label)
    attributes = _global_info(cubin, sections.get(".nv.info"))
    by_name = {names.get(index, ""): values for index, values in attributes.items()}
    result = {}
    for name, header in sections.items():
        if not name.startswith(".text."):
            continue
        kernel = name.removeprefix(".text.")
        values = by_name.get(kernel, {})
        shared = sections.get(f".nv.shared.{kernel}")
        registers = values.get(_REGCOUNT) or header[7] >> 24
        stack = max(values.get(_MIN_STACK, 0), values.get(_FRAME_SIZE, 0), values.get(_MAX_STACK, 0))
        result[kernel] = KernelFacts(registers, stack, shared[5] if shared else 0)
    return result


def _global_info(cubin: bytes, header: tuple[int, ...] | None) -> dict[int, dict[int, int]]:
    """Attributes of kernels from the ``.nv.info`` section: symbol index -> attribute -> value."""
    result: dict[int, dict[int, int]] = {}
    if header is None:
        return result
    at, end = header[4], header[4] + header[5]
    while at + 4 <= end:
        form, attribute, size = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if form != 4:  # the value stands in the size field
            continue
        if size == 8:
            symbol, value = struct.unpack_from("<II", cubin, at)
            result.setdefault(symbol, {})[attribute] = value
        at += size
    return result
