"""Scratch folders: one that is in use stays, one whose process was killed goes."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.host import scratch
from hetero_tvm.host.scratch import scratch_folder, temporary_folder

ROOT = Path(__file__).resolve().parents[2]

HOLDER = """
import sys
from pathlib import Path
from hetero_tvm.host.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1]), ".work-") as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_the_next_one_removes_what_a_killed_process_left(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    holder = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    left = Path(holder.stdout.readline().strip())
    others = [tmp_path / ".work-file", tmp_path / "mine"]
    others[0].write_text("not a folder")
    others[1].mkdir()
    with scratch_folder(tmp_path, ".work-"):
        assert (left / "file").exists()  # in use
    holder.kill()
    holder.wait()
    assert left.exists()
    with scratch_folder(tmp_path, ".work-") as folder:
        assert folder.is_dir() and not left.exists()
    assert not folder.exists() and all(path.exists() for path in others)


def test_where_the_root_is_read_only_temporary_folders_lie_in_shared_memory(tmp_path, monkeypatch):
    def none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(scratch.tempfile, "gettempdir", none)
    monkeypatch.setattr(scratch, "_SHARED_MEMORY", tmp_path)
    with temporary_folder("hetero_tvm-test-") as folder:
        assert folder.parent == tmp_path and folder.is_dir()
    monkeypatch.setattr(scratch, "_SHARED_MEMORY", tmp_path / "none")
    with pytest.raises(UsageError, match="temporary files") as caught:
        temporary_folder("hetero_tvm-test-")
    assert "TMPDIR" in caught.value.hint


def test_many_at_once_do_not_sweep_each_other(tmp_path):
    failures = []

    def work():
        for _ in range(100):
            with scratch_folder(tmp_path, ".work-") as folder:
                try:
                    (folder / "file").write_text("x")
                except OSError as error:
                    failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and list(tmp_path.iterdir()) == []
