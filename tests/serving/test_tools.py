"""Calls of tools in texts, in the words of the families of models that write them."""

import json

import pytest

from hetero_tvm.serving.tools import Call, CallReader, Tools, format_of

PLACE = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = Tools(
    tuple({"type": "function", "function": {"name": n, "parameters": PLACE}} for n in ("weather", "news"))
)
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'
CODER = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n"
    "</parameter>\n</function>\n</tool_call>"
)
GLM = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    '{"city": "Köln", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
DEEPSEEK_31 = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Köln", "days": 2}'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
LLAMA = '{"name": "weather", "parameters": {"city": "Köln", "days": 2}}'
COMMAND = '[{"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Köln", "days": 2}}]'
LISTED = '[{"name": "weather", "arguments": {"city": "Köln", "days": 2}}]'
FAMILIES = {
    "hermes": ("{{ '<tool_call>' }}", HERMES),
    "coder": ("<tool_call> <function=", CODER),
    "glm": ("<tool_call> <arg_key>", GLM),
    "phi": ("<|tool_call|>", f"<|tool_call|>{LISTED}<|/tool_call|>"),
    "phi_mini": ("'<|tool|>' + message['tools'] + '<|/tool|>'", f"<|tool_call|>{LISTED}<|/tool_call|>"),
    "mistral": ("[TOOL_CALLS]", f"[TOOL_CALLS] {LISTED}"),
    "mistral_named": ("[TOOL_CALLS] [ARGS]", '[TOOL_CALLS]weather[ARGS]{"city": "Köln", "days": 2}'),
    "command_r": ("<|START_ACTION|>", f"<|START_ACTION|>{COMMAND}<|END_ACTION|>"),
    "command_r_first": ("Action: tool_name", f"Action: ```json\n{COMMAND}\n```"),
    "deepseek": ("<｜tool▁calls▁begin｜>", DEEPSEEK),
    "deepseek_31": ("<｜tool▁calls▁begin｜>", DEEPSEEK_31),
    "llama": ('{"name": function name, "parameters": dictionary}', LLAMA),
    "llama_python": ('"parameters"', f"<|python_tag|>{LLAMA}"),
}
CALL = Call("weather", '{"city": "Köln", "days": 2}')


def read(template, text, size):
    """What is told of a text in pieces of ``size`` letters, and its calls."""
    reader = CallReader(TOOLS, format_of(template))
    told = [reader.add(text[at : at + size]) for at in range(0, len(text), size)]
    rest, calls = reader.finish()
    return "".join(told) + rest, calls


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_of_each_family(family, size):
    template, text = FAMILIES[family]
    assert read(template, text, size) == ("", [CALL])


@pytest.mark.parametrize("family", [name for name in FAMILIES if not name.startswith("llama")])
def test_words_before_a_call(family):
    template, text = FAMILIES[family]
    assert read(template, f"I look it up.\n\n{text}", 3) == ("I look it up.", [CALL])


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_without_calls_come_whole(family):
    template, _ = FAMILIES[family]
    for text in ("It rains. <b>2 < 3</b>\n", '  {"city": "Köln"}', "<tool_call", "", "[TOOL", "Action"):
        assert read(template, text, 2) == (text, [])


def test_several_calls():
    text = HERMES + "\n" + HERMES.replace("weather", "news")
    assert read("<tool_call>", text, 5) == ("", [CALL, CALL._replace(name="news")])
    assert [c.name for c in read('"parameters"', f"{LLAMA}; {LLAMA}", 5)[1]] == ["weather", "weather"]


@pytest.mark.parametrize(
    "text", [HERMES.replace("weather", "other"), HERMES[:40], "<tool_call>\nno JSON\n</tool_call>"]
)
def test_calls_that_are_none_are_text(text):
    assert read("<tool_call>", text, 4) == (text, [])


def test_texts_of_unknown_templates_are_told_as_they_are():
    assert format_of("{{ tools }}") is None
    assert read("{{ tools }}", HERMES, 6) == (HERMES, [])


def test_text_arguments_stay_text():
    text = CODER.replace("Köln", "123")
    assert json.loads(read("<tool_call> <function=", text, 9)[1][0].arguments) == {"city": "123", "days": 2}


def test_calls_that_are_asked_for():
    named = CallReader(Tools(TOOLS.listed, "news"), None)
    assert named.add('{"city": ') == "" and named.add('"Köln"}') == ""
    assert named.finish() == ("", [Call("news", '{"city": "Köln"}')])
    some = CallReader(Tools(TOOLS.listed, ""), None)
    some.add(LISTED)
    assert some.finish() == ("", [CALL])
    cut = CallReader(Tools(TOOLS.listed, ""), None)
    assert (cut.add(LISTED[:20]), cut.finish()) == ("", (LISTED[:20], []))


def test_a_call_has_a_name_of_nine_letters():
    written = CALL.to_json()
    assert written["type"] == "function" and written["function"] == CALL._asdict()
    assert len(written["id"]) == 9 and written["id"].isalnum()
