"""Marks for parameters of the thorough and the exhaustive selection (see ``conftest.py``)."""

from collections.abc import Iterable
from typing import Any

import pytest


def thorough(cases: Iterable[Any]) -> list:
    """Parameters that the thorough selection takes; a tuple holds one value for each name."""
    mark = pytest.mark.thorough
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark) for case in cases]


def exhaustive(cases: Iterable[Any]) -> list:
    """Parameters that only the exhaustive selection takes; a tuple holds one value for each name."""
    mark = pytest.mark.exhaustive
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark) for case in cases]
