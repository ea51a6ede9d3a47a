"""A segment that is added to a linked library."""

import ctypes
import subprocess

import numpy as np
import pytest

from hetero_tvm.compile.segment import SEGMENT_FLAGS, append_segment
from hetero_tvm.errors import BuildError
from hetero_tvm.host import native
from hetero_tvm.runtime import elf

SOURCE = """
struct __attribute__((packed)) Place { char magic[16]; unsigned long long distance, size; };
__attribute__((section(".hetero_at"), used)) volatile const Place place = {"hetero_tvm-data", 0, 0};
int zeros[5000];
extern "C" const char* data() { return (const char*)&place + place.distance; }
extern "C" unsigned long long size() { return place.size; }
"""


@pytest.fixture
def library(tmp_path):
    (tmp_path / "place.cc").write_text(SOURCE)
    path = tmp_path / "place.so"
    command = [*native.find_compiler(), "-shared", "-fPIC", str(tmp_path / "place.cc"), "-o", str(path)]
    subprocess.run([*command, *SEGMENT_FLAGS], check=True)
    return path


def content(path) -> bytes:
    loaded = ctypes.CDLL(str(path))
    loaded.data.restype, loaded.size.restype = ctypes.c_void_p, ctypes.c_uint64
    return ctypes.string_at(loaded.data(), loaded.size())


@pytest.mark.parametrize("strip", [False, True])
def test_code_finds_the_segment(library, strip):
    data = np.random.default_rng(0).bytes(300_000)
    append_segment(library, len(data), [data[:7], data[7:]])
    if strip:
        subprocess.run(["strip", str(library)], check=True)
    assert content(library) == data
    start, size = elf.section(library.read_bytes(), b".hetero_data")
    assert library.read_bytes()[start : start + size] == data
    assert any(low <= start and start + size <= high for low, high in elf.segments(library.read_bytes()))


def test_a_library_without_a_place_is_refused(tmp_path):
    (tmp_path / "empty.cc").write_text("int nothing;")
    path = tmp_path / "empty.so"
    subprocess.run(
        [*native.find_compiler(), "-shared", str(tmp_path / "empty.cc"), "-o", str(path)], check=True
    )
    with pytest.raises(BuildError, match="no place"):
        append_segment(path, 3, [b"abc"])


def test_a_wrong_size_is_an_error(library):
    with pytest.raises(BuildError, match="not 5"):
        append_segment(library, 5, [b"abc"])
