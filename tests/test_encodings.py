"""Text files are UTF-8 whatever the locale of the process: names of nodes and folders are of any alphabet."""

import ast
import re
from pathlib import Path

import hetero_tvm

ROOT = Path(hetero_tvm.__file__).parent


def _without_encoding(path):
    text = path.read_text(encoding="utf-8")
    if not re.search(r"\bopen\(|read_text|write_text", text):
        return  # to parse a thousand files takes seconds
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or any(word.arg == "encoding" for word in node.keywords):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("read_text", "write_text"):
            yield node
        elif isinstance(node.func, ast.Name) and node.func.id == "open":
            modes = [one for one in node.args[1:2] if isinstance(one, ast.Constant) and "b" in one.value]
            if not modes:
                yield node


def test_text_files_name_their_encoding():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(ROOT.rglob("*.py"))
        for node in _without_encoding(path)
    ]
    assert not found, 'say encoding="utf-8"'
