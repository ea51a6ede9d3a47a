"""Tables and plots of ``benchmarks/README.md`` and the first pages, from the files in ``results/``.

    python -m benchmarks.tables            # rewrite what stands between the marks, and the plots
    python -m benchmarks.tables --check    # end with status 1 where a table or plot is not that of its files

A mark is a comment, ``table KIND FILE ...`` or ``plot FILE SUITE``; what was made from it ends at the comment
``end``.  Kinds are the functions in ``benchmarks/table_kinds.py``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import table_kinds
from benchmarks.plots import bars

README = Path(__file__).parent / "README.md"
FIRST_PAGES = tuple(Path(__file__).parents[1] / name for name in ("README.md", "README.zh-CN.md"))
RESULTS = Path(__file__).parent / "results"
_MARK = re.compile(r"<!-- (table|plot) ([^>]*?) -->\n.*?<!-- end -->", re.DOTALL)


def made(text: str, results: Path = RESULTS) -> tuple[str, dict[str, str]]:
    """The page with every marked part written anew, and plots by file name.

    Raises
    ------
    ValueError : a mark names a kind or a file that is not there.
    """
    plots: dict[str, str] = {}

    def part(match: re.Match[str]) -> str:
        what, arguments = match[1], match[2].split()
        if what == "table":
            kind, files, rest = arguments[0], *_files(arguments[1:])
            if kind not in table_kinds.KINDS:
                raise ValueError(f"no table is called {kind}: there are {', '.join(table_kinds.KINDS)}")
            content = table_kinds.KINDS[kind](*(_read(results / file) for file in files), *rest)
        else:
            file, suite = arguments
            name = f"{Path(file).stem}-{suite}.svg"
            plots[name] = bars(_read(results / file), suite)
            content = f"![{suite}: time of other runtimes by ours](results/{name})"
        return f"<!-- {what} {match[2]} -->\n{content}\n<!-- end -->"

    return _MARK.sub(part, text), plots


def _files(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    files = [argument for argument in arguments if argument.endswith(".json")]
    return files, [argument for argument in arguments if argument not in files]


def _read(path: Path) -> Any:
    if not path.exists():
        raise ValueError(f"there is no {path}")
    return json.loads(path.read_text())


def show(document: Mapping[str, Any]) -> str:
    """All suites of a results file as text."""
    suites = dict.fromkeys(row["suite"] for row in document["rows"])
    parts = [f"{suite}\n\n{table_kinds.suite_table(document, suite)}" for suite in suites]
    return "\n\n".join([table_kinds.facts_of(document), *parts])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--show", type=Path, metavar="FILE", help="only print a file of benchmarks/all.py")
    options = parser.parse_args(argv)
    if options.show:
        print(show(_read(options.show)))
        return 0
    page, plots = made(README.read_text())
    wanted = {README: page, **{RESULTS / name: plot for name, plot in plots.items()}}
    wanted.update({first: made(first.read_text())[0] for first in FIRST_PAGES})
    old = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    stale = [path for path in RESULTS.glob("*.svg") if path not in wanted]
    if options.check:
        for path in (*old, *stale):
            print(f"{path} is not that of its results: python -m benchmarks.tables", file=sys.stderr)
        return int(bool(old or stale))
    for path in old:
        path.write_text(wanted[path])
        print(f"wrote {path}")
    for path in stale:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
