"""The package's import graph, read from its source: lazy imports count, nothing is imported."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "hetero_tvm"

Graph = Mapping[str, set[str]]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Dotted name -> file, for every module of the package."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Nodes of a file's syntax tree that name modules: imports, and strings with a colon.

    Several tests look for names in every file, and to parse a thousand takes seconds.
    """
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(node for node in tree if isinstance(node, ast.Import | ast.ImportFrom) or _is_pair(node))


def _is_pair(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and ":" in node.value


def imports(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """Module -> modules of the package that it imports, at its top or anywhere inside."""
    return {name: _imported(path, files) - {name} for name, path in files.items()}


def _imported(path: Path, files: Mapping[str, Path]) -> set[str]:
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            base = node.module or ""
            for alias in node.names:
                name = f"{base}.{alias.name}"
                found.add(name if name in files else base)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name in files}


def folders(graph: Graph, files: Mapping[str, Path]) -> dict[str, set[str]]:
    """Folder -> folders that its files import from; an ``__init__`` only re-exports and is left out.

    Files at the top of the package are rooms of their own.
    """

    def folder(name: str) -> str:
        parent = name if files[name].name == "__init__.py" else name.rpartition(".")[0]
        return name if parent == PACKAGE else parent

    found: dict[str, set[str]] = {}
    for name, targets in graph.items():
        if files[name].name != "__init__.py":
            here = folder(name)
            found.setdefault(here, set()).update(folder(target) for target in targets)
            found[here].discard(here)
    return found


def circles(graph: Graph) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan 1972), sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


def references(files: Iterable[tuple[str, Path]]) -> dict[str, set[str]]:
    """Module -> modules that it names in strings ``"hetero_tvm.module:name"``."""
    found: dict[str, set[str]] = {}
    for name, path in files:
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                module, colon, rest = node.value.partition(":")
                if colon and module.startswith(f"{PACKAGE}.") and rest.isidentifier():
                    found.setdefault(name, set()).add(module)
    return found
