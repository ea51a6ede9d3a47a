"""The routes: texts are those that the model gives alone, whole or as a stream; refusals are OpenAI's."""

import asyncio
import gc
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")
tokenizers = pytest.importorskip("tokenizers")

from starlette.testclient import TestClient  # noqa: E402

import hetero_tvm  # noqa: E402
from hetero_tvm.serving.app import Server, _whole  # noqa: E402
from tests import tiny_llama  # noqa: E402
from tests.generation.test_text import write_tokenizer  # noqa: E402

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}w5"
GREEDY = {"temperature": 0, "max_tokens": 6}


def text_of(tokens):
    """Words of tokens, up to the one that ends a text."""
    tokens = tokens[: tokens.index(96)] if 96 in tokens else tokens
    return " ".join(f"w{token}" for token in tokens)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A library with a tokenizer and a chat template beside it."""
    path = tmp_path_factory.mktemp("served") / "tiny"
    shutil.copytree(tiny_llama.built(), path)
    write_tokenizer(tokenizers, path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def server(folder):
    return Server(hetero_tvm.load_language_model(folder, cache_tokens=16 * tiny_llama.PAGE), "tiny")


@pytest.fixture(scope="module")
def client(server):
    with TestClient(server.app()) as client:
        yield client


def events(response):
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.mark.thorough
def test_completions(client):
    body = client.post("/v1/completions", json={"prompt": "w5 w6 w7", **GREEDY}).json()
    [choice] = body["choices"]
    assert choice["text"] == text_of(tiny_llama.greedy([5, 6, 7], 6))
    assert (choice["finish_reason"], body["object"], body["model"]) == ("length", "text_completion", "tiny")
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}


def test_several_prompts_and_choices(client):
    body = client.post("/v1/completions", json={"prompt": [[5, 6, 7], [90]], "n": 2, **GREEDY}).json()
    texts = [text_of(tiny_llama.greedy(prompt, 6)) for prompt in ([5, 6, 7], [5, 6, 7], [90], [90])]
    assert [choice["text"] for choice in body["choices"]] == texts
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]


def test_a_stream_has_the_same_text(client):
    ask = {"prompt": "w5 w6 w7", **GREEDY, "stream": True, "stream_options": {"include_usage": True}}
    *pieces, end, usage = events(client.post("/v1/completions", json=ask))
    text = "".join(piece["choices"][0]["text"] for piece in pieces)
    assert len(pieces) == 6 and text == text_of(tiny_llama.greedy([5, 6, 7], 6))
    assert end["choices"][0]["finish_reason"] == "length" and usage["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("name", ["gpt-4o", "Tiny", ["tiny"]])
def test_a_model_that_is_not_here(client, name):
    ask = {"model": name, "prompt": [5], "messages": [{"role": "user", "content": "w3"}], "stream": True}
    for route in ("completions", "chat/completions"):
        answer = client.post(f"/v1/{route}", json=ask)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert "'tiny'" in error["message"]
    for right in ({"model": "tiny"}, {"model": ""}, {"model": None}, {}):
        assert client.post("/v1/completions", json={"prompt": [5], "max_tokens": 1, **right}).is_success


def test_biases_and_penalties(client):
    ask = {"prompt": [5, 6, 7], **GREEDY}
    made = tiny_llama.greedy([5, 6, 7], 6)
    text = client.post("/v1/completions", json={**ask, "logit_bias": {str(made[0]): -100}}).json()
    assert not text["choices"][0]["text"].startswith(text_of(made[:1]) + " ")
    forced = client.post("/v1/completions", json={**ask, "logit_bias": {"42": 100}}).json()
    assert forced["choices"][0]["text"] == " ".join(["w42"] * 6)
    # Two that are told once each and then again: the one of the two that was told less comes next.
    both = {"logit_bias": {"42": 100, "43": 100}, "frequency_penalty": 2, "max_tokens": 40}
    words = client.post("/v1/completions", json={**ask, **both}).json()["choices"][0]["text"].split()
    assert set(words) == {"w42", "w43"}


def test_chat(client):
    ask = {"messages": [{"role": "user", "content": "w3 w4"}], **GREEDY}
    wanted = text_of(tiny_llama.greedy([3, 4, 5], 6))
    body = client.post("/v1/chat/completions", json=ask).json()
    assert body["choices"][0]["message"] == {"role": "assistant", "content": wanted}
    first, *pieces, end = events(client.post("/v1/chat/completions", json={**ask, "stream": True}))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(piece["choices"][0]["delta"]["content"] for piece in pieces) == wanted
    assert end["choices"][0] == {"index": 0, "logprobs": None, "finish_reason": "length", "delta": {}}


def test_a_stop_ends_the_text_before_it(client, server):
    tokens = tiny_llama.greedy([5, 6, 7], 6)
    ask = {"prompt": [5, 6, 7], **GREEDY, "stop": [f" w{tokens[3]}"]}
    body = client.post("/v1/completions", json=ask).json()
    [choice] = body["choices"]
    first = tokens.index(tokens[3]) or 3
    assert choice["text"] == text_of(tokens[:first]) and choice["finish_reason"] == "stop"
    assert (
        body["usage"]["completion_tokens"] == first + 1
    )  # not what the model made before it heard of the stop


def test_clients_at_once_get_their_own_texts(client, server):
    prompts = [[n, n + 1, n + 2] for n in range(24)]

    def ask(prompt):
        return client.post("/v1/completions", json={"prompt": prompt, **GREEDY}).json()["choices"][0]["text"]

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(ask, prompts))
    assert texts == [text_of(tiny_llama.greedy(prompt, 6)) for prompt in prompts]
    assert server.engine.load == 0 and server.model.pool.free == server.model.pool.pages


def scores(text):
    """Log-probabilities of all tokens after each of a text."""
    logits = tiny_llama.logits(text)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_log_probabilities_of_completions(client):
    """Whole and as a stream, with the prompt in front and without; float32 beside float64."""
    prompt, tokens = [5, 6, 7], tiny_llama.greedy([5, 6, 7], 6)
    rows = scores([*prompt, *tokens])
    ask = {"prompt": "w5 w6 w7", **GREEDY, "logprobs": 2}
    [choice] = client.post("/v1/completions", json=ask).json()["choices"]
    told = choice["logprobs"]
    assert told["tokens"] == [f" w{token}" for token in tokens] and told["text_offset"][0] == 0
    wanted = [rows[2 + n, token] for n, token in enumerate(tokens)]
    np.testing.assert_allclose(told["token_logprobs"], wanted, atol=2e-4)
    named = zip(told["top_logprobs"], told["tokens"], strict=True)
    assert all(len(top) == 2 and name in top for top, name in named)
    streamed = events(client.post("/v1/completions", json={**ask, "stream": True}))
    pieces = [p["choices"][0]["logprobs"] for p in streamed]
    assert pieces[-1] is None
    joined = {key: [one for piece in pieces[:-1] for one in piece[key]] for key in told}
    assert joined == told

    [choice] = client.post("/v1/completions", json={**ask, "echo": True}).json()["choices"]
    whole, told = choice["text"], choice["logprobs"]
    assert whole == "w5 w6 w7 " + text_of(tokens) and len(told["tokens"]) == 9
    assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
    wanted = [rows[n, token] for n, token in enumerate([*prompt, *tokens][1:])]
    np.testing.assert_allclose(told["token_logprobs"][1:], wanted, atol=2e-4)
    for name, at in zip(told["tokens"][1:], told["text_offset"][1:], strict=True):
        assert whole[at:].startswith(name)


def test_a_prompt_alone_has_scores(client):
    ask = {"prompt": [[5, 6, 7], [90, 3]], "max_tokens": 0, "echo": True, "logprobs": 1}
    body = client.post("/v1/completions", json=ask).json()
    assert [choice["text"] for choice in body["choices"]] == ["w5 w6 w7", "w90 w3"]
    assert body["choices"][1]["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 0
    told = body["choices"][1]["logprobs"]
    assert told["token_logprobs"] == [None, pytest.approx(scores([90, 3])[0, 3], abs=2e-4)]


def test_log_probabilities_of_chats(client):
    tokens = tiny_llama.greedy([3, 4, 5], 6)
    ask = {"messages": [{"role": "user", "content": "w3 w4"}], **GREEDY, "logprobs": True, "top_logprobs": 3}
    body = client.post("/v1/chat/completions", json=ask).json()
    content = body["choices"][0]["logprobs"]["content"]
    rows = scores([3, 4, 5, *tokens])[2:]
    assert [one["token"] for one in content] == [f" w{token}" for token in tokens]
    assert bytes(content[0]["bytes"]).decode() == content[0]["token"]
    for one, row, token in zip(content, rows, tokens, strict=False):
        assert one["logprob"] == pytest.approx(row[token], abs=2e-4)
        np.testing.assert_allclose(
            [top["logprob"] for top in one["top_logprobs"]], np.sort(row)[::-1][:3], atol=2e-4
        )
    first, *pieces, _ = events(client.post("/v1/chat/completions", json={**ask, "stream": True}))
    assert first["choices"][0]["logprobs"] is None
    assert [one for p in pieces for one in p["choices"][0]["logprobs"]["content"]] == content


def test_tokens_of_a_stop_have_no_scores(client):
    """The stop begins inside of a token: what is in front of it is told with its score."""
    tokens = tiny_llama.greedy([5, 6, 7], 6)
    text = " ".join(f"w{token}" for token in tokens)
    at = text.index(f" w{tokens[2]}", len(f"w{tokens[0]} w{tokens[1]}")) + 2
    ask = {"prompt": [5, 6, 7], **GREEDY, "logprobs": 0, "stop": [text[at : at + 5]]}
    [choice] = client.post("/v1/completions", json=ask).json()["choices"]
    assert choice["text"] == text[: text.index(text[at : at + 5])] and choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["tokens"]) == len(choice["text"].split())


def test_seeds_repeat(client):
    ask = {"prompt": [5, 6], "max_tokens": 8, "seed": 3, "n": 2}
    first, second = (client.post("/v1/completions", json=ask).json()["choices"] for _ in range(2))
    assert first == second and first[0]["text"] != first[1]["text"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"prompt": "w5", "n": 0, "logprobs": 30}, 400, ("n is 0", "logprobs")),
        ({"prompt": [5, 4000]}, 400, ("token 4000",)),
        ({"prompt": [5], "max_tokens": 100_000}, 400, ("the context is",)),
        ({"prompt": []}, 400, ("prompt",)),
        ({"prompt": [5], "logit_bias": {"4000": 1}}, 400, ("bias of token 4000",)),
        ({"prompt": "w5 \ud83d w6"}, 400, ("character 3", "surrogate")),
    ],
)
def test_refusals(client, server, body, status, words):
    response = client.post("/v1/completions", content=json.dumps(body))
    assert response.status_code == status
    message = response.json()["error"]["message"]
    assert all(word in message for word in words)
    assert server.engine.load == 0


def test_a_text_that_is_too_long_has_the_code_that_clients_look_for(client):
    answer = client.post("/v1/completions", json={"prompt": [5], "max_tokens": 100_000})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"


def test_the_template_sees_what_a_client_adds(client, server, monkeypatch):
    seen = []
    monkeypatch.setattr(server._template, "prompt", lambda m, options, tools: seen.append(options) or "w5")
    client.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": "w6"}],
            "chat_template_kwargs": {"enable_thinking": False},
            **GREEDY,
        },
    )
    assert seen == [{"enable_thinking": False}]


def test_hostile_bodies(client):
    for content in (b"{", b"\xff", b"[" * 100_000):
        assert client.post("/v1/completions", content=content).status_code == 400
    assert client.post("/v1/completions", content=b" " * (17 << 20)).status_code == 400
    wrong = client.get("/v1/completions")
    assert wrong.status_code == 405 and "POST /v1/completions" in wrong.json()["error"]["message"]
    assert client.get("/v1/engines").json()["error"]["message"].startswith("GET /v1/engines: Not Found")
    assert client.get("/health").json()["status"] == "ok"


def test_a_key_is_asked_for(folder):
    server = Server(hetero_tvm.load_language_model(folder), "tiny", key="secret")
    with TestClient(server.app()) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer é".encode()}):
            assert client.get("/v1/models", headers=headers).status_code == 401
            assert client.post("/v1/completions", json={}, headers=headers).status_code == 401
        known = {"Authorization": "Bearer secret"}
        (listed,) = client.get("/v1/models", headers=known).json()["data"]
        assert listed["id"] == "tiny"
        assert client.get("/v1/models/tiny", headers=known).json() == listed
        other = client.get("/v1/models/org/other", headers=known)
        assert other.status_code == 404 and "there is 'tiny'" in other.json()["error"]["message"]


def test_without_a_template_conversations_are_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "tiny", ignore=shutil.ignore_patterns("*.jinja"))
    with TestClient(Server(hetero_tvm.load_language_model(tmp_path / "tiny"), "tiny").app()) as client:
        ask = {"messages": [{"role": "user", "content": "w3"}]}
        response = client.post("/v1/chat/completions", json=ask)
        assert response.status_code == 400 and "chat template" in response.json()["error"]["message"]


def test_who_goes_away_before_the_whole_text_leaves_no_traceback():
    class Endless:
        text = SimpleNamespace(request=SimpleNamespace(cancel=lambda: None))

        async def pieces(self):
            await asyncio.Event().wait()
            yield

    async def gone():
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))

        async def is_disconnected():
            return True

        form = SimpleNamespace(answers=[Endless()])
        response = await _whole(form, SimpleNamespace(is_disconnected=is_disconnected))
        gc.collect()
        await asyncio.sleep(0)
        return response.status_code, told

    assert asyncio.run(gone()) == (499, [])
