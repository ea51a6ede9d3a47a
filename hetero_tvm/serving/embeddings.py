"""The application for models that embed texts: OpenAI's embeddings over one model."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hetero_tvm.errors import CapacityError, InputError, UsageError, shortened
from hetero_tvm.generation.embedding import EmbeddingModel
from hetero_tvm.serving.front import Front, read_body

_MOST_TEXTS = 2048
"""Texts of one request, as many as OpenAI takes."""
_TURN = 32
"""Texts of one request that go through the model before another's."""
_FORMATS = ("float", "base64")


class EmbeddingServer(Front):
    """Routes over one model that embeds texts.

    Parameters
    ----------
    model : the model, on all of its threads; requests take turns, some texts each.
    name : what clients call it.
    key : what clients must send as their API key; None for no key.
    """

    def __init__(self, model: EmbeddingModel, name: str, key: str | None = None):
        super().__init__(name, key, model.facts.context, "POST /v1/embeddings")
        self.model = model
        self._turn = asyncio.Lock()

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                *self.routes(),
                Route("/v1/embeddings", self._embed, methods=["POST"]),
            ],
            exception_handlers=self.handlers(),
        )

    async def _health(self, http: HttpRequest) -> Response:
        return JSONResponse({"status": "ok"})

    async def _embed(self, http: HttpRequest) -> Response:
        if (refused := self.stranger(http)) is not None:
            return refused
        body = await read_body(http)
        if isinstance(body, dict) and (unknown := self.unknown(body.get("model"))) is not None:
            return unknown
        wishes = await asyncio.to_thread(_read, body, self.model)
        texts, done = wishes["texts"], []
        for start in range(0, len(texts), _TURN):
            async with self._turn:  # whoever waits longest is next
                if await http.is_disconnected():
                    return Response(status_code=499)  # nobody reads it
                turn = texts[start : start + _TURN]
                done.append(await asyncio.to_thread(self.model.embed_tokens, turn, wishes["dimensions"]))
        return self._answer(wishes, np.concatenate(done))

    def _answer(self, wishes: dict[str, Any], vectors: np.ndarray) -> Response:
        written = _written if wishes["format"] == "base64" else np.ndarray.tolist
        data = [
            {"object": "embedding", "index": number, "embedding": written(vector)}
            for number, vector in enumerate(vectors)
        ]
        count = sum(map(len, wishes["texts"]))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JSONResponse({"object": "list", "data": data, "model": self.name, "usage": usage})


def _written(vector: np.ndarray) -> str:
    """The numbers as little-endian float32 in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def _read(body: Any, model: EmbeddingModel) -> dict[str, Any]:
    """Check a body; texts come as tokens.

    Raises
    ------
    InputError : lists all that is wrong with it.
    CapacityError : a text is too long, and nobody asked to cut it.
    """
    if not isinstance(body, dict):
        raise InputError("the body is not a JSON object")
    problems = []
    given = body.get("input")
    if isinstance(given, str) or (isinstance(given, list) and given and all(map(_is_token, given))):
        given = [given]
    if not isinstance(given, list) or not given:
        problems.append("input is a text, a list of texts, a list of tokens, or a list of these")
        given = []
    if len(given) > _MOST_TEXTS:
        problems.append(f"input has {len(given)} texts, at most {_MOST_TEXTS} are embedded at once")
    for number, text in enumerate(given):
        if isinstance(text, str) and not text:
            problems.append(f"input[{number}] is empty")
        elif not isinstance(text, str) and not (
            isinstance(text, list) and text and all(map(_is_token, text))
        ):
            problems.append(f"input[{number}] is neither a text nor a list of tokens")
    form = body.get("encoding_format") or "float"
    if form not in _FORMATS:
        problems.append(f"encoding_format is {form!r}, expected one of {', '.join(_FORMATS)}")
    dimensions = body.get("dimensions")
    if dimensions is not None and (not _is_token(dimensions) or not 0 < dimensions <= model.facts.width):
        problems.append(f"dimensions is {dimensions!r}, expected 1 to {model.facts.width}")
    longest = body.get("truncate_prompt_tokens")
    if longest is not None and (not _is_token(longest) or not (longest == -1 or longest > 0)):
        problems.append(f"truncate_prompt_tokens is {longest!r}, expected more than 0, or -1 for the context")
    prompt = body.get("prompt_name")
    if prompt is not None and not isinstance(prompt, str):
        problems.append(f"prompt_name is {prompt!r}, expected a text")
    if problems:
        raise InputError("the request cannot be served", problems=shortened(problems))
    context = model.facts.context
    most = None if longest is None else min(longest, context) if longest > 0 else context
    try:
        texts = [model.tokens(t, prompt, most) if isinstance(t, str) else t[:most] for t in given]
    except UsageError as error:
        raise InputError(str(error)) from error
    long = [f"input[{n}] has {len(tokens)}" for n, tokens in enumerate(texts) if len(tokens) > context]
    if long:
        raise CapacityError(
            f"a text has {context} tokens at most",
            problems=shortened(long),
            hint='cut it into pieces, or let its end go with "truncate_prompt_tokens": -1',
        )
    return {"texts": texts, "format": form, "dimensions": dimensions}


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
