"""Log-probabilities in the words of OpenAI's API, of completions and of chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetero_tvm.generation.likelihood import in_json
from hetero_tvm.generation.text import Tokenizer
from hetero_tvm.serving.answer import Told


def completion_scores(tokenizer: Tokenizer, told: Sequence[Told]) -> dict[str, Any]:
    """``logprobs`` of a completion: four lists, with an element per token."""
    tops: list[dict[str, float] | None] = []
    for (token, logprob, top), _ in told:
        if logprob is None:
            tops.append(None)
            continue
        # The token itself is among them always, so there may be one more than is asked for.
        tops.append({_name(tokenizer.piece(n)): in_json(value) for n, value in (*top, (token, logprob))})
    return {
        "tokens": [_name(tokenizer.piece(one.likelihood.token)) for one in told],
        "token_logprobs": [in_json(one.likelihood.logprob) for one in told],
        "top_logprobs": tops,
        "text_offset": [one.at for one in told],
    }


def chat_scores(tokenizer: Tokenizer, told: Sequence[Told]) -> dict[str, Any]:
    """``logprobs`` of a chat: an object per token."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        piece = tokenizer.piece(token)
        text = piece.decode(errors="replace")
        return {"token": text, "logprob": in_json(logprob), "bytes": list(piece)}

    content = [
        {**entry(token, logprob), "top_logprobs": [entry(*one) for one in top]}
        for (token, logprob, top), _ in told
    ]
    return {"content": content, "refusal": None}


def _name(piece: bytes) -> str:
    """Text of a token; of part of a letter, its bytes as OpenAI's completions spell them."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
