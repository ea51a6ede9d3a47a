"""Reading of ``.pt2`` files without running what stands in them.

PyTorch's reader runs code of the file in three places: it unpickles weights, constants and example inputs
with ``weights_only=False`` (at once, or when the safe way fails), unpickles objects that are no tensors, and
hands the expressions of symbolic sizes to ``sympy.sympify``, which evaluates them.
"""

from __future__ import annotations

import ast
import contextlib
import json
import lzma
import re
import struct
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from hetero_tvm.errors import ModelError, shortened

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
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow"})
_LITERALS = frozenset({"Integer", "Float", "Rational"})
_MOST_BITS = 1 << 17
"""Length of the longest number that an expression may come to: SymPy computes them while it reads."""
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
_PLENTY, _RATIO = 64 << 20, 20
"""Bytes that any archive may unpack to, and how many times its own size beyond."""
_MOST_MEMBERS = 200_000
_LINK = 0o12
"""Kind of a symbolic link, in the upper bits of a member's mode."""

UNREADABLE = (
    OSError,
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    ValueError,
    LookupError,
)
"""Errors of reading an archive that is damaged or encrypted, names that are no UTF-8 included."""


def refuse_archive(path: Path) -> None:
    """Refuse an archive that would unpack to far more than it is, or that two readers may read differently.

    PyTorch writes no compressed members, and its reader takes names that differ in case for one.  What is no
    archive at all is told by others.

    Raises
    ------
    ModelError : names what was found.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except UNREADABLE:
        return
    problems = []
    unpacked, most = sum(member.file_size for member in members), _PLENTY + _RATIO * path.stat().st_size
    if unpacked > most:
        problems.append(f"its members unpack to {unpacked:,} bytes; the bound for this file is {most:,}")
    if len(members) > _MOST_MEMBERS:
        problems.append(f"it has {len(members):,} members; the bound is {_MOST_MEMBERS:,}")
    counts = Counter(member.filename.casefold() for member in members)
    problems += [f"{count} members are called {name!r}" for name, count in counts.items() if count > 1]
    for member in members:
        if member.filename.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", member.filename):
            problems.append(f"member {member.filename!r} lies outside of the archive")
        elif member.external_attr >> 28 == _LINK:
            problems.append(f"member {member.filename!r} is a link")
    if problems:
        raise ModelError(
            f"{path} is an archive that PyTorch did not write",
            problems=shortened(problems),
            hint="Save the program again with torch.export.save.",
        )


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
            elif name.lower().endswith(".json"):
                try:
                    text = archive.read(name)
                except UNREADABLE as error:  # PyTorch's reader may take what Python's does not
                    raise ModelError(
                        f"{path} is damaged: member {name!r} cannot be read: {error}",
                        hint="Save the program again with torch.export.save.",
                    ) from error
                try:
                    document = json.loads(text)
                except RecursionError:  # PyTorch's reader may have more of the stack left
                    problems.append(f"{name}: JSON that is nested too deeply to be looked at")
                    continue
                except ValueError:  # what is no JSON is told by the reader
                    continue
                problems += [
                    f"{name}: expression {text[:60]!r}"
                    for text in _expressions(document)
                    if not is_size(text)
                ]
    if problems:
        raise _untrusted(path, problems)


def _expressions(document: Any) -> Iterator[str]:
    """Texts that stand under ``expr_str``, at any depth, also in JSON that is a string of JSON."""
    stack = [(document, 0)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, dict):
            if "expr_str" in value:
                yield str(value["expr_str"])
            stack += [(inner, depth) for inner in value.values()]
        elif isinstance(value, list):
            stack += [(inner, depth) for inner in value]
        elif isinstance(value, str) and "expr_str" in value:
            try:
                stack.append((json.loads(value), depth + 1))
            except RecursionError:
                yield value
            except ValueError:  # plain text
                continue


def is_size(text: str) -> bool:
    """Whether a text is arithmetic on symbols and numbers, as the sizes of a program are.

    Towers of powers and long shifts are none: their numbers would take all time and memory.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        plain = all(_is_arithmetic(node, id(node) in called) for node in ast.walk(tree))
        return plain and _bits(tree) <= _MOST_BITS
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False


def _is_arithmetic(node: ast.AST, is_called: bool) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _CALLS
    if isinstance(node, ast.Name):
        return is_called or _NAME.fullmatch(node.id) is not None
    if isinstance(node, ast.Constant):
        plain = isinstance(node.value, int | float) or node.value is None
        return plain or (isinstance(node.value, str) and _TEXT.fullmatch(node.value) is not None)
    if isinstance(node, ast.BinOp):  # texts and tuples times a number are as long as that says
        return not any(_is_sequence(operand) for operand in (node.left, node.right))
    return isinstance(node, _PLAIN)


def _is_sequence(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "Tuple"
    return isinstance(node, ast.Tuple) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _bits(node: ast.AST) -> float:
    """Upper bound on the bits of the numbers that an expression comes to; a symbol counts as one."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, int):
            return node.value.bit_length()
        _, _, exponent = str(node.value).lower().partition("e")
        if exponent.lstrip("+-").isdecimal():  # a whole number is as long as that, where it is rounded
            return 4 * len(str(node.value)) + 4 * abs(float(exponent))
        return float("inf") if node.value in (float("inf"), "inf") else 4 * len(str(node.value))
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
    if name == "Symbol":
        return 1
    operands: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call):
        operands = [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.BinOp):
        operands = [node.left, node.right]
        name = {ast.Pow: "Pow", ast.LShift: "LShift"}.get(type(node.op))
    if name == "Float" and any(_magnitude(k.value) > _MOST_BITS for k in node.keywords):
        return float("inf")  # of so many digits
    if name in _POWERS or name == "LShift":
        if len(operands) != 2 or isinstance(node, ast.Call) and len(node.args) != 2:
            return float("inf")
        base, times = _bits(operands[0]), _magnitude(operands[1])
        return base + times if name == "LShift" else max(1.0, base) * max(1.0, times)
    return sum(_bits(operand) for operand in operands) or isinstance(node, ast.Name)


def _magnitude(node: ast.AST) -> float:
    """Upper bound on the absolute value of an exponent."""
    if isinstance(node, ast.UnaryOp):
        return _magnitude(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LITERALS:
        return _magnitude(node.args[0]) if node.args else float("inf")
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
        return abs(float(node.value if len(str(node.value)) < 40 else "inf"))
    return 2.0 ** min(_bits(node), 64)


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
