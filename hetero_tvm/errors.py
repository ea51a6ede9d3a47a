"""The one error family of the project.

Every error that a user can cause, or must act on, is a :class:`HeteroTVMError`.  A message
answers three questions: what is wrong, where (node, operator, shape, file), what to do next.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence


class HeteroTVMError(Exception):
    """Base of all errors raised on purpose by hetero_tvm.

    Parameters
    ----------
    message : what is wrong, and where.
    hint : what to do next; printed on a line of its own.
    problems : single findings, listed one per line under the message.
    """

    def __init__(self, message: str, *, hint: str | None = None, problems: Iterable[str] = ()):
        self.message = message
        self.hint = hint
        self.problems = tuple(problems)
        lines = [message, *(f"  - {problem}" for problem in self.problems)]
        if hint:
            lines.append(f"What to do: {hint}")
        super().__init__("\n".join(lines))


class UsageError(HeteroTVMError):
    """An option or argument is wrong."""


class ModelError(HeteroTVMError):
    """The model file is broken, hostile, or cannot be imported."""


class UnsupportedOperatorError(ModelError):
    """The model uses operators that have no importer; lists all of them."""


class ShapeError(ModelError):
    """A shape is missing, symbolic where it must be fixed, or contradictory."""


class TargetError(HeteroTVMError):
    """The target is unknown, or this machine cannot serve it."""


class NativeBuildError(HeteroTVMError):
    """Compiling one of the C++ sources that ship with the package failed."""


class RecordError(HeteroTVMError):
    """A tuning record or its file cannot be read or does not fit."""


class TuningError(HeteroTVMError):
    """The search could not go on (workers cannot start, no valid candidate, ...)."""


class BuildError(HeteroTVMError):
    """Lowering, code generation or linking failed."""


class AccuracyError(HeteroTVMError):
    """The compiled model's numbers are beyond the tolerance; names the kernel at fault."""


class LibraryError(HeteroTVMError):
    """An exported library cannot be loaded here (missing, damaged, other ISA, other version)."""


def of_ending_python(
    error: Exception,
    ending: Callable[[], bool] = sys.is_finalizing,
    own: type[HeteroTVMError] = HeteroTVMError,
    made: type[LibraryError] = LibraryError,
) -> LibraryError | None:
    """Error of a call that failed because the interpreter ends; None where that is not the reason.

    Python then imports nothing, and takes the names from modules, this one too: what this needs are its
    defaults, and callers keep it in a class.
    """
    if isinstance(error, own) or not ending():
        return None
    hint = "call it before, or in a function registered with atexit"
    return made(f"Python is ending, and a call needs parts that are gone: {error}", hint=hint)


class InputError(HeteroTVMError):
    """A loaded library was called with wrong names, shapes or dtypes."""


class CapacityError(HeteroTVMError):
    """A text does not fit into a language model's context, or its keys and values into the cache."""


class BusyError(HeteroTVMError):
    """A server has as many texts as it takes, or is about to end."""


def last_line(error: BaseException) -> str:
    """Last line that an error of another library says, which is where TVM's name the cause; else its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def expect(
    value: object, kinds: tuple[type, ...], what: str, hints: Mapping[type, str] | None = None
) -> None:
    """Refuse an argument of another kind.

    Parameters
    ----------
    what : what the function takes, as the beginning of a sentence.
    hints : what to do, for kinds of arguments that are easily confused with the right one.

    Raises
    ------
    UsageError : ``value`` is of none of ``kinds``.
    """
    if not isinstance(value, kinds):
        hint = next((hint for kind, hint in (hints or {}).items() if isinstance(value, kind)), None)
        kind = "None" if value is None else f"{type(value).__module__}.{type(value).__qualname__}"
        raise UsageError(f"{what}, not {kind.removeprefix('builtins.')}", hint=hint)


def expect_number(value: object, kinds: tuple[type, ...], what: str) -> None:
    """Refuse an argument of another kind, as :func:`expect` does, and truth values, which are numbers too."""
    expect(value, kinds, what)
    if isinstance(value, bool):
        raise UsageError(f"{what}, not {value}")


def shortened(problems: Sequence[str], most: int = 12) -> list[str]:
    """The first problems, and how many more there are."""
    more = [f"and {len(problems) - most} more"] if len(problems) > most else []
    return [*problems[:most], *more]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` for the names of ``known`` that are spelled like ``name``; empty: none is."""
    by_lower = {one.lower().lstrip("-"): one for one in known}  # dashes make all options look alike
    found = difflib.get_close_matches(name.lower().lstrip("-"), by_lower, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(repr(by_lower[one]) for one in found)}?" if found else ""


def unknown_name(what: str, name: str, known: Iterable[str]) -> tuple[str, str]:
    """Message and hint for a name that is none of ``known``: the closest ones first, then all of them."""
    known = list(known)
    guess = did_you_mean(name, known)
    return f"{what} {name!r}", " ".join(filter(None, [guess, f"known: {', '.join(known)}"]))
