"""Reading of ``.pt2`` files without running what stands in them.

PyTorch's reader runs code of the file in three places: it unpickles weights, constants and example inputs
with ``weights_only=False`` (at once, or when the safe way fails), unpickles objects that are no tensors, and
hands the expressions of symbolic sizes to ``sympy.sympify``, which evaluates them.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from hetero_tvm.errors import ModelError

_OBJECTS = re.compile(r"(^|/)constants/(custom_obj|opaque_obj)_")
_CALLS = frozenset(
    """
    Symbol Integer Float Rational Add Mul Pow Mod Max Min Abs floor ceiling Eq Ne Equality Unequality
    GreaterThan LessThan StrictGreaterThan StrictLessThan And Or Not Piecewise ExprCondPair Tuple
    FloorDiv ModularIndexing Where PythonMod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift
    PowByNatural FloatPow FloatTrueDiv IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat
    TruncToInt RoundToInt RoundDecimal ToFloat Identity
    """.split()
)
"""Functions that expressions of sizes are made of: SymPy's own, and those of ``torch.utils._sympy``."""
_NAME = re.compile(r"[A-Za-z]+\d*|true|false|True|False|oo|zoo|nan|int_oo")
_TEXT = re.compile(r"[\w.+-]*")
_PLAIN = (
    ast.Expression,
    ast.Load,
    ast.Tuple,
    ast.keyword,
    ast.UnaryOp,
    ast.BinOp,
    ast.Compare,
    ast.BoolOp,
    ast.unaryop,
    ast.operator,
    ast.cmpop,
    ast.boolop,
)
_LOCK = threading.Lock()


def refuse_code(path: Path) -> None:
    """Refuse an archive whose expressions or objects PyTorch could only read by running them.

    Raises
    ------
    ModelError : names what was found.
    """
    problems = []
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if _OBJECTS.search(name):
                problems.append(f"{name}: an object that is no tensor")
            elif name.endswith(".json"):
                with contextlib.suppress(ValueError, RecursionError):  # what is no JSON is told by the reader
                    document = json.loads(archive.read(name))
                    problems += [
                        f"{name}: expression {text[:60]!r}"
                        for text in _expressions(document, 0)
                        if not is_size(text)
                    ]
    if problems:
        raise _untrusted(path, problems)


def _expressions(value: Any, depth: int) -> Iterator[str]:
    """Texts that stand under ``expr_str``, also in JSON that is a string of JSON."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "expr_str":
                yield str(inner)
            yield from _expressions(inner, depth)
    elif isinstance(value, list):
        for inner in value:
            yield from _expressions(inner, depth)
    elif isinstance(value, str) and depth < 3 and "expr_str" in value:
        with contextlib.suppress(ValueError):
            yield from _expressions(json.loads(value), depth + 1)


def is_size(text: str) -> bool:
    """Whether a text is arithmetic on symbols and numbers, as the sizes of a program are."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return all(_is_arithmetic(node, id(node) in called) for node in ast.walk(tree))


def _is_arithmetic(node: ast.AST, is_called: bool) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _CALLS
    if isinstance(node, ast.Name):
        return is_called or _NAME.fullmatch(node.id) is not None
    if isinstance(node, ast.Constant):
        plain = isinstance(node.value, int | float) or node.value is None
        return plain or (isinstance(node.value, str) and _TEXT.fullmatch(node.value) is not None)
    return isinstance(node, _PLAIN)


@contextlib.contextmanager
def only_tensors(torch: ModuleType, path: Path) -> Iterator[None]:
    """While open, ``torch.load`` reads tensors alone; a :class:`ModelError` tells what was refused."""
    import pickle

    original = torch.load
    refused: list[str] = []

    def load(*args: Any, **options: Any) -> Any:
        try:
            return original(*args, **{**options, "weights_only": True})
        except pickle.UnpicklingError as error:
            refused.append(next(iter(str(error).splitlines()), "a pickle"))
            raise

    with _LOCK:
        torch.load = load
        try:
            yield
        except Exception as error:
            if refused:
                raise _untrusted(path, refused[:1]) from error
            raise
        finally:
            torch.load = original


def _untrusted(path: Path, problems: list[str]) -> ModelError:
    return ModelError(
        f"{path} holds what PyTorch can only read by running it",
        problems=problems[:8],
        hint="--trust (trust=True in Python) reads it all the same: only for files that you made yourself",
    )
