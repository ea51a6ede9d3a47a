"""Formats, grammars and tools of a request: what is read, and what is told of the rest."""

import json

import pytest

from hetero_tvm.generation.grammar import Grammar
from hetero_tvm.serving.constraints import read_grammar, read_tools

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize(
    ("body", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}, "guided_choice": []}, None),
        ({"response_format": {"type": "json_object"}}, Grammar.of_schema({"type": "object"})),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, Grammar.of_schema(SCHEMA)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
            Grammar.of_schema(SCHEMA),
        ),
        ({"guided_json": SCHEMA}, Grammar.of_schema(SCHEMA)),
        ({"guided_json": json.dumps(SCHEMA)}, Grammar.of_schema(SCHEMA)),
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"guided_choice": ["a", "ä"]}, Grammar("choice", '["a", "ä"]')),
        ({"guided_grammar": "start: /a/"}, Grammar("grammar", "start: /a/")),
        ({"grammar": 'root ::= "a"'}, Grammar("grammar", 'root ::= "a"')),
        ({"json_schema": SCHEMA}, Grammar.of_schema(SCHEMA)),
        ({"structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+")),
        ({"structured_outputs": {"json_object": True}}, Grammar.of_schema({"type": "object"})),
    ],
)
def test_grammars(body, grammar):
    problems = []
    assert read_grammar(body, problems) == grammar and not problems


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"response_format": "json"}, "response_format cannot be read"),
        ({"response_format": {"type": "xml"}}, "response_format cannot be read"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format cannot be read"),
        ({"guided_json": "{"}, "guided_json is not a JSON schema"),
        ({"guided_choice": ["a", 3]}, "guided_choice is not a list of texts"),
        ({"guided_regex": 5}, "guided_regex is not text"),
        ({"structured_outputs": []}, "structured_outputs is not an object"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "several grammars"),
    ],
)
def test_grammars_that_cannot_be_read(body, problem):
    problems = []
    read_grammar(body, problems)
    assert len(problems) == 1 and problem in problems[0]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [(None, None), ("auto", None), ("required", ""), ({"type": "function", "function": {"name": "g"}}, "g")],
)
def test_tools(choice, wanted):
    problems = []
    tools = read_tools({"tools": [TOOL, OTHER], "tool_choice": choice}, problems)
    assert not problems and (tools.wanted, len(tools.listed)) == (wanted, 2)


def test_no_tools():
    problems = []
    for body in ({}, {"tools": [], "tool_choice": "auto"}, {"tools": [TOOL], "tool_choice": "none"}):
        assert read_tools(body, problems) is None
    assert not problems


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"tools": [{}]}, "tools is not a list of"),
        ({"tools": [{"type": "web_search"}]}, "tools is not a list of"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "tools is not"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "h"}}}, "the function of a tool (f)"),
        ({"tools": [TOOL], "tool_choice": "f"}, "the function of a tool (f)"),
        ({"tool_choice": "required"}, "there are no tools"),
    ],
)
def test_tools_that_cannot_be_read(body, problem):
    problems = []
    assert read_tools(body, problems) is None
    assert len(problems) == 1 and problem in problems[0]
