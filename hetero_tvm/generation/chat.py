"""Conversations as prompts, by the template that a checkpoint brings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from hetero_tvm.errors import InputError, LibraryError
from hetero_tvm.host.install import extra_command

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
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
        source = file.read_text(encoding="utf-8") if file.is_file() else _of_config(config)
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
        environment.globals |= {"raise_exception": _refuse, "strftime_now": datetime.now().strftime}
        self._errors = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError)
        self._marks = {name: _text(config[name]) for name in _MARKS if config.get(name) is not None}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise LibraryError(f"the chat template of {folder} is damaged: {error}") from error

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        generation: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Text of a conversation, with the opening of the model's answer where ``generation`` asks for it.

        ``options`` : further names that the template sees, none of :data:`RESERVED`.

        Raises
        ------
        InputError : the template refuses the conversation (roles that do not alternate, and the like).
        """
        try:
            return self._template.render(
                {
                    **self._marks,
                    **(options or {}),
                    "messages": [dict(message) for message in messages],
                    "tools": None,  # defined, as transformers has them: templates ask whether they are none
                    "documents": None,
                    "add_generation_prompt": generation,
                }
            )
        except self._errors as error:
            raise InputError(f"the model's chat template refuses these messages: {error}") from error


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


def _of_config(config: Mapping[str, Any]) -> str | None:
    """The template in a configuration: one, or several by name, of which one is the default."""
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
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
