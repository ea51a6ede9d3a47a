"""Tools that a client offers, and the calls of them in a model's text.

How a call is written is a matter of the model: its chat template shows it (:func:`format_of`).  Where a call
is asked for (``tool_choice``), a grammar makes the text one, in a form of our own.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hetero_tvm.generation.grammar import JSON_FORM, Grammar


class Call(NamedTuple):
    """A call of a tool; ``arguments`` are JSON text."""

    name: str
    arguments: str

    def to_json(self) -> dict[str, Any]:
        """The call in OpenAI's words.  Its name is one that Mistral's templates take, which count letters."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": secrets.token_hex(5)[:9], "type": "function", "function": function}


@dataclass(frozen=True)
class Tools:
    """Tools of a request.

    Parameters
    ----------
    listed : as the client gives them, which templates show to the model.
    wanted : name of the tool to call; ``""`` where any has to be called, None where the model decides.
    several : whether a text may call more than one.
    """

    listed: tuple[Mapping[str, Any], ...]
    wanted: str | None = None
    several: bool = True

    def parameters(self, name: str) -> Mapping[str, Any] | None:
        """JSON schema of the arguments of a tool; None where there is no such tool."""
        found = [tool["function"] for tool in self.listed if tool["function"]["name"] == name]
        return (found[0].get("parameters") or {"type": "object"}) if found else None

    @property
    def grammar(self) -> Grammar | None:
        """Texts that are the calls asked for; None where the model decides."""
        if self.wanted is None:
            return None
        if self.wanted:
            return Grammar.of_schema(self.parameters(self.wanted))
        # Each schema is a document of its own, so that references in it find what they name.
        rules = ["start: " + ('"[" call (", " call)* "]"' if self.several else '"[" call "]"')]
        names = [tool["function"]["name"] for tool in self.listed]
        rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(names))))
        for number, name in enumerate(names):
            head = json.dumps(f'{{"name": {json.dumps(name)}, "arguments": ')
            schema = json.dumps({**(self.parameters(name) or {}), "x-guidance": JSON_FORM})
            rules += [f'call_{number}: {head} arguments_{number} "}}"', f"arguments_{number}: %json {schema}"]
        return Grammar("lark", "\n".join(rules))

    def read(self, text: str) -> list[Call]:
        """Calls of a text that follows :attr:`grammar`; none of one that was cut off."""
        try:
            found = json.loads(text)
        except ValueError:
            return []
        if self.wanted:
            return [Call(self.wanted, text.strip())]
        return [Call(one["name"], json.dumps(one["arguments"], ensure_ascii=False)) for one in found]


@dataclass(frozen=True)
class CallFormat:
    """Way in which a family of models writes calls.

    Parameters
    ----------
    begin : text that a call begins with.
    marks : further texts of calls, which may be tokens that mark structure.
    read : calls of a text from ``begin`` on; none where it is not readable.
    """

    begin: str
    marks: tuple[str, ...]
    read: Callable[[str, Tools], list[Call]]


def format_of(template: str) -> CallFormat | None:
    """Form of calls of models that a chat template is for; None where it is unknown."""
    return next((form for signs, form in _FORMATS if all(sign in template for sign in signs)), None)


class CallReader:
    """Text of an answer that comes in pieces, told up to its first call.

    Parameters
    ----------
    form : way of the model; None where the whole text is calls that a grammar asks for, or none is known.
    """

    def __init__(self, tools: Tools, form: CallFormat | None):
        self._tools, self._form = tools, form
        self._text, self._told = "", 0

    def add(self, piece: str) -> str:
        """Text that is no part of a call for sure."""
        self._text += piece
        return self._until(self._begin())

    def finish(self) -> tuple[str, list[Call]]:
        """Text that is left, and the calls."""
        begin = self._begin()
        rest = self._text[begin:]
        if self._tools.wanted is not None:
            calls = self._tools.read(rest)
        else:
            calls = [] if self._form is None else self._form.read(rest, self._tools)
        if calls:
            return self._until(begin).rstrip(), calls
        return self._until(len(self._text)), []

    def _until(self, place: int) -> str:
        told, self._told = self._text[self._told : place], max(place, self._told)
        return told

    def _begin(self) -> int:
        """Place of the first letter that a call has, or may have when more comes."""
        if self._tools.wanted is not None:
            return 0
        if self._form is None:
            return len(self._text)
        if not self._form.begin:  # the whole text is a call or none
            text = self._text.lstrip()
            is_call = text[:1] in ("", "{") or text.startswith(_PYTHON) or _PYTHON.startswith(text)
            return 0 if is_call else len(self._text)
        place = self._text.find(self._form.begin)
        if place < 0:
            held = range(min(len(self._form.begin) - 1, len(self._text)), 0, -1)
            cut = next((n for n in held if self._text.endswith(self._form.begin[:n])), 0)
            place = len(self._text) - cut
        return len(self._text[:place].rstrip())


_PYTHON = "<|python_tag|>"
_NAME_KEYS, _ARGUMENT_KEYS = ("name", "tool_name"), ("arguments", "parameters")


def _objects(text: str) -> Iterator[Any]:
    """JSON objects in a text, those of its lists as well."""
    decoder, at = json.JSONDecoder(), 0
    while (found := re.compile(r"[{\[]").search(text, at)) is not None:
        try:
            value, at = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            at = found.start() + 1
            continue
        yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict))


def _json_calls(text: str, tools: Tools) -> list[Call]:
    """Calls as JSON objects: Hermes, Qwen, Llama, Phi-4, Granite, Command R, Mistral before its third."""
    calls = []
    for value in _objects(text):
        name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), None)
        arguments = next((value[key] for key in _ARGUMENT_KEYS if key in value), {})
        if name is not None and tools.parameters(name) is not None:
            calls.append(_call(name, arguments))
    return calls


def _named_calls(text: str, tools: Tools) -> list[Call]:
    """Calls as a name before a JSON object: Mistral (``[TOOL_CALLS]name[ARGS]{...}``), DeepSeek."""
    calls = []
    for name, rest in re.findall(
        r"([\w.-]+)\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\]|<｜tool▁sep｜>)?\s*(?=(\{.*))", text, re.S
    ):
        value = next(_objects(rest), None)
        if value is not None and tools.parameters(name) is not None:
            calls.append(_call(name, value))
    return calls


def _mistral_calls(text: str, tools: Tools) -> list[Call]:
    return _json_calls(text, tools) or _named_calls(text, tools)


def _deepseek_calls(text: str, tools: Tools) -> list[Call]:
    """``function<｜tool▁sep｜>name`` and a block of JSON; the name first since V3.1."""
    text = re.sub(r"function<｜tool▁sep｜>([\w.-]+)\s*```json", r"\1<｜tool▁sep｜>", text)
    return _named_calls(text, tools)


def _tagged_calls(text: str, tools: Tools) -> list[Call]:
    """Calls with a tag for each argument: Qwen3-Coder and GLM-4.5."""
    calls = []
    for body in re.findall(r"<tool_call>\s*(.*?)(?:</tool_call>|$)", text, re.S):
        head = re.match(r"<function=([^>]+)>|([\w.-]+)", body)
        name = (head[1] or head[2]).strip() if head else ""
        pairs = re.findall(r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>", body, re.S)
        pairs += re.findall(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", body, re.S)
        schema = tools.parameters(name)
        if schema is not None:
            calls.append(
                _call(name, {key.strip(): _value(value, schema, key.strip()) for key, value in pairs})
            )
    return calls


def _value(text: str, schema: Mapping[str, Any], name: str) -> Any:
    """An argument, which is JSON where its schema asks for no text."""
    properties = schema.get("properties")
    one = properties.get(name) if isinstance(properties, dict) else None
    if isinstance(one, dict) and one.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _call(name: str, arguments: Any) -> Call:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return Call(name, text)


_TOOL_CALL = ("<tool_call>", "</tool_call>")
_DEEPSEEK = tuple(
    f"<｜tool▁{name}｜>" for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
)
_ACTION = ("<|START_ACTION|>", "<|END_ACTION|>")
_FORMATS: Sequence[tuple[tuple[str, ...], CallFormat]] = (
    (("<tool_call>", "<function="), CallFormat("<tool_call>", _TOOL_CALL, _tagged_calls)),
    (
        ("<tool_call>", "<arg_key>"),
        CallFormat(
            "<tool_call>",
            (*_TOOL_CALL, *(f"<{end}arg_{part}>" for end in ("", "/") for part in ("key", "value"))),
            _tagged_calls,
        ),
    ),
    (("<tool_call>",), CallFormat("<tool_call>", _TOOL_CALL, _json_calls)),
    (("<|tool_call|>",), CallFormat("<|tool_call|>", ("<|tool_call|>", "<|/tool_call|>"), _json_calls)),
    (("<|tool|>",), CallFormat("<|tool_call|>", ("<|tool_call|>", "<|/tool_call|>"), _json_calls)),
    (("[TOOL_CALLS]",), CallFormat("[TOOL_CALLS]", ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), _mistral_calls)),
    (("<|START_ACTION|>",), CallFormat("<|START_ACTION|>", _ACTION, _json_calls)),
    (("Action:", "tool_name"), CallFormat("Action:", (), _json_calls)),
    (("<｜tool▁calls▁begin｜>",), CallFormat(_DEEPSEEK[0], _DEEPSEEK, _deepseek_calls)),
    (('"parameters"',), CallFormat("", (_PYTHON,), _json_calls)),
)
"""Texts that a template has, and the form of calls where it has all of them; the first that fits counts."""
