"""Wishes of a client: the body of a request, checked field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_tvm.errors import InputError, UsageError
from hetero_tvm.generation.chat import RESERVED
from hetero_tvm.generation.likelihood import MOST
from hetero_tvm.generation.sampling import Sampling

_MOST_CHOICES = 16
_MOST_STOPS = 16
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
"""Fields that are not built, with the values that ask for nothing."""


@dataclass(frozen=True)
class Wishes:
    """One request, read and checked.

    ``prompts`` are texts or tokens; ``messages`` a conversation; one of the two is empty.  ``logprobs`` is
    the number of likeliest tokens to tell beside each, None for no log-probabilities; ``echo`` asks for the
    prompt as well; ``template`` are further names that the chat template sees.
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
    options = body.get("stream_options") or {}
    usage = isinstance(options, dict) and options.get("include_usage") is True
    for name, neutral in _NEUTRAL.items():
        if body.get(name) is not None and body[name] not in neutral:
            fields.problems.append(f"{name} is not built: leave it out")
    logprobs = fields.likeliest(chat)
    sampling = fields.sampling()
    if fields.problems or sampling is None:
        raise InputError("the request cannot be served", problems=fields.problems)
    if longest is None and not chat:
        longest = 16  # OpenAI's own default
    return Wishes(
        prompts, messages, sampling, longest, choices, stop, stream, usage, logprobs, echo, template
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
        content = message.get("content")
        if isinstance(content, list):  # parts, of which only text can be read
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "".join(parts) if len(parts) == len(content) and all_text(parts) else None
        if content is None and message.get("tool_calls"):
            self.problems.append(f"messages[{number}] calls tools, which are not built")
        elif not isinstance(content, str):
            self.problems.append(f"messages[{number}].content is not text")
        return {**message, "content": content}


def all_text(parts: Sequence[Any]) -> bool:
    """Whether all are text."""
    return all(isinstance(part, str) for part in parts)


def _is_prompt(value: Any) -> bool:
    """Whether it is a text, or tokens."""
    if isinstance(value, str):
        return True
    whole = isinstance(value, list) and bool(value)
    return whole and all(isinstance(token, int) and not isinstance(token, bool) for token in value)
