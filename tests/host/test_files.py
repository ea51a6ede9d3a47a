"""Files that appear whole or not at all."""

import errno
import os
import tempfile
import threading

import pytest

from hetero_tvm.host.files import alone, is_full, odd_kind, replaced, write_whole
from hetero_tvm.host.scratch import scratch_folder


def test_a_file_is_replaced_when_all_is_written(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with path.open() as reader:
        with replaced(path) as fresh:
            fresh.write_text("new")
            assert path.read_text() == "old"
        assert reader.read() == "old" and path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_names_of_files_in_a_text_keep_their_bytes(tmp_path):
    write_whole(tmp_path / "a.txt", f"made from {os.fsdecode(bytes([0xE9]))}: \u00e9")
    assert (tmp_path / "a.txt").read_bytes() == b"made from \xe9: \xc3\xa9"


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OSError, match="no room"), replaced(path) as fresh:
        fresh.write_text("ne")
        raise OSError(errno.ENOSPC, "no room")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    with replaced(tmp_path / "link") as fresh:
        fresh.write_text("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"


def test_what_is_no_plain_file_is_written_to():
    with replaced("/dev/null") as fresh:
        fresh.write_text("text")
    assert odd_kind("/dev/null") == "a device"


def test_kinds_of_files(tmp_path):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    kinds = {name: odd_kind(tmp_path / name) for name in ("file", "pipe", "loop", "none", "")}
    assert kinds == {"file": None, "pipe": "a named pipe", "loop": None, "none": None, "": "a folder"}
    reading, writing = os.pipe()
    try:
        assert odd_kind(f"/proc/self/fd/{reading}", pipes=True) is None
        assert odd_kind(f"/proc/self/fd/{reading}") == "a named pipe"
        assert odd_kind(tmp_path / "pipe", pipes=True) == "a named pipe"
    finally:
        os.close(reading)
        os.close(writing)


def test_full_disks_are_told_from_other_failures():
    assert is_full(OSError(errno.ENOSPC, "x")) and is_full(OSError(errno.EDQUOT, "x"))
    assert is_full(RuntimeError("ld: final link failed: No space left on device"))
    assert not is_full(OSError(errno.EACCES, "x")) and not is_full(RuntimeError("undefined symbol"))


def test_a_folder_is_held_by_one_at_a_time(tmp_path):
    """Pairs of files that eight threads write never mix, and nothing is left in the folder."""
    wrong = []

    def write(name):
        for turn in range(20):
            with alone(tmp_path):
                for part in "ab":
                    (tmp_path / part).write_text(f"{name} {turn}")
                if (tmp_path / "a").read_text() != (tmp_path / "b").read_text():
                    wrong.append((name, turn))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_folder_that_its_maker_has_locked_can_be_held(tmp_path):
    """Exports go to scratch folders too, which are locked for as long as they are used."""
    with scratch_folder(tmp_path, ".scratch-") as folder, alone(folder):
        assert folder.is_dir()


def test_where_no_temporary_file_can_be_made_nobody_waits(tmp_path, monkeypatch):
    """As in a container whose root is read-only: a library is exported to a volume all the same."""

    def none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with alone(tmp_path), alone(tmp_path):
        pass


def test_a_file_is_whole_or_what_it_was(tmp_path, at_most):
    path = tmp_path / "page.html"
    write_whole(path, "old")
    with at_most(1000), pytest.raises(OSError, match="page.html") as told:
        write_whole(path, "new" * 1000)
    assert is_full(told.value) and path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
