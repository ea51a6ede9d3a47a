"""Texts that follow a format or call tools, over HTTP: what they are does not depend on the model."""

import json
import shutil

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")
pytest.importorskip("jinja2")
pytest.importorskip("llguidance")
tokenizers = pytest.importorskip("tokenizers")

from starlette.testclient import TestClient  # noqa: E402

import hetero_tvm  # noqa: E402
from hetero_tvm.serving.app import Server  # noqa: E402
from tests import tiny_llama  # noqa: E402
from tests.generation.letters import END, MARK, NAMES, write_letters  # noqa: E402
from tests.serving.test_app import events  # noqa: E402

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}<|mark|>"
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
)
SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["size"],
    "additionalProperties": False,
}
NESTED = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/Place"}},
    "required": ["at"],
    "additionalProperties": False,
    "$defs": {"Place": {"enum": ["here", "there"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "grow", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "move", "parameters": NESTED}},
]
TALK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 90, "temperature": 0}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("letters") / "tiny"
    shutil.copytree(tiny_llama.built(), path)
    write_letters(tokenizers, path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def server(folder):
    return Server(hetero_tvm.load_language_model(folder, cache_tokens=64 * tiny_llama.PAGE), "tiny")


@pytest.fixture(scope="module")
def client(server):
    with TestClient(server.app()) as client:
        yield client


def chat(client, **body):
    answer = client.post("/v1/chat/completions", json={**TALK, **body})
    assert answer.is_success, answer.text
    return answer


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_format(client, temperature):
    body = chat(client, response_format=FORMAT, n=3, seed=3, temperature=temperature).json()
    for choice in body["choices"]:
        assert 0 <= json.loads(choice["message"]["content"])["size"] <= 99
        assert choice["finish_reason"] == "stop"


def test_texts_with_a_format_beside_one_without(client):
    free = client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 20, "temperature": 0}).json()
    ask = {"prompt": "hi", "max_tokens": 20, "temperature": 0, "guided_regex": "[0-9]{4}"}
    guided = client.post("/v1/completions", json=ask).json()["choices"][0]
    assert guided["text"].isdecimal() and len(guided["text"]) == 4
    again = client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 20, "temperature": 0}).json()
    assert again["choices"] == free["choices"]


def test_a_stream_of_a_format(client):
    ask = {"response_format": FORMAT, "stream": True, "stream_options": {"include_usage": True}}
    first, *pieces, end, usage = events(chat(client, **ask))
    text = "".join(piece["choices"][0]["delta"]["content"] for piece in pieces)
    assert text == chat(client, response_format=FORMAT).json()["choices"][0]["message"]["content"]
    assert end["choices"][0]["finish_reason"] == "stop" and usage["choices"] == []


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"grow", "move"}), ({"type": "function", "function": {"name": "move"}}, {"move"})],
)
def test_a_call_that_is_asked_for(client, choice, names):
    ask = {
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "temperature": 1,
        "n": 4,
        "seed": 1,
    }
    for made in chat(client, **ask).json()["choices"]:
        (call,) = made["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert call["function"]["name"] in names and made["finish_reason"] == "tool_calls"
        assert made["message"]["content"] is None and list(arguments) in (["size"], ["at"])
    first, calls, end = events(chat(client, **{**ask, "n": 1, "stream": True}))
    (call,) = calls["choices"][0]["delta"]["tool_calls"]
    assert call["index"] == 0 and call["function"]["name"] in names
    assert end["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_in_the_words_of_the_model(client, server, monkeypatch):
    """The model's text is made to be one: marks of structure are part of it."""
    monkeypatch.setattr(server._template, "tools_source", "tools <|mark|>")
    said = '<|mark|>[{"name": "grow", "arguments": {"size": 5}}]'
    from hetero_tvm.serving import app
    from hetero_tvm.serving.tools import CallFormat, _json_calls

    monkeypatch.setattr(app, "format_of", lambda source: CallFormat("<|mark|>", (), _json_calls))
    from hetero_tvm.generation.sampling import Sampling

    tokens = [MARK, *(NAMES.index(letter) for letter in said[8:]), END]
    monkeypatch.setattr(Sampling, "choose", lambda self, logits, text, random: tokens[len(text) - self.given])
    monkeypatch.setattr(Sampling, "reads_text", True)
    answer = chat(client, tools=TOOLS).json()["choices"][0]
    assert answer["message"]["tool_calls"][0]["function"] == {"name": "grow", "arguments": '{"size": 5}'}
    assert (answer["message"]["content"], answer["finish_reason"]) == (None, "tool_calls")
    _, calls, end = events(chat(client, tools=TOOLS, stream=True))
    assert calls["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "grow"
    plain = chat(client).json()["choices"][0]["message"]
    assert plain == {"role": "assistant", "content": said[8:]}


def test_the_template_shows_tools(client, server):
    told = server._template.prompt(TALK["messages"], tools=TOOLS)
    assert told == "grow move <|mark|>uhi"
    asked = chat(client, tools=TOOLS, max_tokens=1).json()["usage"]["prompt_tokens"]
    assert asked == len("grow move uhi") + 1
    without = chat(client, tools=TOOLS, tool_choice="none", max_tokens=1).json()["usage"]["prompt_tokens"]
    assert without == len("uhi") + 1


def test_templates_without_a_place_for_tools(client, server, monkeypatch):
    monkeypatch.setattr(server._template, "_reads_tools", False)
    answer = client.post("/v1/chat/completions", json={**TALK, "tools": TOOLS})
    assert answer.status_code == 400 and "no place for tools" in answer.json()["error"]["message"]


def test_what_cannot_be_followed(client):
    answer = client.post("/v1/chat/completions", json={**TALK, "guided_regex": "((("})
    assert answer.status_code == 400 and "regular expression" in answer.json()["error"]["message"]
    both = client.post("/v1/chat/completions", json={**TALK, "tools": TOOLS, "response_format": FORMAT})
    assert both.status_code == 400 and "leave one of them" in both.json()["error"]["message"]


def test_ends(client):
    ask = {"prompt": "hi", "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    whole = client.post("/v1/completions", json=ask).json()
    assert whole["usage"]["completion_tokens"] == 30 and whole["choices"][0]["finish_reason"] == "length"
    text = whole["choices"][0]["text"]
    letter = text[5]
    ends = {"stop_token_ids": [NAMES.index(letter)]}
    cut = client.post("/v1/completions", json={**ask, **ends}).json()["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (text[: text.index(letter)], "stop")
    least = client.post("/v1/completions", json={**ask, **ends, "min_tokens": 12}).json()
    assert least["usage"]["completion_tokens"] >= 12
    assert letter not in least["choices"][0]["text"][:12]


def test_the_likeliest_of_several(client):
    ask = {"prompt": ["hi", "ho"], "max_tokens": 5, "temperature": 1.5, "seed": 2, "logprobs": 0}
    made = client.post("/v1/completions", json={**ask, "n": 6}).json()["choices"]
    best = client.post("/v1/completions", json={**ask, "n": 2, "best_of": 6}).json()

    def mean(choice):
        return sum(choice["logprobs"]["token_logprobs"]) / len(choice["logprobs"]["token_logprobs"])

    wanted = [sorted(made[at : at + 6], key=mean)[::-1][:2] for at in (0, 6)]
    assert [c["text"] for c in best["choices"]] == [c["text"] for group in wanted for c in group]
    assert [c["index"] for c in best["choices"]] == [0, 1, 2, 3]
    assert best["usage"]["completion_tokens"] == 60
    quiet = client.post("/v1/completions", json={**ask, "best_of": 6, "logprobs": None}).json()["choices"]
    assert [c["text"] for c in quiet] == [group[0]["text"] for group in wanted]
    assert quiet[0]["logprobs"] is None
