"""SIGTERM and SIGHUP end a command with its clean-up; the second one at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_tvm.cli.ending import ended_by_signals

ROOT = Path(__file__).resolve().parents[2]

COMMAND = """
import argparse, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
from pathlib import Path
from hetero_tvm.cli import common
from hetero_tvm.host.scratch import scratch_folder

def command(options):
    with scratch_folder(Path(sys.argv[1]), ".work-"):
        print("ready", flush=True)
        time.sleep(60)

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.set_defaults(shape=[], precision=None)
sys.exit(common.run(command, parser, None))
"""


HANGS_UP = pytest.param(signal.SIGHUP, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, HANGS_UP])
def test_a_command_cleans_up(tmp_path, number):
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(tmp_path)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number and list(tmp_path.iterdir()) == []
    assert said.strip() == ("interrupted" if number == signal.SIGINT else f"ended by {number.name}")


def test_handlers_are_as_before_and_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with pytest.raises(KeyboardInterrupt), ended_by_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
