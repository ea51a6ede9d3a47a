"""Who is alone with a folder of records; the rest is tested through the store."""

import subprocess
import sys
from pathlib import Path

from hetero_tvm.records.appending import alone_in

ROOT = Path(__file__).resolve().parents[2]

HOLDER = """
import sys
from pathlib import Path
from hetero_tvm.records.appending import alone_in
with alone_in(Path(sys.argv[1])) as alone:
    print(alone, flush=True)
    sys.stdin.read()
"""


def holder(folder):
    command = [sys.executable, "-c", HOLDER, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, cwd=ROOT, **pipes)
    return process, process.stdout.readline().strip()


def test_the_first_is_alone_until_it_dies(tmp_path):
    folder = tmp_path / "logs"
    first, alone = holder(folder)
    try:
        assert alone == "True"
        with alone_in(folder) as second:
            assert not second
    finally:
        first.kill()  # which leaves no lock behind
        first.wait()
    with alone_in(folder) as third:
        assert third
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_nobody_elses(tmp_path):
    (tmp_path / "file").write_text("")
    with alone_in(tmp_path / "file" / "logs") as alone:
        assert alone
