"""Fixtures for tests on machines that have no GPU."""

from tests.targets.cuda.fixtures import compiler, emulated

__all__ = ["compiler", "emulated"]
