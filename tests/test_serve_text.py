"""The command: a process that answers over a socket, and ends in order."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from hetero_tvm import serve_text
from hetero_tvm.cli import common
from tests import tiny_llama

for name in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(name)
tokenizers = pytest.importorskip("tokenizers")


@pytest.mark.thorough
def test_mistakes(capsys, tmp_path):
    assert serve_text.main([str(tmp_path)]) == 2
    assert serve_text.main([str(tiny_llama.built()), "--port", "70000"]) == 2
    assert "not a port" in capsys.readouterr().err


def test_addresses_of_this_machine():
    assert all(map(common.is_loopback, ("localhost", "127.0.0.1", "::1")))
    assert not any(map(common.is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))


def test_it_answers_and_ends_by_sigterm(tmp_path):
    import shutil

    from tests.generation.test_text import write_tokenizer

    folder = tmp_path / "tiny"
    shutil.copytree(tiny_llama.built(), folder)
    write_tokenizer(tokenizers, folder)
    command = [sys.executable, "-m", "hetero_tvm.serve_text", str(folder), "--port", "0"]
    command += ["--host", "127.0.0.1", "--api-key", "k"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            line = process.stdout.readline()
            url = line.split()[1]
            ask = json.dumps({"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 4}).encode()
            request = urllib.request.Request(f"{url}/completions", ask, {"Authorization": "Bearer k"})
            with urllib.request.urlopen(request) as response:
                text = json.load(response)["choices"][0]["text"]
            assert text == " ".join(f"w{t}" for t in tiny_llama.greedy([5, 6, 7], 4))
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
