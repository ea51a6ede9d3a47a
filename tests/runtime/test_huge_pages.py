"""Weights on huge pages."""

from __future__ import annotations

import mmap

import pytest

from hetero_tvm.runtime import huge_pages

MAPS = """\
5500-5600 r--p 00000000 fe:00 1234                       /usr/bin/python3.11
5600-5700 rw-p 00000000 00:00 0                          [heap]
7000-7100 rw-p 00000000 00:00 0
7100-7200 rw-s 00000000 00:00 0
7200-7300 r-xp 00000000 00:00 0                          [vdso]
7300-7400 rw-p 00001000 fe:00 77                         /usr/lib/libc.so.6
7400-7500 rw-p 00000000 00:00 0                          [stack]
7500-7600 ---p 00000000 00:00 0
"""


def test_only_private_memory_without_a_file_counts():
    assert huge_pages.anonymous(MAPS) == [(0x5600, 0x5700), (0x7000, 0x7100)]


@pytest.mark.parametrize(
    "before, after, expected",
    [
        ([], [(0, 4)], [(0, 4)]),
        ([(0, 4)], [(0, 4)], []),
        ([(0, 4)], [(0, 9)], [(4, 9)]),
        ([(4, 6)], [(0, 9)], [(0, 4), (6, 9)]),
        ([(0, 2), (8, 12)], [(1, 10), (20, 21)], [(2, 8), (20, 21)]),
        ([(0, 20)], [(5, 6)], []),
        ([(6, 8), (2, 4)], [(0, 10)], [(0, 2), (4, 6), (8, 10)]),
    ],
)
def test_added_is_the_difference(before, after, expected):
    assert huge_pages.added(before, after) == expected


@pytest.mark.parametrize("value", ("0", "1"))
def test_memory_keeps_its_content(value, monkeypatch):
    monkeypatch.setenv(huge_pages.VARIABLE, value)

    def fill() -> mmap.mmap:
        memory = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:] = bytes(range(256)) * (len(memory) // 256)
        return memory

    memory = huge_pages.on_huge_pages(fill)
    assert memory[:] == bytes(range(256)) * (len(memory) // 256)


def test_an_error_while_loading_comes_through():
    with pytest.raises(ZeroDivisionError):
        huge_pages.on_huge_pages(lambda: 1 // 0)
