"""A docstring names its subject: it begins with a noun or a verb, not with a word that stands for one."""

import ast

from tests.import_graph import ROOT, modules

# "Of its kernel in the region." or "Those that an attribute holds." leave the reader to guess what is meant.
SUBJECTLESS = frozenset(
    """
    Of What Where So Those By How Why From To As In With For On At Also All Such Which That Not It Its They
    Their Has Is Are Under Between Whoever Who When If Than And But Same Like Whose
    """.split()
)


def texts(path):
    """Docstrings and the strings behind attributes, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        for statement in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
            value = getattr(statement, "value", None)
            if (
                isinstance(statement, ast.Expr)
                and isinstance(value, ast.Constant)
                and isinstance(value.value, str)
            ):
                yield statement.lineno, value.value.strip()


def test_docstrings_name_their_subject():
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in modules().values()
        for line, text in texts(path)
        if text and text.split()[0].rstrip(",:.") in SUBJECTLESS
    ]
    assert bad == []
