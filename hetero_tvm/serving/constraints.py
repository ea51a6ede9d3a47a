"""Fields of a request that say what texts there may be: formats, grammars, tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hetero_tvm.generation.grammar import Grammar
from hetero_tvm.serving.tools import Tools

_FORMATS = (
    'expected {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {...}}'
)
_OF_LLAMA_CPP = {"json": "json_schema", "grammar": "grammar"}
_KINDS = ("json", "regex", "choice", "grammar")


def read_grammar(body: Mapping[str, Any], problems: list[str]) -> Grammar | None:
    """Grammar that a text has to follow: ``response_format`` of OpenAI, ``guided_json`` and
    ``structured_outputs`` of vLLM, ``json_schema`` and ``grammar`` of llama.cpp."""
    found = [_of_format(body["response_format"], problems)] if body.get("response_format") is not None else []
    outputs = body.get("structured_outputs")
    if outputs is not None and not isinstance(outputs, dict):
        problems.append(f"structured_outputs is not an object with one of {', '.join(_KINDS)}")
        outputs = None
    for kind in _KINDS:
        given = {f"guided_{kind}": body.get(f"guided_{kind}")}
        given[f"structured_outputs.{kind}"] = (outputs or {}).get(kind)
        if (name := _OF_LLAMA_CPP.get(kind)) is not None:
            given[name] = body.get(name)
        for name, value in given.items():
            if value is not None and value != []:
                found.append(_of_kind(kind, name, value, problems))
    if (outputs or {}).get("json_object"):
        found.append(Grammar.of_schema({"type": "object"}))
    asked = [grammar for grammar in found if grammar is not None]
    if len(asked) > 1:
        problems.append("several grammars are asked for: leave one")
    return asked[0] if asked else None


def read_tools(body: Mapping[str, Any], problems: list[str]) -> Tools | None:
    """Tools that the model may call, or has to; None for none."""
    listed, choice = body.get("tools"), body.get("tool_choice")
    several = body.get("parallel_tool_calls") is not False
    if listed is not None and not (isinstance(listed, list) and all(map(_is_tool, listed))):
        problems.append(
            'tools is not a list of {"type": "function", "function": {"name": ..., "parameters": {...}}}'
        )
        return None
    if not listed:
        if choice not in (None, "none", "auto"):
            problems.append("tool_choice asks for a call, and there are no tools")
        return None
    if choice in (None, "auto", "required"):
        return Tools(tuple(listed), "" if choice == "required" else None, several)
    if choice == "none":
        return None
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    names = [tool["function"]["name"] for tool in listed]
    if name not in names:
        problems.append(
            f"tool_choice is neither none, auto, required, nor the function of a tool ({', '.join(names)})"
        )
        return None
    return Tools(tuple(listed), name, several)


def _is_tool(value: Any) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or value.get("type", "function") != "function":
        return False
    name, parameters = function.get("name"), function.get("parameters")
    return isinstance(name, str) and bool(name) and isinstance(parameters, dict | None)


def _of_format(value: Any, problems: list[str]) -> Grammar | None:
    """``response_format``; llama.cpp's clients give a schema beside ``json_object``."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar.of_schema(value.get("schema") or {"type": "object"})
    described = value.get("json_schema") if kind == "json_schema" else None
    schema = described.get("schema") if isinstance(described, dict) else None
    if isinstance(schema, dict):
        return Grammar.of_schema(schema)
    problems.append(f"response_format cannot be read, {_FORMATS}")
    return None


def _of_kind(kind: str, name: str, value: Any, problems: list[str]) -> Grammar | None:
    if kind == "json":
        schema = value
        if isinstance(value, str):
            try:
                schema = json.loads(value)
            except (ValueError, RecursionError):
                schema = None
        if isinstance(schema, dict):
            return Grammar.of_schema(schema)
        problems.append(f"{name} is not a JSON schema")
    elif kind == "choice":
        if isinstance(value, list) and all(isinstance(one, str) and one for one in value):
            return Grammar("choice", json.dumps(value, ensure_ascii=False))
        problems.append(f"{name} is not a list of texts")
    elif isinstance(value, str) and value:
        return Grammar("regex" if kind == "regex" else "grammar", value)
    else:
        problems.append(f"{name} is not text")
    return None
