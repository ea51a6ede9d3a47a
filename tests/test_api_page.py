"""The page of the API is what docstrings say: ``python -m tests.test_api_page`` writes it anew."""

import importlib
import inspect
import re

import hetero_tvm
from tests.import_graph import ROOT

PAGE = ROOT / "docs" / "api.md"
HEAD = """# API

Written from docstrings (`python -m tests.test_api_page`).  Commands have [a page of their own](commands.md).
"""
VERBS = sorted(set(hetero_tvm.__all__) - {"HeteroTVMError"})
SECTIONS = {
    "The verbs": [f"hetero_tvm:{name}" for name in VERBS],
    "What they give": [
        "hetero_tvm.frontend.signature:ImportedModel",
        "hetero_tvm.compile.optimize:OptimizedModel",
        "hetero_tvm.relax_passes.rewriting.rule:Report",
        "hetero_tvm.api:TunedModel",
        "hetero_tvm.search.outcome:TuneReport",
        "hetero_tvm.compile.build:BuiltModel",
        "hetero_tvm.memory.model_plan:MemoryPlan",
        "hetero_tvm.runtime.library:Library",
        "hetero_tvm.runtime.sessions:Session",
    ],
    "PyTorch": ["hetero_tvm.torch:compile", "hetero_tvm.torch:CompiledModule"],
    "Extending": [
        "hetero_tvm.relax_passes.rewriting.rule:Rule",
        "hetero_tvm.schedules.base:DesignSpace",
        "hetero_tvm.schedules.base:Knob",
        "hetero_tvm.targets.base:Target",
    ],
    "Errors": ["hetero_tvm.errors:HeteroTVMError"],
}


def text(thing):
    """A docstring as Markdown: sections become bold words, their entries a list."""
    found = inspect.getdoc(thing) or ""
    found = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", found).replace("``", "`")
    found = re.sub(
        r"(?m)^(>>>.*\n?(?:^(?:>>>|\.\.\.).*\n?)*)", lambda m: f"```pycon\n{m[1].rstrip()}\n```\n", found
    )
    head, *rest = re.split(r"(?m)^(\w[\w ]*)\n-{3,}\n", found)
    parts = [head.strip()]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        entries = re.sub(r"(?m)^([\w, ]+?) : ", r"- `\1`: ", body.strip())
        parts += [f"**{title}**", re.sub(r"(?m)^    ", "  ", entries)]
    return "\n\n".join(filter(None, parts))


def signature(thing, name):
    """A call as one line, without types: docstrings say what arguments are."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values() if p.name not in ("self", "cls")]
    return name + str(found.replace(parameters=bare, return_annotation=found.empty))


def members(cls):
    """Public methods and properties that a class itself defines and documents."""
    for name, value in vars(cls).items():
        value = getattr(value, "__func__", value)
        if (
            not name.startswith("_")
            and inspect.getdoc(value)
            and (inspect.isfunction(value) or isinstance(value, property))
        ):
            yield name, value


def page():
    """Text of the page."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        for path in names:
            module, _, name = path.partition(":")
            thing = getattr(importlib.import_module(module), name)
            parts.append(
                f"### `{name}`\n\n```text\n{signature(thing, f'{module}.{name}')}\n```\n\n{text(thing)}\n"
            )
            for member, value in members(thing) if inspect.isclass(thing) else ():
                called = member if isinstance(value, property) else signature(value, member)
                parts.append(f"#### `{name}.{called}`\n\n{text(value)}\n")
    return "\n".join(parts)


def test_the_page_is_what_docstrings_say():
    assert PAGE.read_text() == page(), "python -m tests.test_api_page writes it anew"


if __name__ == "__main__":
    PAGE.write_text(page())
