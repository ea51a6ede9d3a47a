"""Folders of the user."""

from pathlib import Path

from hetero_tvm.host.folders import user_cache_folder, user_data_folder


def test_the_environment_says_where(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/a")
    monkeypatch.setenv("XDG_DATA_HOME", "/b")
    assert user_cache_folder() == Path("/a/hetero_tvm") and user_data_folder() == Path("/b/hetero_tvm")


def test_otherwise_they_are_at_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_DATA_HOME", value)
        assert user_data_folder() == Path("/home/me/.local/share/hetero_tvm")
    assert user_cache_folder() == Path("/home/me/.cache/hetero_tvm")
