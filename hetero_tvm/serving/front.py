"""Parts of all applications: the key, the model's name, errors in the words of OpenAI's API."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hetero_tvm.errors import BusyError, CapacityError, HeteroTVMError, InputError, LibraryError

_LARGEST_BODY = 16 << 20
_STATUS = {InputError: 400, CapacityError: 400, LibraryError: 400, BusyError: 503}


class Front:
    """Routes that tell of one model, and refusals.

    Parameters
    ----------
    name : what clients call the model.
    key : what clients must send as their API key; None for no key.
    context : tokens of a text at most.
    posts : other routes that there are, for who asks for none of them.
    """

    def __init__(self, name: str, key: str | None, context: int, posts: str):
        self.name, self._key, self._context = name, key, context
        self._known = f"there are {posts}, GET /v1/models and GET /health"
        self._created = int(time.time())

    def routes(self) -> list[Route]:
        """Routes that tell of the model."""
        return [Route("/v1/models", self._models), Route("/v1/models/{name:path}", self._model)]

    def handlers(self) -> dict[Any, Any]:
        """Answers where a route gives none, by exception."""
        return {HeteroTVMError: _failure, HTTPException: self._no_route}

    def stranger(self, http: HttpRequest) -> Response | None:
        """The refusal of who does not know the key."""
        given = http.headers.get("authorization", "").removeprefix("Bearer ").encode()
        if self._key is None or secrets.compare_digest(given, self._key.encode()):
            return None
        return _error(401, "the API key is missing or wrong", "send it as Authorization: Bearer KEY")

    def unknown(self, name: Any) -> Response | None:
        """The refusal of a name that is not the model's, as OpenAI and vLLM refuse it; who gives none means
        the one that is here."""
        if not name or name == self.name:
            return None
        text = f"The model {name!r} does not exist"
        hint = f"there is {self.name!r} (--name gives it another name)"
        return _error(404, text, hint, param="model", code="model_not_found")

    async def _models(self, http: HttpRequest) -> Response:
        if (refused := self.stranger(http)) is not None:
            return refused
        return JSONResponse({"object": "list", "data": [self._facts()]})

    async def _model(self, http: HttpRequest) -> Response:
        if (refused := self.stranger(http)) is not None:
            return refused
        return self.unknown(http.path_params["name"]) or JSONResponse(self._facts())

    def _facts(self) -> dict[str, Any]:
        facts = {"id": self.name, "object": "model", "created": self._created, "owned_by": "hetero_tvm"}
        return {**facts, "max_model_len": self._context}

    async def _no_route(self, http: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _error(error.status_code, f"{http.method} {http.url.path}: {error.detail}", self._known)


async def read_body(http: HttpRequest) -> Any:
    """The JSON of a request; :class:`InputError` where it is none, or too large."""
    parts, size = [], 0
    async for part in http.stream():
        size += len(part)
        if size > _LARGEST_BODY:
            raise InputError(f"the body has more than {_LARGEST_BODY:,} bytes")
        parts.append(part)
    try:
        return json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}") from error


async def _failure(http: HttpRequest, error: Exception) -> Response:
    too_long = isinstance(error, CapacityError)
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    return _error(status, str(error), code="context_length_exceeded" if too_long else None)


def _error(
    status: int, text: str, hint: str = "", param: str | None = None, code: str | None = None
) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    document = error_document(": ".join(filter(None, [text, hint])), kind, param, code)
    return JSONResponse(document, status_code=status)


def error_document(text: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's API writes it."""
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}
