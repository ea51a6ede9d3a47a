"""Cost of a call on a device that counts its own time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DeviceCost:
    """Cost of one call as a device counted it.

    Parameters
    ----------
    kind : kind of the device, as in ``--target``.
    seconds : time on the device by its own clock.
    call_seconds : time on the host inside the device's calls; the rest of a call is kernels on the host.
    counters : counts of the device by name, in the units that the names tell.
    summary : one line for people.
    simulated : whether a simulator stands in for the device, so that wall times say nothing of it.
    """

    kind: str
    seconds: float
    call_seconds: float
    counters: dict[str, Any]
    summary: str
    simulated: bool
