"""The parts of ELF that are read: the header, and the table of sections."""

import platform
import struct

import pytest

from hetero_tvm.errors import LibraryError
from hetero_tvm.runtime import elf
from tests.runtime.conftest import compile_manifest, make_manifest

HERE = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "arm64": 183}.get(platform.machine())


def header(machine, kind=3, bits=2, order=1):
    """The first 64 bytes of a file."""
    start = b"\x7fELF" + bytes([bits, order, 1]) + bytes(9)
    return (start + struct.pack("<HH", kind, machine)).ljust(64, b"\0")


@pytest.mark.skipif(HERE is None, reason="knows this machine's number only")
def test_files_for_this_machine_pass(tmp_path):
    path = tmp_path / "a.so"
    path.write_bytes(header(HERE))
    elf.check_machine(path)


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "no ELF header"),
        (b"\x7fELF", "no ELF header"),
        (b"MZ" + bytes(62), "no ELF header"),
        (header(243), "is built for riscv64"),
        (header(9999), "is built for ELF machine 9999"),
        (header(HERE or 62, bits=1), "is built for"),
        (header(HERE or 62, order=2), "is built for"),
        (header(HERE or 62, kind=2), "not a shared library" if HERE else "is built for"),
    ],
)
def test_other_files_are_refused(tmp_path, data, words):
    path = tmp_path / "a.so"
    path.write_bytes(data)
    with pytest.raises(LibraryError, match=words):
        elf.check_machine(path)


def test_sections_are_found_by_name(tmp_path):
    data = compile_manifest(tmp_path, make_manifest()).read_bytes()
    offset, size = elf.section(data, b".hetero_tvm")
    assert data[offset:].startswith(b"\x89hetero_tvm") and offset + size <= len(data)
    assert elf.section(data, b".text") is not None
    assert elf.section(data, b".hetero") is None and elf.section(data, b"") is not None


def test_a_cut_off_table_is_an_error(tmp_path):
    data = compile_manifest(tmp_path, make_manifest()).read_bytes()
    for length in (10, 100, len(data) - 1):
        with pytest.raises(ValueError):
            elf.section(data[:length], b".text")
    stripped = data[:40] + bytes(8) + data[48:]  # without a table
    assert elf.section(stripped, b".text") is None
