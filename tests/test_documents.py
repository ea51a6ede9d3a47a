"""Documents say what is so: command lines parse, Python compiles, variables and schemas are the real ones."""

import ast
import importlib
import json
import re
import shlex

import pytest

from hetero_tvm import Span, api, quantize
from hetero_tvm.__main__ import COMMANDS
from hetero_tvm.records.store import shipped_logs
from hetero_tvm.runtime.manifest import sidecar_path
from tests.frontend.onnx.helpers import text_model
from tests.import_graph import PACKAGE, ROOT
from tests.runtime.test_cpp_sessions import GROWING
from tests.selection import thorough

PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))]
PARSERS = {name: importlib.import_module(f"hetero_tvm.{name}").make_parser() for name in COMMANDS}


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def commands(path):
    """Command lines of ours in the shell blocks of a page."""
    for block in blocks(path, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.split("&&"):
                found = re.search(r"(?:-m hetero_tvm\.|(?:^|\s)hetero-tvm )(\w+)(.*)", part)
                if found and found[1] in PARSERS:
                    yield found[1], shlex.split(found[2].partition(" > ")[0], comments=True)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_command_lines_parse(path):
    for name, arguments in commands(path):
        PARSERS[name].parse_args(arguments)


def test_there_are_command_lines():
    assert len(list(commands(ROOT / "README.md"))) >= 8


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_compiles(path):
    for block in blocks(path, "python"):
        ast.parse(block)


def test_every_variable_is_documented_and_none_is_made_up():
    sources = [p for p in (ROOT / PACKAGE).rglob("*") if p.suffix in (".py", ".cc", ".c", ".h", ".in")]
    quoted = re.compile(r"\"(HETERO_TVM_[A-Z_]+)\"|defined\((HETERO_TVM_TRACE)\)")
    used = {name for p in sources for pair in quoted.findall(p.read_text()) for name in pair if name}
    page = (ROOT / "docs" / "environment.md").read_text()
    documented = set(re.findall(r"^\| `(HETERO_TVM_[A-Z_]+)`", page, re.MULTILINE))
    assert documented == used


def test_the_chinese_page_is_in_step():
    """Headings (the English words in front) and all commands."""
    english, chinese = (ROOT / name for name in ("README.md", "README.zh-CN.md"))

    def headings(path):
        return [line for line in path.read_text().splitlines() if re.match(r"#+ ", line)]

    pairs = list(zip(headings(english), headings(chinese), strict=True))
    assert all(theirs.startswith(ours) for ours, theirs in pairs)
    assert blocks(english, "sh") == blocks(chinese, "sh")


def test_schemas_hold_for_what_is_written(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs" / "schemas" / "record.schema.json").read_text())
    check = jsonschema.Draft202012Validator(schema)
    lines = [line for p in shipped_logs().glob("*.jsonl") for line in p.read_text().splitlines()]
    assert lines
    for line in lines[:2000]:
        check.validate(json.loads(line))
    with pytest.raises(jsonschema.ValidationError):
        check.validate({"key": 1})


def _plain():
    return api.import_model("zoo:minilm-l6-tiny")


def _open():
    return api.import_model("zoo:minilm-l6-tiny", shapes={"input_ids": (1, Span(8, 16))})


def _session():
    shapes = {"batch": (Span(1, 3),), "sequence": (Span(1, 6),), "past": (Span(0, 20),)}
    return api.import_model(text_model(GROWING), shapes=shapes)


def validator(name):
    schema = json.loads((ROOT / "docs" / "schemas" / f"{name}.schema.json").read_text())
    return pytest.importorskip("jsonschema").Draft202012Validator(schema)


@pytest.mark.parametrize("make", [_session, *thorough([_plain, _open])])
def test_the_schema_of_manifests(tmp_path, make):
    built = api.build_model(api.optimize_model(make(), "cpu"), use_shipped=False)
    manifest = json.loads(sidecar_path(built.export(tmp_path)).read_text())
    validator("manifest").validate(manifest)
    assert all(row["symbols"] and len(row["call_nodes"]) == row["calls"] for row in manifest["kernels"])
    assert (manifest.get("step") is not None) == (make is _session)


@pytest.mark.thorough
def test_the_schema_of_accuracy(tmp_path):
    command = ["zoo:minilm-l6-tiny", "--out", str(tmp_path), "--no-shipped-records", "-q"]
    assert quantize.main(command) == 0
    accuracy = json.loads((tmp_path / "accuracy.json").read_text())
    validator("accuracy").validate(accuracy)
    properties = validator("accuracy").schema["properties"]
    assert set(accuracy) == set(properties), "the schema names everything that is written"
    validator("manifest").validate(json.loads((tmp_path / "model.manifest.json").read_text()))
