"""Wishes of a client: the body of a request, checked field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_tvm.errors import InputError, UsageError
from hetero_tvm.generation.chat import RESERVED
from hetero_tvm.generation.grammar import Grammar
from hetero_tvm.generation.likelihood import MOST
from hetero_tvm.generation.sampling import Sampling
from hetero_tvm.serving.constraints import read_grammar, read_tools
from hetero_tvm.serving.tools import Tools

_MOST_CHOICES = 16
_MOST_STOPS = 16
_TEXT_PARTS = {"text", "input_text", "output_text", "refusal"}
_INSTEAD: Mapping[str, str] = {
    "functions": "it is the old form of tools: send tools, and tool_choice for function_call",
    "suffix": "texts are continued only, never filled in; write the model's own marks of the gap into prompt",
}
"""Advice on fields that are not built, where it is not to leave them out."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "documents": ([],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "typical_p": (1,),
    "mirostat": (0,),
}
"""Fields that are not built, with the values that ask for nothing."""


@dataclass(frozen=True)
class Wishes:
    """One request, read and checked.

    ``prompts`` are texts or tokens; ``messages`` a conversation; one of the two is empty.  ``logprobs`` is
    the number of likeliest tokens to tell beside each, None for no log-probabilities; ``echo`` asks for the
    prompt as well; ``template`` are further names that the chat template sees.  Of ``best_of`` texts for each
    prompt the ``choices`` likeliest are told.  ``ends`` are tokens that end a text beside the model's own,
    which do not where ``endless``, and none does before ``least_tokens``.  The text follows ``grammar``;
    ``tools`` may be called.
    """

    prompts: list[str | list[int]]
    messages: list[dict[str, Any]]
    sampling: Sampling
    max_tokens: int | None
    choices: int
    stop: list[str]
    stream: bool
    usage: bool
    logprobs: int | None = None
    echo: bool = False
    template: Mapping[str, Any] = field(default_factory=dict)
    best_of: int = 1
    ends: frozenset[int] = frozenset()
    endless: bool = False
    least_tokens: int = 0
    grammar: Grammar | None = None
    tools: Tools | None = None


def read(body: Any, chat: bool) -> Wishes:
    """Check a body of ``/v1/completions`` or ``/v1/chat/completions``.

    Raises
    ------
    InputError : lists all that is wrong with it.
    """
    if not isinstance(body, dict):
        raise InputError("the body is not a JSON object")
    fields = _Fields(body)
    prompts: list[str | list[int]] = []
    messages: list[dict[str, Any]] = []
    template: dict[str, Any] = {}
    if chat:
        messages, template = fields.messages(), fields.template()
    else:
        prompts = fields.prompts()
    echo = not chat and fields.flag("echo")
    longest = fields.number("max_tokens", int, None, 0 if echo else 1)
    if chat:
        longest = fields.number("max_completion_tokens", int, longest, 1)
    choices = fields.number("n", int, 1, 1)
    if choices > _MOST_CHOICES:
        fields.problems.append(f"n is {choices}, at most {_MOST_CHOICES} are made")
    stop = fields.stops()
    stream = fields.flag("stream")
    best_of = choices if chat else fields.best_of(choices, stream)
    grammar = read_grammar(body, fields.problems)
    tools = read_tools(body, fields.problems) if chat else None
    if not chat and body.get("tools"):
        fields.problems.append("tools is for conversations: /v1/chat/completions")
    if tools is not None and grammar is not None:
        fields.problems.append("tools and a format of the answer are asked for together: leave one of them")
    if tools is not None:
        grammar = tools.grammar
    options = body.get("stream_options") or {}
    usage = isinstance(options, dict) and options.get("include_usage") is True
    for name, neutral in _NEUTRAL.items():
        if body.get(name) is not None and body[name] not in neutral:
            fields.problems.append(f"{name} is not built: {_INSTEAD.get(name, 'leave it out')}")
    logprobs = fields.likeliest(chat)
    ends, endless = fields.tokens("stop_token_ids"), fields.flag("ignore_eos")
    least = fields.number("min_tokens", int, 0, 0)
    sampling = fields.sampling()
    if fields.problems or sampling is None:
        raise InputError("the request cannot be served", problems=fields.problems)
    if longest is None and not chat:
        longest = 16  # OpenAI's own default
    return Wishes(
        prompts,
        messages,
        sampling,
        longest,
        choices,
        stop,
        stream,
        usage,
        logprobs,
        echo,
        template,
        best_of,
        ends,
        endless,
        least,
        grammar,
        tools,
    )


class _Fields:
    """Reads fields, and notes what is wrong with them."""

    def __init__(self, body: Mapping[str, Any]):
        self._body = body
        self.problems: list[str] = []

    def number(self, name: str, kind: type, default: Any, least: float) -> Any:
        value = self._body.get(name)
        if value is None:
            return default
        right = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
        if not right or not value >= least or value == float("inf"):
            what = "whole number" if kind is int else "number"
            bound = f" from {least}" if least > -float("inf") else ""
            self.problems.append(f"{name} is {value!r}, expected a {what}{bound}")
            return default
        return kind(value)

    def best_of(self, choices: int, stream: bool) -> int:
        """``best_of``: texts of which the likeliest are told; none is known before all have ended."""
        found = self.number("best_of", int, choices, choices)
        if found > max(choices, _MOST_CHOICES):
            self.problems.append(f"best_of is {found}, at most {_MOST_CHOICES} are made")
        if stream and found > choices:
            self.problems.append("best_of cannot be told as a stream: leave one of the two out")
        return int(found)

    def tokens(self, name: str) -> frozenset[int]:
        found = self._body.get(name)
        if found is None or found == [] or _is_prompt(found) and not isinstance(found, str):
            return frozenset(found or ())
        self.problems.append(f"{name} is not a list of tokens")
        return frozenset()

    def flag(self, name: str) -> bool:
        value = self._body.get(name)
        if value not in (None, True, False):
            self.problems.append(f"{name} is {value!r}, expected true or false")
        return value is True

    def likeliest(self, chat: bool) -> int | None:
        """Number of likeliest tokens to tell: ``logprobs`` of completions, ``top_logprobs`` of chats."""
        name = "top_logprobs" if chat else "logprobs"
        given = self._body.get("logprobs")
        wanted = self.flag("logprobs") if chat else given is not None and given is not False
        if chat and not wanted and self._body.get(name) not in (None, 0):
            self.problems.append("top_logprobs is given without logprobs: true")
        count = self.number(name, int, 0, 0) if wanted else 0
        if count > MOST:
            self.problems.append(f"{name} is {count}, at most {MOST} are told")
        return count if wanted else None

    def stops(self) -> list[str]:
        found = self._body.get("stop")
        found = [] if found is None else [found] if isinstance(found, str) else found
        if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
            self.problems.append("stop is neither a text nor a list of texts")
            return []
        if len(found) > _MOST_STOPS:
            self.problems.append(f"stop has {len(found)} texts, at most {_MOST_STOPS} are looked for")
        return found

    def sampling(self) -> Sampling | None:
        values = {
            "temperature": self.number("temperature", float, 1.0, 0.0),
            "top_p": self.number("top_p", float, 1.0, 0.0),
            "top_k": self.number("top_k", int, 0, -1),
            "min_p": self.number("min_p", float, 0.0, 0.0),
            "repetition_penalty": self.number("repetition_penalty", float, None, 0.0),
            "seed": self.seed(),
            "presence_penalty": self.number("presence_penalty", float, 0.0, -2.0),
            "frequency_penalty": self.number("frequency_penalty", float, 0.0, -2.0),
            "bias": self.biases(),
        }
        values["top_k"] = max(values["top_k"], 0)  # clients of vLLM write -1 for all
        try:
            return Sampling(**values)
        except UsageError as error:
            self.problems += error.problems
            return None

    def seed(self) -> int | None:
        """``seed``: any whole number, by its lowest 64 bits; generators take none below 0."""
        found = self.number("seed", int, None, -float("inf"))
        return None if found is None else found % (1 << 64)

    def template(self) -> dict[str, Any]:
        """``chat_template_kwargs`` (``enable_thinking`` and the like) and ``reasoning_effort``."""
        found = self._body.get("chat_template_kwargs")
        found = {} if found is None else found
        if not isinstance(found, dict) or RESERVED & found.keys():
            self.problems.append(
                f"chat_template_kwargs is not an object of names beside {', '.join(sorted(RESERVED))}"
            )
            return {}
        effort = self._body.get("reasoning_effort")
        if effort is not None and not isinstance(effort, str):
            self.problems.append(f"reasoning_effort is {effort!r}, expected a word")
        return ({} if effort is None else {"reasoning_effort": effort}) | found

    def biases(self) -> tuple[tuple[int, float], ...]:
        """``logit_bias``: tokens, which JSON writes as text, and numbers from -100 to 100."""
        found = self._body.get("logit_bias")
        if found is None:
            return ()

        def is_bias(token: str, value: Any) -> bool:
            number = isinstance(value, int | float) and not isinstance(value, bool) and -100 <= value <= 100
            return number and token.isascii() and token.isdecimal() and len(token) < 10

        if not isinstance(found, Mapping) or not all(is_bias(*item) for item in found.items()):
            self.problems.append("logit_bias is not an object of tokens and numbers from -100 to 100")
            return ()
        return tuple((int(token), float(value)) for token, value in found.items())

    def prompts(self) -> list[str | list[int]]:
        found = self._body.get("prompt")
        if _is_prompt(found):
            return [found]
        if isinstance(found, list) and found and all(map(_is_prompt, found)):
            return found
        self.problems.append("prompt is neither a text, nor tokens, nor a list of these")
        return []

    def messages(self) -> list[dict[str, Any]]:
        found = self._body.get("messages")
        if not isinstance(found, list) or not found:
            self.problems.append("messages is not a list of messages")
            return []
        return [self._message(number, message) for number, message in enumerate(found)]

    def _message(self, number: int, message: Any) -> dict[str, Any]:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            self.problems.append(f"messages[{number}] is not an object with a role")
            return {}
        content, lack = message.get("content"), "is not text"
        if isinstance(content, list):  # parts, of which only text can be read
            kinds = {str(part.get("type")) for part in content if isinstance(part, dict)} - _TEXT_PARTS
            lack = f"has parts that are no text ({', '.join(sorted(kinds))})" if kinds else lack
            parts = [part.get("text", part.get("refusal")) for part in content if isinstance(part, dict)]
            content = "".join(parts) if len(parts) == len(content) and all_text(parts) else None
        elif content is None and message["role"] == "assistant":
            content = ""  # of an answer that only calls tools, or was refused; templates write null as None
        if not isinstance(content, str):
            self.problems.append(f"messages[{number}].content {lack}")
        found = {**message, "content": content}
        calls = found.pop("tool_calls", None)
        if calls:
            found["tool_calls"] = self._calls(number, calls)
        return found

    def _calls(self, number: int, calls: Any) -> list[dict[str, Any]]:
        """Calls as templates want them: arguments as objects, which JSON writes as text."""
        try:
            return [
                {**call, "function": {**call["function"], "arguments": _arguments(call["function"])}}
                for call in calls
            ]
        except (TypeError, KeyError, ValueError, RecursionError):
            self.problems.append(
                f"messages[{number}].tool_calls are not calls of functions with JSON arguments"
            )
            return []


def _arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call."""
    found = function.get("arguments")
    found = json.loads(found) if isinstance(found, str) and found.strip() else found or {}
    if not isinstance(found, dict) or not isinstance(function["name"], str):
        raise ValueError("no object of arguments")
    return found


def all_text(parts: Sequence[Any]) -> bool:
    """Whether all are text."""
    return all(isinstance(part, str) for part in parts)


def _is_prompt(value: Any) -> bool:
    """Whether it is a text, or tokens."""
    if isinstance(value, str):
        return True
    whole = isinstance(value, list) and bool(value)
    return whole and all(isinstance(token, int) and not isinstance(token, bool) for token in value)
