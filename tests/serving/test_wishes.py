"""Bodies of requests: what is read, and all that is wrong told at once."""

import pytest

from hetero_tvm.errors import InputError
from hetero_tvm.serving.wishes import read

TALK = {"messages": [{"role": "user", "content": "hello"}]}


def test_defaults_are_those_of_openai():
    wishes = read({"prompt": "x", "model": "m"}, chat=False)
    assert (wishes.prompts, wishes.max_tokens, wishes.choices, wishes.stream) == (["x"], 16, 1, False)
    assert (wishes.sampling.temperature, wishes.sampling.top_p, wishes.sampling.seed) == (1.0, 1.0, None)
    assert read(TALK, chat=True).max_tokens is None


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), ([5, 6], [[5, 6]]), (["a", "b"], ["a", "b"]), ([[5], [6, 7]], [[5], [6, 7]])],
)
def test_prompts(prompt, prompts):
    assert read({"prompt": prompt}, chat=False).prompts == prompts


def test_fields():
    body = {"max_tokens": 3, "max_completion_tokens": 4, "stop": "x", "n": 2, "seed": 7, "top_k": -1}
    wishes = read({**TALK, **body, "stream": True, "stream_options": {"include_usage": True}}, chat=True)
    assert (wishes.max_tokens, wishes.stop, wishes.choices, wishes.usage) == (4, ["x"], 2, True)
    assert (wishes.sampling.top_k, wishes.sampling.for_text(0).seed, wishes.sampling.for_text(1).seed) == (
        0,
        7,
        8,
    )


def test_penalties_and_biases():
    body = {"presence_penalty": -0.5, "frequency_penalty": 1, "logit_bias": {"5": -100, "7": 0.5}}
    sampling = read({**TALK, **body}, chat=True).sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-0.5, 1.0)
    assert sampling.bias == ((5, -100.0), (7, 0.5))


@pytest.mark.parametrize("bias", [[5], {"w5": 1}, {"5": 101}, {"5": True}, {"-1": 3}, {"9" * 30: 1}, "x"])
def test_biases_that_cannot_be_read(bias):
    with pytest.raises(InputError, match="logit_bias is not"):
        read({**TALK, "logit_bias": bias}, chat=True)


@pytest.mark.parametrize(
    "name", ["functions", "suffix", "modalities", "skip_special_tokens", "length_penalty"]
)
def test_what_is_not_built_is_not_ignored(name):
    with pytest.raises(InputError, match=f"{name} is not built"):
        read({**TALK, name: ["audio"]}, chat=True)


def test_what_asks_for_nothing_is_taken():
    neutral = {"length_penalty": 1.0, "skip_special_tokens": True, "documents": None, "mirostat": 0}
    assert read({**TALK, **neutral}, chat=True).messages == TALK["messages"]


def test_parts_of_a_message_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    wishes = read({"messages": [{"role": "user", "content": parts}]}, chat=True)
    assert wishes.messages == [{"role": "user", "content": "ab"}]


@pytest.mark.parametrize("body", [None, [], "text", 3])
def test_what_is_no_object(body):
    with pytest.raises(InputError, match="not a JSON object"):
        read(body, chat=False)


def test_all_problems_are_told():
    body = {
        "prompt": [True],
        "max_tokens": 0,
        "temperature": -1,
        "top_p": "much",
        "n": 99,
        "stop": [""],
        "stream": "yes",
        "seed": 1.5,
        "logprobs": 21,
        "tools": [{}],
        "presence_penalty": 0,  # asks for nothing
    }
    with pytest.raises(InputError) as caught:
        read(body, chat=False)
    words = ("prompt", "max_tokens", "temperature", "top_p", "n is", "stop", "stream", "seed", "logprobs")
    assert len(caught.value.problems) == 10
    assert all(any(word in problem for problem in caught.value.problems) for word in (*words, "tools"))


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"content": "x"}, "a role"),
        ("x", "a role"),
        ({"role": "user"}, "not text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "parts that are no text (image_url)"),
    ],
)
def test_messages_that_cannot_be_read(message, problem):
    with pytest.raises(InputError) as caught:
        read({"messages": [message]}, chat=True)
    assert problem in str(caught.value)
    with pytest.raises(InputError, match="not a list of messages"):
        read({"messages": []}, chat=True)


@pytest.mark.parametrize(
    ("body", "chat", "logprobs"),
    [
        ({}, False, None),
        ({"logprobs": None}, False, None),
        ({"logprobs": 0}, False, 0),
        ({"logprobs": 5}, False, 5),
        ({"logprobs": False}, True, None),
        ({"logprobs": True}, True, 0),
        ({"logprobs": True, "top_logprobs": 20}, True, 20),
    ],
)
def test_log_probabilities(body, chat, logprobs):
    assert read({**TALK, "prompt": "x", **body}, chat).logprobs == logprobs


@pytest.mark.parametrize(
    ("body", "chat", "problem"),
    [
        ({"logprobs": True}, False, "logprobs is True"),
        ({"logprobs": 5}, True, "expected true or false"),
        ({"top_logprobs": 5}, True, "top_logprobs is given without logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, True, "top_logprobs is 21, at most 20"),
        ({"max_tokens": 0}, False, "max_tokens is 0"),
        ({"echo": 1.5}, False, "echo is 1.5"),
    ],
)
def test_log_probabilities_that_cannot_be_told(body, chat, problem):
    with pytest.raises(InputError, match=problem):
        read({**TALK, "prompt": "x", **body}, chat)


def test_a_prompt_alone_is_scored():
    wishes = read({"prompt": "x", "echo": True, "logprobs": 1, "max_tokens": 0}, chat=False)
    assert (wishes.echo, wishes.max_tokens) == (True, 0)


@pytest.mark.parametrize(("seed", "taken"), [(-5, 2**64 - 5), (2**64 + 3, 3), (0, 0), (None, None)])
def test_any_whole_number_is_a_seed(seed, taken):
    assert read({**TALK, "seed": seed}, chat=True).sampling.seed == taken


def test_names_for_the_template():
    body = {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}
    assert read({**TALK, **body}, chat=True).template == {"reasoning_effort": "low", "enable_thinking": False}
    assert read({"prompt": "x", **body}, chat=False).template == {}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"seed": 1.5}, "seed is 1.5, expected a whole number"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs is not an object of names beside"),
        ({"chat_template_kwargs": ["x"]}, "chat_template_kwargs is not an object"),
        ({"reasoning_effort": 3}, "reasoning_effort is 3, expected a word"),
        (
            {"messages": [*TALK["messages"], {"role": "assistant", "content": None, "tool_calls": [{}]}]},
            "messages\\[1\\].tool_calls are not calls of functions",
        ),
        ({"stop_token_ids": ["x"]}, "stop_token_ids is not a list of tokens"),
        ({"ignore_eos": 1.5}, "ignore_eos is 1.5"),
        ({"min_tokens": -1}, "min_tokens is -1"),
    ],
)
def test_fields_of_newer_clients_that_cannot_be_read(body, problem):
    with pytest.raises(InputError, match=problem):
        read({**TALK, **body}, chat=True)


def test_ends_of_texts():
    wishes = read({**TALK, "stop_token_ids": [7, 8], "ignore_eos": True, "min_tokens": 3}, chat=True)
    assert (wishes.ends, wishes.endless, wishes.least_tokens) == ({7, 8}, True, 3)
    assert read({**TALK, "stop_token_ids": []}, chat=True).ends == frozenset()


def test_the_likeliest_of_several():
    assert read({"prompt": "x", "n": 2}, chat=False).best_of == 2
    assert read({"prompt": "x", "n": 2, "best_of": 5}, chat=False).best_of == 5
    for wrong in ({"n": 3, "best_of": 2}, {"best_of": 17}, {"best_of": 2, "stream": True}):
        with pytest.raises(InputError, match="best_of"):
            read({"prompt": "x", **wrong}, chat=False)


def test_calls_in_a_conversation_are_objects():
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    answered = {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "5"}]}
    wishes = read({"messages": [*TALK["messages"], said, answered]}, chat=True)
    assert wishes.messages[1]["content"] == ""
    assert wishes.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert wishes.messages[2] == {"role": "tool", "tool_call_id": "a", "content": "5"}
    for arguments in ("[1]", "{", 5):
        call["function"]["arguments"] = arguments
        with pytest.raises(InputError, match="tool_calls are not calls"):
            read({"messages": [said]}, chat=True)
