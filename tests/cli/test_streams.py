"""Standard streams that are closed, full, or that nobody reads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

COMMAND = """
import argparse, os, sys
from hetero_tvm.cli import common

def command(options):
    common.say(options, "a line")
    if options.fail:
        raise OSError(28, "No space left on device")
    if options.json:
        common.print_json({"many": ["words"] * 5000})
    with open("numbers", "w") as file:
        file.write(str(file.fileno()))
    os.system("echo of another program; echo of another program >&2")
    return 0

parser = argparse.ArgumentParser()
parser.add_argument("--json", action="store_true")
parser.add_argument("--fail", action="store_true")
parser.set_defaults(shape=[], precision=None, quiet=False)
sys.exit(common.run(command, parser, None))
"""


def run(redirections, folder, *words):
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", COMMAND, *words]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/bin:/usr/bin"},
    )


@pytest.mark.parametrize("redirections", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_dev_null(tmp_path, redirections):
    done = run(redirections, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int((tmp_path / "numbers").read_text()) > 2


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_full_disk_under_the_output_is_named(tmp_path, words):
    done = run("> /dev/full", tmp_path, *words)
    lines = [line for line in done.stderr.splitlines() if line not in ("a line", "of another program")]
    assert lines == [
        "error: cannot write standard output: No space left on device",
        "What to do: free some space there, or send it elsewhere (> FILE)",
    ]
    assert done.returncode == 1


def test_a_full_disk_elsewhere_is_not_taken_for_the_output(tmp_path):
    done = run("", tmp_path, "--fail", "--json")
    assert done.returncode == 1 and "TMPDIR" in done.stderr
    assert json.loads(done.stdout)["error"]["type"] == "OSError"


def test_output_that_nobody_reads_ends_the_command_silently(tmp_path):
    done = run("| true", tmp_path, "--json")
    assert "Error" not in done.stderr
