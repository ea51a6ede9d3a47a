"""Folders of a user: the variables of XDG where they are absolute, the home, and users without one."""

import os
from pathlib import Path

import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.host import folders

CASES = [
    (folders.user_data, "XDG_DATA_HOME", ".local/share"),
    (folders.user_cache, "XDG_CACHE_HOME", ".cache"),
]


@pytest.mark.parametrize(("folder", "variable", "default"), CASES)
def test_the_variable_is_taken_where_it_is_absolute(folder, variable, default, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, str(tmp_path / "chosen"))
    assert folder() == tmp_path / "chosen" / "hetero_tvm"
    for nothing in ("", "  ", "relative/path"):
        monkeypatch.setenv(variable, nothing)
        assert folder() == tmp_path / "home" / default / "hetero_tvm"


@pytest.mark.parametrize(("folder", "variable", "default"), CASES)
def test_a_user_without_a_home_gets_a_temporary_folder(folder, variable, default, monkeypatch, tmp_path):
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: str(tmp_path))

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    private = tmp_path / f"hetero_tvm-user-{os.getuid()}"
    assert folder() == private / default / "hetero_tvm"
    assert private.stat().st_mode & 0o077 == 0
    assert folder() == private / default / "hetero_tvm"  # it is there now
    private.chmod(0o777)
    with pytest.raises(UsageError, match="others may write"):
        folder()
    private.rmdir()
    private.symlink_to(tmp_path)
    with pytest.raises(UsageError, match="others may write"):
        folder()

    def none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(folders.tempfile, "gettempdir", none)
    with pytest.raises(UsageError, match="no folder for temporary files") as caught:
        folder()
    assert variable in caught.value.hint


@pytest.mark.parametrize("writable", [True, False])
def test_the_cache_of_a_home_that_cannot_be_written_to_is_temporary(writable, monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "deeper"))
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(folders.os, "access", lambda path, mode: writable)
    in_the_home = tmp_path / "home" / "deeper" / ".cache" / "hetero_tvm"
    temporary = tmp_path / f"hetero_tvm-user-{os.getuid()}" / ".cache" / "hetero_tvm"
    assert folders.user_cache() == (in_the_home if writable else temporary)
    in_the_home.mkdir(parents=True)
    assert folders.user_cache() == in_the_home  # made beforehand, as in an image

    def none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(folders.tempfile, "gettempdir", none)
    in_the_home.rmdir()
    assert folders.user_cache() == in_the_home


def test_a_cache_that_is_there_and_read_only_has_a_spare_one(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: str(tmp_path))
    assert folders.spare_cache() is None
    (tmp_path / "cache" / "hetero_tvm").mkdir(parents=True)
    assert folders.spare_cache() is None
    monkeypatch.setattr(folders.os, "access", lambda path, mode: False)
    assert folders.spare_cache() == tmp_path / f"hetero_tvm-user-{os.getuid()}" / ".cache" / "hetero_tvm"
