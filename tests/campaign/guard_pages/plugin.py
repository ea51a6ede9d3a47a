"""Pytest's part of ``python -m tests.campaign.guard_pages --pytest``: every model of the tests is guarded."""

from __future__ import annotations

import contextlib

import pytest

from tests.campaign.guard_pages.guarded import Guard, blocks_of_their_own

_open = contextlib.ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Guard what is built from now on; tests of the arena itself want it there."""
    _open.enter_context(blocks_of_their_own(arena=config.getoption("--arena")))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--arena", action="store_true", help="tensors of a call share an arena, as usual")


def pytest_collection_finish() -> None:
    Guard().watch()


def pytest_unconfigure() -> None:
    _open.close()
