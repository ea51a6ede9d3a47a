"""Numbers on command lines: types of argparse, which refuse what an option cannot be."""

from __future__ import annotations

import argparse
from typing import Any


def positive(text: str) -> int:
    """A positive whole number; an argparse type."""
    return _number(text, int, 1, "a positive whole number")


def count(text: str) -> int:
    """A whole number from 0; an argparse type."""
    return _number(text, int, 0, "a whole number, 0 or more")


def minutes(text: str) -> float:
    """A positive number of minutes; an argparse type."""
    return _number(text, float, 1e-3, "a positive number of minutes")


def seconds(text: str) -> float:
    """A number of seconds from 0; an argparse type."""
    return _number(text, float, 0.0, "a number of seconds, 0 or more")


def percent(text: str) -> float:
    """A percentage from 0; an argparse type."""
    return _number(text, float, 0.0, "a percentage, 0 or more")


def cosine(text: str) -> float:
    """A cosine; an argparse type."""
    return _number(text, float, -1.0, "a cosine, from -1 to 1", most=1.0)


def _number(text: str, kind: type, least: float, what: str, most: float = float("inf")) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most or value == float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value
