"""The application: OpenAI's completions and chat completions over one model (an ASGI app, on Starlette)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hetero_tvm.errors import HeteroTVMError, LibraryError
from hetero_tvm.generation.batch import Request
from hetero_tvm.generation.chat import ChatTemplate
from hetero_tvm.generation.grammar import Grammar, GrammarOfText, Grammars
from hetero_tvm.generation.model import LanguageModel
from hetero_tvm.generation.text import Tokenizer
from hetero_tvm.serving.answer import Answer, Piece
from hetero_tvm.serving.engine import Engine
from hetero_tvm.serving.form import Form
from hetero_tvm.serving.front import Front, error_document, read_body
from hetero_tvm.serving.scores import chat_scores, completion_scores
from hetero_tvm.serving.tools import CallFormat, CallReader, format_of
from hetero_tvm.serving.wishes import Wishes, read


class Server(Front):
    """Routes over one model.

    Parameters
    ----------
    model : the model; texts of all clients share its weights and its cache.
    name : what clients call it.
    key : what clients must send as their API key; None for no key.
    most : texts that are generated at once.
    """

    def __init__(self, model: LanguageModel, name: str, key: str | None = None, most: int = 32):
        super().__init__(name, key, model.context, "POST /v1/completions, POST /v1/chat/completions")
        self.model = model
        self.engine = Engine(model, most)
        folder = model.library.path.parent
        self._tokenizer = Tokenizer(folder)
        self._template: ChatTemplate | None = None
        self._no_template: LibraryError | None = None
        try:
            self._template = ChatTemplate(folder)
        except LibraryError as error:  # told to those who ask for it: plain text needs none
            self._no_template = error
        self._grammars: Grammars | None = None
        self._grammar_lock = threading.Lock()

    def app(self) -> Starlette:
        """The ASGI application; its lifespan starts and ends the thread that generates."""

        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            self.engine.start()
            try:
                yield
            finally:
                await asyncio.to_thread(self.engine.stop)

        return Starlette(
            routes=[
                Route("/health", self._health),
                *self.routes(),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ],
            lifespan=lifespan,
            exception_handlers=self.handlers(),
        )

    async def _health(self, http: HttpRequest) -> Response:
        free, pages = self.model.pool.free, self.model.pool.pages
        return JSONResponse({"status": "ok", "texts": self.engine.load, "cache_free": free / pages})

    async def _complete(self, http: HttpRequest) -> Response:
        return self.stranger(http) or await self._answer(http, chat=False)

    async def _chat(self, http: HttpRequest) -> Response:
        return self.stranger(http) or await self._answer(http, chat=True)

    async def _answer(self, http: HttpRequest, chat: bool) -> Response:
        body = await read_body(http)
        if isinstance(body, dict) and (unknown := self.unknown(body.get("model"))) is not None:
            return unknown
        wishes = read(body, chat)
        prompts = self._prompts(wishes, chat)
        form = self._call_form(wishes)
        tokenizer = self._tokenizer if form is None else self._tokenizer.telling((form.begin, *form.marks))
        made = max(wishes.best_of, wishes.choices)
        requests = [
            self._request(wishes, tokens, number)
            for number, tokens in enumerate(tokens for tokens in prompts for _ in range(made))
        ]
        if wishes.grammar is not None:  # seconds for the first: the table of tokens is read
            begun = await asyncio.to_thread(self._begin, wishes.grammar, len(requests))
            for request, grammar in zip(requests, begun, strict=True):
                request.grammar = grammar
        answers: list[Answer] = []
        try:
            for number, request in enumerate(requests):
                text = await self.engine.admit(request)
                echo = self._echo(wishes, request, number // made) if wishes.echo else None
                silent = wishes.max_tokens == 0
                calls = None if wishes.tools is None else CallReader(wishes.tools, form)
                answers.append(Answer(number, text, tokenizer, wishes.stop, echo, silent, calls))
        except BaseException:
            for answer in answers:
                answer.text.request.cancel()
            raise
        scores = None if wishes.logprobs is None else chat_scores if chat else completion_scores
        written = None if scores is None else partial(scores, self._tokenizer)
        asked = sum(map(len, prompts))
        response = Form(chat, self.name, answers, asked, written, wishes.choices, made)
        if wishes.stream:
            return StreamingResponse(_events(response, wishes.usage), media_type="text/event-stream")
        return await _whole(response, http)

    def _call_form(self, wishes: Wishes) -> CallFormat | None:
        """Way in which the model writes calls; None where it is told of no tools, or a grammar says how."""
        if wishes.tools is None or wishes.tools.wanted is not None or self._template is None:
            return None
        return format_of(self._template.tools_source)

    def _begin(self, grammar: Grammar, count: int) -> list[GrammarOfText]:
        with self._grammar_lock:
            if self._grammars is None:
                facts = self.model.facts
                self._grammars = Grammars(self._tokenizer, facts.vocab, facts.stop)
        return [self._grammars.begin(grammar) for _ in range(count)]

    def _prompts(self, wishes: Wishes, chat: bool) -> list[list[int]]:
        if not chat:
            return [self._tokenizer.encode(p) if isinstance(p, str) else p for p in wishes.prompts]
        if self._template is None:
            assert self._no_template is not None
            raise self._no_template
        # The template writes the special tokens itself.
        return [
            self._tokenizer.encode(
                self._template.prompt(
                    wishes.messages,
                    options=wishes.template,
                    tools=None if wishes.tools is None else wishes.tools.listed,
                ),
                special=False,
            )
        ]

    def _request(self, wishes: Wishes, tokens: list[int], number: int) -> Request:
        longest = wishes.max_tokens
        if longest is None:
            longest = max(1, self.model.context - len(tokens) + 1)
        return Request(
            tokens,
            max(longest, 1),  # none at all: a prompt is scored by a step that makes one
            wishes.sampling.for_text(number),
            wishes.ends if wishes.endless else wishes.ends | frozenset(self.model.facts.stop),
            # Of several texts the likeliest are told.
            logprobs=0 if wishes.logprobs is None and wishes.best_of > wishes.choices else wishes.logprobs,
            score_prompt=wishes.echo,
            least_new_tokens=wishes.least_tokens,
        )

    def _echo(self, wishes: Wishes, request: Request, number: int) -> str:
        """The text of a prompt, as it was given."""
        prompt = wishes.prompts[number]
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(request.prompt)


async def _whole(form: Form, http: HttpRequest) -> Response:
    """The response with all texts at once; a client that goes away ends them."""

    async def collect(answer: Answer) -> Piece:
        pieces = [piece async for piece in answer.pieces()]
        return Piece("".join(piece.text for piece in pieces), [one for piece in pieces for one in piece.told])

    async def gone() -> None:
        while not await http.is_disconnected():
            await asyncio.sleep(0.2)

    texts = asyncio.gather(*map(collect, form.answers))
    watch = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({texts, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not texts.done():
            return Response(status_code=499)  # nobody reads it
        return JSONResponse(form.whole(texts.result()))
    finally:
        watch.cancel()
        texts.cancel()
        with contextlib.suppress(asyncio.CancelledError, HeteroTVMError):
            await texts  # else its end would be told as one that nobody has heard of
        for answer in form.answers:
            answer.text.request.cancel()


async def _events(form: Form, usage: bool) -> AsyncIterator[str]:
    """Server-sent events: pieces of all texts as they come."""
    queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def follow(answer: Answer) -> None:
        try:
            if form.chat:
                queue.put_nowait(form.piece(answer, Piece("", []), first=True))
            async for piece in answer.pieces():
                told = piece if answer.calls is None else piece._replace(text=answer.calls.add(piece.text))
                if told.text or told.told:
                    queue.put_nowait(form.piece(answer, told))
            rest, calls = ("", []) if answer.calls is None else answer.calls.finish()
            if rest:
                queue.put_nowait(form.piece(answer, Piece(rest, [])))
            if calls:
                queue.put_nowait(form.calls(answer, calls))
            queue.put_nowait(form.end(answer, bool(calls)))
        except HeteroTVMError as error:
            queue.put_nowait(error_document(str(error), "server_error"))
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.ensure_future(follow(answer)) for answer in form.answers]
    try:
        left = len(tasks)
        while left:
            event = await queue.get()
            if event is None:
                left -= 1
            else:
                yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        if usage:
            yield f"data: {json.dumps(form.usage_piece())}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        for task in tasks:
            task.cancel()
        for answer in form.answers:
            answer.text.request.cancel()
