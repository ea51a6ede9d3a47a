"""The thread that generates: texts of all clients go through the model together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from hetero_tvm.errors import BusyError, HeteroTVMError
from hetero_tvm.generation.batch import Batch, Request
from hetero_tvm.generation.model import LanguageModel


class Engine:
    """One batch of one model, run by a thread of its own; requests come from coroutines.

    Parameters
    ----------
    most : texts that are generated at once.
    waiting : texts that may wait beside them; what comes then is refused.
    """

    def __init__(self, model: LanguageModel, most: int = 32, waiting: int = 256):
        self.model = model
        self._batch = Batch(model, most)
        self._limit = most + waiting
        self._changed = threading.Condition()
        self._new: list[Text] = []
        self._open: list[Text] = []
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="generation", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End all texts before their next token, and the thread."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def load(self) -> int:
        """Number of texts that are generated or wait."""
        return len(self._new) + len(self._open)

    async def admit(self, request: Request) -> Text:
        """Hand in a text; gives its tokens to come.

        Raises
        ------
        InputError, CapacityError : the model can never continue it.
        BusyError : too many wait already, or the server is ending.
        """
        text = Text(request, asyncio.get_running_loop())
        with self._changed:
            if self._ending or self.load >= self._limit:
                raise BusyError(
                    "the server is ending" if self._ending else f"{self.load} texts wait already",
                    hint="try again later",
                )
            self._new.append(text)
            self._changed.notify()
        try:
            await text.admitted
        except asyncio.CancelledError:
            request.cancel()
            raise
        return text

    def _run(self) -> None:
        while True:
            with self._changed:
                # A text that is cancelled leaves the batch with the next step only.
                while not (self._new or self._open or len(self._batch) or self._ending):
                    self._changed.wait()
                new, self._new = self._new, []
                self._open += new
                ending = self._ending
            for text in new:
                self._submit(text)
            if ending:
                for text in self._open:
                    text.request.cancel()
            self._step()
            with self._changed:
                ended = [text for text in self._open if text.request.reason is not None]
                self._open = [text for text in self._open if text.request.reason is None]
            for text in ended:
                text.end()
            if ending and not (self._open or self._new or len(self._batch)):
                return

    def _submit(self, text: Text) -> None:
        try:
            self._batch.submit(text.request)
        except HeteroTVMError as error:
            text.request.reason, text.request.error = "error", error
            text.refuse(error)
        else:
            text.admit()

    def _step(self) -> None:
        try:
            self._batch.step()
        except Exception as error:  # of one step: all its texts end with it, later ones have a chance
            failed = [text.request for text in self._open if text.request.reason is None]
            for request in failed:
                request.cancel()
            self._batch.step()  # gives back what they held
            for request in failed:
                request.reason, request.error = "error", error


class Text:
    """The tokens of one request, as they come to a coroutine."""

    def __init__(self, request: Request, loop: asyncio.AbstractEventLoop):
        self.request = request
        self.admitted: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._queue: asyncio.Queue[int | None] = asyncio.Queue()
        request.on_token = lambda token: self._call(self._queue.put_nowait, token)

    async def tokens(self) -> AsyncIterator[int]:
        """Tokens, as they come.  Who stops asking ends the text.

        Raises
        ------
        HeteroTVMError : the text could not go on.
        """
        try:
            while (token := await self._queue.get()) is not None:
                yield token
            if self.request.error is not None:
                raise self.request.error
        finally:
            self.request.cancel()

    def admit(self) -> None:
        self._call(self._settle, None)

    def refuse(self, error: Exception) -> None:
        self._call(self._settle, error)

    def end(self) -> None:
        self._call(self._queue.put_nowait, None)

    def _settle(self, error: Exception | None) -> None:
        if self.admitted.done():  # whoever waited is gone
            return
        if error is None:
            self.admitted.set_result(None)
        else:
            self.admitted.set_exception(error)

    def _call(self, function, *arguments) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)
