"""Places that Python imports from, for commands and for the processes that they start.

``python -m`` puts the working folder first, before Python's own modules: a user's ``numbers.py`` or
``random.py`` there would be imported in place of Python's, by NumPy as well.  Hence this imports nothing but
``sys`` at first.
"""

from __future__ import annotations

import sys

_START = (
    "import sys; del sys.argv[0]; root = sys.argv[0]; sys.path[:] = [root, *filter(None, sys.path)]; "
    "import hetero_tvm; sys.path.append(sys.path.pop(0)); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""Program that runs a module of this package.  With ``-c`` the working folder is the empty entry."""


def command_of(module: str, *arguments: str) -> list[str]:
    """Command that runs a module of this package in a Python of its own.

    Python's modules and installed packages come before files of the working folder, unless the variable
    ``PYTHONPATH`` names it.  The package is the one that runs here, wherever that was found.
    """
    root = __file__.rpartition("/hetero_tvm/")[0] or "."
    return [sys.executable, "-c", _START, root, module, *arguments]


def put_working_folder_last() -> None:
    """Import from the working folder last where ``python -m hetero_tvm...`` put it first."""
    pairs = zip(sys.orig_argv, [*sys.orig_argv[1:], ""], strict=True)
    after = [word[2:] or next_ for word, next_ in pairs if word.startswith("-m")]
    ours = bool(after) and after[0].partition(".")[0] == "hetero_tvm"
    kept_out = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if ours and sys.argv[:1] == ["-m"] and not kept_out:  # Python is still looking for the module
        sys.path.append(sys.path.pop(0))


def refuse_stand_ins() -> None:
    """Refuse single files that would be imported in place of the packages that the compiler needs.

    Raises
    ------
    UsageError : there is such a file, as a script of the user's that is called ``onnx.py``.
    """
    from importlib.util import find_spec

    from hetero_tvm.errors import UsageError

    for name in ("numpy", "onnx", "tvm"):
        try:
            spec = find_spec(name)
        except ValueError:  # a module that a program has put together by itself
            continue
        if spec is not None and spec.origin is not None and not spec.origin.endswith("__init__.py"):
            raise UsageError(
                f"{spec.origin} is imported in place of the package {name}, which hetero_tvm needs",
                hint="give that file another name",
            )
