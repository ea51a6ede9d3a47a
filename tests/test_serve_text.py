"""The command: a process that answers over a socket, and ends in order."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

from hetero_tvm import serve_text
from hetero_tvm.cli import common
from tests import tiny_bert, tiny_llama
from tests.generation.test_text import write_tokenizer

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
    ask = {"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 4}
    answer = answer_of(tiny_llama.built(), tmp_path / "tiny", "completions", ask)
    text = " ".join(f"w{t}" for t in tiny_llama.greedy([5, 6, 7], 4))
    assert answer["choices"][0]["text"] == text


@pytest.mark.thorough
def test_a_library_that_embeds_texts_answers_as_well(tmp_path):
    answer = answer_of(tiny_bert.built(), tmp_path / "tiny", "embeddings", {"input": "w5 w6"})
    np.testing.assert_allclose(answer["data"][0]["embedding"], tiny_bert.embedding([5, 6]), atol=1e-5)


def answer_of(library, folder, route, ask):
    """The answer of a server in a process of its own, which then ends by SIGTERM."""
    shutil.copytree(library, folder)
    write_tokenizer(tokenizers, folder)
    command = [sys.executable, "-m", "hetero_tvm.serve_text", str(folder), "--port", "0"]
    command += ["--host", "127.0.0.1", "--api-key", "k"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            url = process.stdout.readline().split()[1]
            headers = {"Authorization": "Bearer k"}
            request = urllib.request.Request(f"{url}/{route}", json.dumps(ask).encode(), headers)
            with urllib.request.urlopen(request) as response:
                answer = json.load(response)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    return answer
