"""Names of activations, some of which hold a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

Value = TypeVar("Value")
_LEAKY = "leaky_relu_"
_WRITTEN = str.maketrans(".-", "pm")
_READ = str.maketrans("pm", ".-")


def leaky_name(slope: float) -> str | None:
    """Name of the leaky ReLU of a slope between 0 and 1 (``leaky_relu_0p1``); None for another slope."""
    return _LEAKY + str(np.float32(slope)).translate(_WRITTEN) if 0 < slope < 1 else None


class ByName(dict[str, Value]):
    """Forms of activations by their names, leaky ReLUs of any slope among them.

    Parameters
    ----------
    known : those without a parameter.
    leaky : the form of a leaky ReLU of a slope.
    """

    def __init__(self, known: Mapping[str, Value], leaky: Callable[[float], Value]):
        super().__init__({**known, f"{_LEAKY}0p1": leaky(0.1)})
        self._leaky = leaky

    def __missing__(self, name: str) -> Value:
        if not name.startswith(_LEAKY):
            raise KeyError(name)
        return self._leaky(float(name.removeprefix(_LEAKY).translate(_READ)))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and name.startswith(_LEAKY))
