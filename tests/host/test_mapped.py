"""Arrays in files without a name."""

import os
import resource
import threading
import time

import numpy as np
import pytest

from hetero_tvm.host import mapped
from tests.selection import thorough


@pytest.fixture
def array():
    return np.random.default_rng(0).standard_normal((600, 1024)).astype(np.float32)


def resident_kb() -> int:
    """Resident pages of files and shared memory of this process."""
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file if ":" in line)
    return sum(int(lines[name].split()[0]) for name in ("RssFile", "RssShmem"))


def test_a_large_array_keeps_its_values_and_gives_its_pages_back(array):
    large = np.tile(array, (8, 1))
    copy = mapped.mapped(large)
    np.testing.assert_array_equal(copy, large)
    before = resident_kb()
    mapped.release()
    assert before - resident_kb() > 0.8 * large.nbytes / 1024
    np.testing.assert_array_equal(copy, large)
    assert mapped.is_mapped(copy)


def test_what_a_step_leaves_on_the_heap_is_given_back(array):
    arrays = [bytearray(900 << 10) for _ in range(64)]  # from the heap, whose last piece stays in use
    kept = bytearray(64 << 10)
    del arrays

    def heap_kb() -> int:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

    mapped.settle()
    least = heap_kb()
    arrays = [bytearray(900 << 10) for _ in range(64)]
    last = bytearray(64 << 10)
    del arrays
    mapped.settle()
    assert heap_kb() < least + (8 << 10) and len(kept) == len(last)


def test_views_are_mapped_when_they_are_contiguous_and_aligned(array):
    copy = mapped.mapped(array)
    assert mapped.is_mapped(copy[16:]) and mapped.is_mapped(copy.reshape(-1))
    assert not mapped.is_mapped(copy.T) and not mapped.is_mapped(copy.reshape(-1)[1:])
    assert mapped.mapped(copy) is copy


def test_small_arrays_and_objects_stay_where_they_are(array):
    assert mapped.mapped(array[:4]) is not None and not mapped.is_mapped(mapped.mapped(array[:4]))
    objects = np.full(1 << 18, "text", object)
    assert mapped.mapped(objects) is objects


def test_a_file_goes_with_its_last_array(array):
    before = len(list(mapped._mappings))
    copy = mapped.mapped(array)
    view = copy[3:]
    del copy
    assert len(list(mapped._mappings)) == before + 1
    del view
    assert len(list(mapped._mappings)) == before


def test_parts_of_a_file_survive_its_change(array, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"abc" + array.tobytes())
    with path.open("rb") as file:
        copy = mapped.mapped_part(file, 3, array.nbytes).view(np.float32).reshape(array.shape)
    path.write_bytes(b"")
    np.testing.assert_array_equal(copy, array)
    with path.open("rb") as file, pytest.raises(EOFError):
        mapped.mapped_part(file, 3, array.nbytes)


@pytest.mark.parametrize("way", ["no folder", "full"])
def test_without_room_arrays_stay_in_memory(array, tmp_path, monkeypatch, way):
    path = tmp_path / "data"
    path.write_bytes(array.tobytes())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if way == "no folder":
        monkeypatch.setenv("TMPDIR", "/nonexistent")
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        assert mapped.mapped(array) is array
        with path.open("rb") as file:
            part = mapped.mapped_part(file, 0, array.nbytes)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    np.testing.assert_array_equal(part.view(np.float32).reshape(array.shape), array)
    assert not mapped.is_mapped(part)


def test_nothing_is_left_in_the_folder(array, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    copy = mapped.mapped(array)
    assert mapped.is_mapped(copy) and os.listdir(tmp_path) == []


def test_an_array_to_be_filled_lies_in_a_file_where_it_is_large():
    large, small = mapped.empty((600, 1024), "float32"), mapped.empty((3, 4), "int8")
    assert mapped.is_mapped(large) and not mapped.is_mapped(small)
    assert (large.shape, large.dtype, small.shape, small.dtype) == ((600, 1024), np.float32, (3, 4), np.int8)
    large[:] = 7
    mapped.release()
    assert (large == 7).all()


def test_an_array_to_be_filled_is_memory_where_no_file_can_be_had(monkeypatch):
    def full(*_):
        raise OSError("no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert not mapped.is_mapped(mapped.empty((600, 1024), "float32"))


@pytest.mark.parametrize("dtype", [*thorough(["float64"]), "float16", "int8"])
def test_conversion_piece_by_piece(array, dtype):
    large = np.tile(array, (9, 1))  # more than one piece
    converted = mapped.converted(large, dtype)
    assert converted.dtype == dtype and mapped.is_mapped(converted)
    np.testing.assert_array_equal(converted, large.astype(dtype))
    np.testing.assert_array_equal(mapped.converted(large.T, dtype), large.T.astype(dtype))


def test_pages_go_while_a_block_runs(array):
    copy = mapped.mapped(np.tile(array, (8, 1)))
    before = resident_kb()
    with mapped.given_back():
        copy.sum()
        deadline = time.monotonic() + 60
        while resident_kb() - before > 0.2 * copy.nbytes / 1024 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert resident_kb() - before <= 0.2 * copy.nbytes / 1024
    assert not [thread for thread in threading.enumerate() if thread.name == "hetero_tvm-mapped"]
