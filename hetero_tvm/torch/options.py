"""Options of the backend: what ``torch.compile(..., options={...})`` may say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hetero_tvm.errors import UsageError
from hetero_tvm.host.folders import user_cache
from hetero_tvm.targets.precisions import canonical_precision

FROZEN, INPUTS = "frozen", "inputs"
EAGER, RAISE = "eager", "raise"
CACHE_BYTES_VARIABLE = "HETERO_TVM_CACHE_BYTES"
_CACHE_BYTES = 8 << 30


def _cache_bytes() -> int:
    text = os.environ.get(CACHE_BYTES_VARIABLE, "")
    if text and not text.isdecimal():
        raise UsageError(f"{CACHE_BYTES_VARIABLE}={text!r} is no number of bytes")
    return int(text) if text else _CACHE_BYTES


@dataclass(frozen=True)
class Options:
    """Choices that a user may make for the backend.

    Parameters
    ----------
    target : ``cpu`` (this machine) or ``cpu:NAME``.
    precision : as in :func:`hetero_tvm.optimize_model`.
    parameters : ``frozen`` packs parameters into the library, until one of them changes; ``inputs`` reads
        them at every call.
    refused : ``eager`` lets PyTorch run what cannot be compiled and warns; ``raise`` raises the reason.
    check : compare each new library with PyTorch in float64 before it is used.
    shapes : most sets of shapes that are kept compiled for one graph of open sizes.
    recompute : let a backward graph compute cheap values again instead of keeping them from the forward one.
    cache : folder of compiled graphs; ``None`` for the user's cache folder.
    cache_bytes : bound of that folder; the graphs that were used longest ago make room.
    logs : folder of tuning records; ``None`` for the user's.
    on_event : called with a dictionary for each graph that was compiled, found in the cache or refused.
    """

    target: str = "cpu"
    precision: str | None = None
    parameters: str = FROZEN
    refused: str = EAGER
    check: bool = True
    shapes: int = 16
    recompute: bool = True
    cache: str | os.PathLike[str] | None = None
    cache_bytes: int | None = None
    logs: str | os.PathLike[str] | None = None
    on_event: Callable[[dict[str, Any]], None] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """Read a dictionary of options.

        Raises
        ------
        UsageError : lists every unknown name and wrong value.
        """
        given = dict(given or {})
        known = {field.name for field in fields(cls)}
        problems = [f"{name}: there is no such option" for name in given if name not in known]
        for name, allowed in (("parameters", (FROZEN, INPUTS)), ("refused", (EAGER, RAISE))):
            if name in given and given[name] not in allowed:
                problems.append(f"{name}={given[name]!r}: it is {' or '.join(map(repr, allowed))}")
        for name in ("check", "recompute"):
            if name in given and not isinstance(given[name], bool):
                problems.append(f"{name}={given[name]!r}: it is True or False")
        for name in ("shapes", "cache_bytes"):
            value = given.get(name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
            if value is not None and not whole:
                problems.append(f"{name}={value!r}: it is a whole number of at least 1")
        target = given.get("target", "cpu")
        if not isinstance(target, str) or target.partition(":")[0] != "cpu":
            problems.append(
                f"target={target!r}: tensors of a graph lie on the CPU; it is 'cpu' or 'cpu:NAME'"
            )
        if given.get("precision") is not None:
            try:
                canonical_precision(str(given["precision"]))
            except UsageError as error:
                problems.append(f"precision={given['precision']!r}: {error.hint or error}")
        if given.get("on_event") is not None and not callable(given["on_event"]):
            problems.append("on_event: it is a function of a dictionary")
        if problems:
            raise UsageError(
                "wrong options for the backend hetero_tvm",
                problems=problems,
                hint=f"options are: {', '.join(sorted(known))}",
            )
        return cls(**given)

    @property
    def folder(self) -> Path:
        """Folder of compiled graphs."""
        if self.cache is not None:
            return Path(self.cache).expanduser()
        if chosen := os.environ.get("HETERO_TVM_CACHE"):
            return Path(chosen).expanduser() / "torch"
        return user_cache() / "torch"

    @property
    def bound(self) -> int:
        """Bytes that the folder of compiled graphs may take."""
        return self.cache_bytes if self.cache_bytes is not None else _cache_bytes()

    def tell(self, **event: Any) -> None:
        """Pass an event to who asked for them."""
        if self.on_event is not None:
            self.on_event(event)
