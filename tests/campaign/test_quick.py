"""A quick selection of the campaigns; each whole is one command, ``python -m tests.campaign.NAME``."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign.kills import repeated

ROOT = Path(__file__).resolve().parents[2]


def campaign(name, *options):
    """Standard output of a campaign that finds nothing."""
    command = [sys.executable, "-m", f"tests.campaign.{name}", *options]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.thorough
def test_damaged_files():
    said = campaign("damaged_files", "--cases", "48", "--only", "onnx", "--only", "npz")
    assert "onnx: 48 cases" in said and "npz: 48 cases" in said


@pytest.mark.exhaustive
def test_sessions():
    assert campaign("sessions", "--count", "100").count("100 sessions") == 2


@pytest.mark.exhaustive
def test_kills_of_exports():
    assert "| export, kill -9 | 3 | 0 |" in campaign("kills", "--moments", "3", "--only", "export")


@pytest.mark.exhaustive
@pytest.mark.parametrize("series", ["build", "Ctrl-C", "server", "child"])
def test_kills(series):
    """Those of whole searches, which wait for a calm machine, are left to the command."""
    campaign("kills", "--moments", "3", "--only", series)


def test_a_second_look_is_no_known_point():
    """A resumed search may measure its own trials twice, and none of those that it began with."""
    begun = [("kernel", "a"), ("kernel", "b"), ("kernel", "b")]
    assert repeated(begun, [*begun, ("kernel", "c"), ("kernel", "c")]) == 0
    assert repeated(begun, [*begun, ("kernel", "a"), ("kernel", "b")]) == 2


@pytest.mark.exhaustive
def test_two_tuners():
    assert "| two tuners | 1 | 0 |" in campaign("two_tuners", "--rounds", "1")


@pytest.mark.exhaustive
def test_damaged_programs_and_records():
    campaign("damaged_files", "--cases", "16", "--only", "pt2", "--only", "records")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["checkpoint", "gguf", "tflite", "stablehlo", "description"])
def test_damage_to_other_formats(kind):
    assert f"{kind}: 16 cases" in campaign("damaged_files", "--cases", "16", "--only", kind)


@pytest.mark.exhaustive
def test_a_short_soak():
    assert " 0 wrong results" in campaign("soak", "--minutes", "0.3")
