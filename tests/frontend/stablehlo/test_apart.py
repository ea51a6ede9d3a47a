"""Tests of StableHLO in a process of their own: XLA's threads and tests that fork do not go together."""

import subprocess
import sys

import pytest

from tests.import_graph import ROOT

QUICK = (
    "block or rows or judges or listed or refused or looks or same or einsum or transposed or pooling "
    "or taking or other_convolutions or names_of_sizes or sizes_are_given or sizes_that_are_missing"
)
"""Names of the tests that run every time; the others are in the exhaustive selection."""


@pytest.mark.thorough
def test_programs_of_jax():
    pytest.importorskip("jaxlib")  # which starts no thread
    options = ["-q", "-p", "no:cacheprovider", "-m", "exhaustive", "-k", QUICK, "tests/frontend/stablehlo"]
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
