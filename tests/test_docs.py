"""Documents name files that exist."""

import re

import pytest

from tests.import_graph import PACKAGE, ROOT

EXAMPLES = ("out/", "mypackage/", f"{PACKAGE}/a/", "tests/a/")
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "benchmarks/*.md", f"{PACKAGE}/**/*.md")
    for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_is_named_is_there(document):
    """Links, and names in backticks that look like files: beside the document, in the package, or whole."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    named = re.findall(
        r"`((?:[\w.-]+/)+[\w-]+\.(?:py|cc|h|c|toml|in|json|ipynb|md)|\w+\.(?:cc|h|toml|in))`", text
    )
    places = (document.parent, ROOT, ROOT / PACKAGE)
    missing = [
        name
        for name in [*(link for link in links if link and "://" not in link), *named]
        if not any((place / name).exists() for place in places)
        and not any((ROOT / PACKAGE).rglob(name.rpartition("/")[2]) if "/" not in name else ())
        and not name.startswith(EXAMPLES)
    ]
    assert missing == []
