"""The thread that generates: refusals, ends, and errors of a step cost what they must and no more."""

import asyncio
import threading

import pytest

import hetero_tvm
from hetero_tvm.errors import BusyError, InputError
from hetero_tvm.generation.batch import Request
from hetero_tvm.serving.engine import Engine
from tests import tiny_llama


@pytest.fixture
def engine():
    engine = Engine(hetero_tvm.load_language_model(tiny_llama.built()), most=2, waiting=1)
    engine.start()
    yield engine
    engine.stop()
    assert engine.load == 0 and engine.model.pool.free == engine.model.pool.pages


async def collected(text):
    return [token async for token in text.tokens()]


def test_tokens_come_and_a_wrong_prompt_is_refused(engine):
    async def main():
        text = await engine.admit(Request([5, 6, 7], 6))
        with pytest.raises(InputError):
            await engine.admit(Request([4000], 6))
        return await collected(text)

    assert asyncio.run(main()) == tiny_llama.greedy([5, 6, 7], 6)


def test_more_than_may_wait_are_refused(engine, monkeypatch):
    step, asked = engine.model.step, threading.Event()

    def held(work, last=None):
        """A step that ends after all have asked, however fast the model is."""
        asked.wait()
        return step(work, last)

    async def main():
        monkeypatch.setattr(engine.model, "step", held)
        asking = [asyncio.create_task(engine.admit(Request([n + 1], 90))) for n in range(3)]
        await asyncio.sleep(0)  # each hands its text in, and waits
        with pytest.raises(BusyError, match="wait already"):
            await engine.admit(Request([9], 2))
        asked.set()
        texts = await asyncio.gather(*asking)
        for text in texts:
            text.request.cancel()
        for text in texts:
            await collected(text)

    asyncio.run(main())


def test_who_stops_asking_ends_the_text(engine):
    async def main():
        text = await engine.admit(Request([5, 6, 7], 100))
        async for _ in text.tokens():
            break
        while (
            engine.model.pool.free < engine.model.pool.pages
        ):  # what it held comes back without another text
            await asyncio.sleep(0.01)
        other = await engine.admit(Request([5, 6, 7], 3))
        return await collected(other)

    assert asyncio.run(main()) == tiny_llama.greedy([5, 6, 7], 3)


def test_an_error_of_a_step_ends_its_texts_only(engine, monkeypatch):
    step = engine.model.step

    def fail(work, last=None):
        monkeypatch.setattr(engine.model, "step", step)
        raise MemoryError("no room")

    async def main():
        monkeypatch.setattr(engine.model, "step", fail)
        text = await engine.admit(Request([5], 4))
        with pytest.raises(MemoryError):
            await collected(text)
        return await collected(await engine.admit(Request([5, 6, 7], 4)))

    assert asyncio.run(main()) == tiny_llama.greedy([5, 6, 7], 4)


def test_the_end_ends_all(engine):
    async def main():
        text = await engine.admit(Request([5], 100))
        await asyncio.to_thread(engine.stop)
        await collected(text)
        assert text.request.reason is not None
        with pytest.raises(BusyError, match="ending"):
            await engine.admit(Request([5], 1))

    asyncio.run(main())
