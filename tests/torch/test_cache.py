"""The folder of compiled graphs, with files in the place of libraries."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from hetero_tvm.errors import BuildError, LibraryError
from hetero_tvm.torch.cache import GraphCache

SIZE = 100


def opened(path):
    text = path.read_text()
    if not text.startswith("library"):
        raise LibraryError("damaged")
    return text


def get(cache, key, made):
    def make(path):
        made.append(key)
        path.write_text(f"library {key}".ljust(SIZE))

    return cache.get(key, make, opened)


def test_an_entry_is_made_once_and_found_by_another_cache_of_the_folder(tmp_path):
    made = []
    assert get(GraphCache(tmp_path, 10**6), "aa1", made) == ("library aa1".ljust(SIZE), False)
    assert get(GraphCache(tmp_path, 10**6), "aa1", made) == ("library aa1".ljust(SIZE), True)
    assert made == ["aa1"]


def test_of_many_that_ask_at_once_one_makes_it(tmp_path):
    made = []
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: get(GraphCache(tmp_path, 10**6), "bb", made), range(16)))
    assert made == ["bb"] and sum(not was_there for _, was_there in found) == 1


def test_a_damaged_entry_is_made_again(tmp_path):
    made = []
    get(GraphCache(tmp_path, 10**6), "cc", made)
    (tmp_path / "cc" / "model.so").write_text("torn")
    assert get(GraphCache(tmp_path, 10**6), "cc", made)[1] is False
    assert made == ["cc", "cc"]


def test_those_used_longest_ago_make_room_but_never_the_newest(tmp_path):
    cache, made = GraphCache(tmp_path, 2 * SIZE), []
    for age, key in ((30, "a0"), (20, "b0")):
        get(cache, key, made)
        os.utime(tmp_path / key, (age, age))
    get(cache, "a0", made)  # its use counts, not its making
    get(cache, "c0", made)
    kept = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert kept == ["a0", "c0"]
    get(GraphCache(tmp_path, 1), "d0", made)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["d0"]


def test_nothing_is_left_when_making_fails(tmp_path):
    def fail(path):
        path.write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        GraphCache(tmp_path, 10**6).get("ee", fail, opened)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_folder_that_cannot_be_written_says_which_and_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="HETERO_TVM_CACHE"):
        get(GraphCache(tmp_path / "file" / "folder", 1), "ff", [])
