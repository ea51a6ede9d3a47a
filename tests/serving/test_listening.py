"""The end of the server: it says what it waits for, and a second Ctrl-C leaves no traceback."""

import logging
import signal
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

SERVER = """
import asyncio
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route
from hetero_tvm.serving.listening import listen


async def endless(http):
    async def pieces():
        while True:
            yield b"piece\\n"
            await asyncio.sleep(0.01)

    return StreamingResponse(pieces())


listen(Starlette(routes=[Route("/", endless)]), "127.0.0.1", 0)
"""


@pytest.mark.thorough
def test_an_answer_in_progress_is_waited_for_until_a_second_signal():
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().split()[1].removesuffix("/v1")
            with urllib.request.urlopen(url) as answer:
                assert answer.readline() == b"piece\n"
                process.send_signal(signal.SIGINT)
                assert (
                    process.stdout.readline()
                    == "ending: 1 answer has up to 30 s to end (Ctrl-C again cuts off)\n"
                )
                assert answer.readline() == b"piece\n"
                process.send_signal(signal.SIGINT)
                assert process.wait(20) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_pieces_that_nobody_takes_are_no_news():
    from hetero_tvm.serving.listening import _is_no_closed_socket

    def record(text):
        return logging.LogRecord("asyncio", logging.WARNING, "", 0, text, (), None)

    assert not _is_no_closed_socket(record("socket.send() raised exception."))
    assert _is_no_closed_socket(record("Executing <Task> took 0.2 seconds"))
