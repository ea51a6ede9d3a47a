"""Documents of a response, in the words of OpenAI's API."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from hetero_tvm.serving.answer import Answer, Piece, Told
from hetero_tvm.serving.tools import Call

Scores = Callable[[Sequence[Told]], dict[str, Any]]
"""Writes log-probabilities."""


class Form:
    """Documents of one response.

    Parameters
    ----------
    scores : writes the likelihoods of pieces, where they are asked for.
    told, made : texts of each prompt that the client gets, and that are generated.
    """

    def __init__(
        self,
        chat: bool,
        model: str,
        answers: Sequence[Answer],
        prompt_tokens: int,
        scores: Scores | None,
        told: int = 1,
        made: int = 1,
    ):
        self.chat, self.answers, self._prompt_tokens, self._scores = chat, answers, prompt_tokens, scores
        self._told, self._made = told, made
        self._head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12),
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, texts: Sequence[Piece]) -> dict[str, Any]:
        choices = [
            self._choice(index, answer, text) for index, (answer, text) in enumerate(self._likeliest(texts))
        ]
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": self.usage()}

    def _likeliest(self, texts: Sequence[Piece]) -> list[tuple[Answer, Piece]]:
        """The texts to tell: of those of a prompt that are the likeliest by token, best first."""
        made = list(zip(self.answers, texts, strict=True))
        if self._told == self._made:
            return made
        ranked = [
            sorted(made[first : first + self._made], key=lambda one: -one[0].likelihood)
            for first in range(0, len(made), self._made)
        ]
        return [one for of_prompt in ranked for one in of_prompt[: self._told]]

    def _choice(self, index: int, answer: Answer, text: Piece) -> dict[str, Any]:
        choice = {"index": index, "finish_reason": answer.reason, "logprobs": self._logprobs(text)}
        if not self.chat:
            return {**choice, "text": text.text}
        message: dict[str, Any] = {"role": "assistant", "content": text.text}
        if answer.calls is not None:
            begun = answer.calls.add(text.text)
            rest, calls = answer.calls.finish()
            if calls:
                message |= {"content": begun + rest or None, "tool_calls": [call.to_json() for call in calls]}
                choice["finish_reason"] = "tool_calls"
        return {**choice, "message": message}

    def piece(self, answer: Answer, piece: Piece, first: bool = False) -> dict[str, Any]:
        """Part of a text."""
        delta = ({"role": "assistant"} if first else {}) | {"content": piece.text}
        return self._chunk(answer, delta if self.chat else piece.text, None if first else piece)

    def calls(self, answer: Answer, calls: Sequence[Call]) -> dict[str, Any]:
        """Calls that a text ends with."""
        listed = [{"index": number, **call.to_json()} for number, call in enumerate(calls)]
        return self._chunk(answer, {"tool_calls": listed})

    def end(self, answer: Answer, called: bool = False) -> dict[str, Any]:
        """End of a text, with its reason."""
        return self._chunk(answer, {} if self.chat else "", reason="tool_calls" if called else answer.reason)

    def _chunk(
        self, answer: Answer, text: Any, scored: Piece | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        choice = {
            "index": answer.index,
            "logprobs": None if scored is None else self._logprobs(scored),
            "finish_reason": reason,
            "delta" if self.chat else "text": text,
        }
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": [choice]}

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        return None if self._scores is None else self._scores(piece.told)

    def usage_piece(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": [], "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        made = sum(answer.tokens for answer in self.answers)
        total = self._prompt_tokens + made
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": made, "total_tokens": total}
