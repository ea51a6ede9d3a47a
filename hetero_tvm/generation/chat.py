"""Conversations as prompts, by the template that a checkpoint brings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from hetero_tvm.errors import InputError, LibraryError
from hetero_tvm.host.install import extra_command

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
MORE = "additional_chat_templates"
_TOOLS = "tool_use"
_TOOLS_OF_MESSAGES = re.compile(r"""message(\.tools\b|\[['"]tools['"]\])""")
_MARKS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Names that a template sees of a conversation itself."""


class ChatTemplate:
    """A chat template in Jinja, as transformers' ``apply_chat_template`` reads it.

    The template comes with the checkpoint, so it runs in Jinja's sandbox: it sees the conversation and the
    names of special tokens, and reaches nothing else.

    Parameters
    ----------
    folder : has ``chat_template.jinja``, or ``tokenizer_config.json`` with a ``chat_template``.

    Raises
    ------
    LibraryError : there is no template, it is damaged, or the package jinja2 is missing.
    """

    def __init__(self, folder: Path):
        config = _config(folder / CONFIG)
        file = folder / TEMPLATE
        source = file.read_text(encoding="utf-8") if file.is_file() else _of_config(config, "default")
        other = folder / MORE / f"{_TOOLS}.jinja"
        tool_use = other.read_text(encoding="utf-8") if other.is_file() else _of_config(config, _TOOLS)
        source = source or tool_use
        if source is None:
            raise LibraryError(
                f"{folder} has no chat template, so a conversation cannot be written as a prompt",
                hint=f"copy the checkpoint's {TEMPLATE} or {CONFIG} there, or complete plain text",
            )
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise LibraryError(
                "the package jinja2 is not installed", hint=extra_command("generate")
            ) from None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _answers()]
        )
        environment.filters["tojson"] = _to_json
        self._reads_tools = "tools" in _variables(environment, tool_use or source, TemplateError)
        environment.globals |= {"raise_exception": _refuse, "strftime_now": datetime.now().strftime}
        self._errors = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError)
        self.tools_source = tool_use or source
        """Text of the template that conversations with tools are written by."""
        self._marks = {name: _text(config[name]) for name in _MARKS if config.get(name) is not None}
        try:
            self._template = environment.from_string(source)
            self._of_tools = None if tool_use is None else environment.from_string(tool_use)
        except TemplateError as error:
            raise LibraryError(f"the chat template of {folder} is damaged: {error}") from error

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        generation: bool = True,
        options: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Text of a conversation, with the opening of the model's answer where ``generation`` asks for it.

        The role ``developer`` is ``system`` for templates that do not know it.

        ``options`` : further names that the template sees, none of :data:`RESERVED`.
        ``tools`` : functions that the model may call, in OpenAI's words.

        Raises
        ------
        InputError : the template refuses the conversation (roles that do not alternate, and the like), or has
            no place for tools.
        """
        known = "developer" in self.tools_source
        told = [
            {**message, "role": "system"}
            if message.get("role") == "developer" and not known
            else dict(message)
            for message in messages
        ]
        if tools and not self._reads_tools:
            told = self._with_tools(told, tools)
        told = [_with_arguments(message) for message in told]
        template = self._of_tools if tools and self._of_tools is not None else self._template
        try:
            return template.render(
                {
                    **self._marks,
                    **(options or {}),
                    "messages": told,
                    "tools": [dict(tool) for tool in tools]
                    if tools
                    else None,  # defined, as transformers has them: templates ask whether they are none
                    "documents": None,
                    "add_generation_prompt": generation,
                }
            )
        except self._errors as error:
            raise InputError(f"the model's chat template refuses these messages: {error}") from error

    def _with_tools(
        self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """The messages for a template that looks for tools in the first of them, as JSON (Phi-4-mini)."""
        if not _TOOLS_OF_MESSAGES.search(self.tools_source):
            raise InputError(
                "the model's chat template has no place for tools",
                hint="leave tools out, or serve a model that was trained to call them",
            )
        if not messages or messages[0].get("role") != "system":
            messages = [{"role": "system", "content": ""}, *messages]
        functions = [tool.get("function", tool) for tool in tools]
        return [{**messages[0], "tools": _to_json(functions)}, *messages[1:]]


class _Arguments(dict):
    """Arguments of a call, which are JSON text for templates that join them to text (DeepSeek)."""

    def __str__(self) -> str:
        return _to_json(self)

    def __radd__(self, before: str) -> str:
        return before + str(self)

    def __add__(self, behind: str) -> str:
        return str(self) + behind


def _with_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have :class:`_Arguments`."""
    calls = message.get("tool_calls")
    if not calls:
        return message

    def call_of(call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        if isinstance(function.get("arguments"), Mapping):
            function["arguments"] = _Arguments(function["arguments"])
        return {**call, "function": function}

    return {**message, "tool_calls": [call_of(call) for call in calls]}


def _variables(environment: Any, source: str, error: type[Exception]) -> frozenset[str]:
    """Names that a template reads from outside; none of one that is damaged, which its compilation tells."""
    from jinja2 import meta

    try:
        return frozenset(meta.find_undeclared_variables(environment.parse(source)))
    except error:
        return frozenset()


def _answers() -> type:
    """Extension for blocks ``{% generation %}``, which mark for training what a model has said."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Answers(Extension):
        tags = {"generation"}

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    return Answers


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LibraryError(f"cannot read {path}: {error}") from error
    return found if isinstance(found, dict) else {}


def _of_config(config: Mapping[str, Any], name: str) -> str | None:
    """The template of a name in a configuration; where it has one only, that is the default."""
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get(name)
    elif name == _TOOLS:
        found = None
    return found if isinstance(found, str) else None


def _text(mark: Any) -> str:
    """A special token, which is written as text or as an object with its content."""
    return str(mark.get("content", "")) if isinstance(mark, dict) else str(mark)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)
