"""Chat templates: those of transformers, refusals, and what a hostile template cannot reach."""

import json

import pytest

from hetero_tvm.errors import InputError, LibraryError
from hetero_tvm.generation.chat import ChatTemplate

pytest.importorskip("jinja2")

CHATML = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {%- if message.role not in ['system', 'user', 'assistant'] %}\n"
    "        {{- raise_exception('an unknown role') }}\n"
    "    {%- endif %}\n"
    "{{ '<|' + message.role + '|>' + message['content'] + eos_token }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
TALK = [
    {"role": "system", "content": "be <brief>"},
    {"role": "user", "content": 'say "é"'},
]


def written(folder, template=CHATML, **config):
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_it_writes_what_transformers_writes(tmp_path):
    template = ChatTemplate(written(tmp_path))
    from transformers.utils.chat_template_utils import render_jinja_template

    for generation in (True, False):
        wanted, _ = render_jinja_template(
            conversations=[TALK],
            chat_template=CHATML,
            add_generation_prompt=generation,
            bos_token="<s>",
            eos_token="</s>",
        )
        assert template.prompt(TALK, generation) == wanted[0]


MARKED = """
{%- if tools is not none %}
    {{- 'tools: ' ~ tools | tojson }}
{%- endif %}
{%- for message in messages %}
    {%- set words = message.content %}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {%- set words = 'inside' %}
            {{- '<' + message.content + '>' + eos_token }}
        {%- endgeneration %}
    {%- else %}
        {{- {'b': words, 'a': 'é'} | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}
    {%- endif %}
    {{- words }}
{%- endfor %}"""


def test_blocks_of_training_and_tools_that_are_none(tmp_path):
    """SmolLM3's template was called damaged; one that asks whether tools are none wrote some."""
    from transformers.utils.chat_template_utils import render_jinja_template

    talk = [*TALK, {"role": "assistant", "content": "é"}]
    wanted, _ = render_jinja_template(conversations=[talk], chat_template=MARKED, eos_token="</s>")
    assert ChatTemplate(written(tmp_path, MARKED)).prompt(talk, False) == wanted[0]


def test_names_that_a_client_gives(tmp_path):
    template = ChatTemplate(
        written(tmp_path, "{{ messages | length }}{% if thinking is false %} quick{% endif %}")
    )
    assert template.prompt(TALK) == "2"
    assert template.prompt(TALK, options={"thinking": False, "messages": []}) == "2 quick"


def test_a_file_of_its_own_goes_before_the_configuration(tmp_path):
    (written(tmp_path) / "chat_template.jinja").write_text("{{ messages[0].content | tojson }}")
    assert ChatTemplate(tmp_path).prompt(TALK) == '"be <brief>"'


def test_of_several_the_default_is_taken(tmp_path):
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ bos_token }}"}]
    assert ChatTemplate(written(tmp_path, several)).prompt(TALK) == "<s>"


def test_what_the_template_refuses_is_told(tmp_path):
    template = ChatTemplate(written(tmp_path))
    with pytest.raises(InputError, match="an unknown role"):
        template.prompt([{"role": "judge", "content": "x"}])
    with pytest.raises(InputError, match="refuses"):
        ChatTemplate(written(tmp_path, "{{ messages[7].content.upper() }}")).prompt(TALK)


@pytest.mark.parametrize(
    "template", ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}"]
)
def test_a_template_reaches_nothing(tmp_path, template):
    with pytest.raises(InputError, match="refuses"):
        ChatTemplate(written(tmp_path, template)).prompt(TALK)


def test_none_and_damaged_ones(tmp_path):
    with pytest.raises(LibraryError, match="no chat template"):
        ChatTemplate(tmp_path)
    with pytest.raises(LibraryError, match="damaged"):
        ChatTemplate(written(tmp_path, "{% if %}"))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(LibraryError, match="cannot read"):
        ChatTemplate(tmp_path)


TOOL = {"type": "function", "function": {"name": "f", "description": "ä"}}
ASKED = [{"role": "user", "content": "hi"}]


def template_of(tmp_path, source):
    (tmp_path / "chat_template.jinja").write_text(source)
    return ChatTemplate(tmp_path)


def test_tools_of_a_template(tmp_path):
    template = template_of(
        tmp_path, "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ messages | length }}"
    )
    assert template.prompt(ASKED) == "1"
    assert template.prompt(ASKED, tools=[TOOL]) == json.dumps(TOOL, ensure_ascii=False) + "1"


def test_tools_in_the_first_message(tmp_path):
    """As Phi-4-mini has them, which reads no ``tools`` of its own."""
    template = template_of(
        tmp_path,
        "{% for message in messages %}{% if 'tools' in message and message['tools'] is not none %}"
        "{{ message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' }}{% else %}"
        "{{ message['content'] }}{% endif %}{% endfor %}",
    )
    shown = '<|tool|>[{"name": "f", "description": "ä"}]<|/tool|>'
    assert template.prompt(ASKED, tools=[TOOL]) == shown + "hi"
    assert template.prompt([{"role": "system", "content": "s"}, *ASKED], tools=[TOOL]) == f"s{shown}hi"
    assert template.prompt(ASKED) == "hi"


def test_a_template_that_only_names_tools_has_no_place_for_them(tmp_path):
    template = template_of(
        tmp_path, "{# tools #}{% set tools = none %}{{ messages[0].content }}{{ 'tools' }}"
    )
    with pytest.raises(InputError, match="no place for tools"):
        template.prompt(ASKED, tools=[TOOL])


@pytest.mark.parametrize(
    "source", ["{{ c.arguments | tojson }}", "{{ c.arguments }}", "{{ '' + c.arguments + '' }}"]
)
def test_arguments_of_calls_are_objects_and_text(tmp_path, source):
    """DeepSeek's template joins them to text, others write them as JSON."""
    head = "{% for m in messages %}{% for t in m.tool_calls or [] %}{% set c = t.function %}"
    template = template_of(tmp_path, head + source + "{% endfor %}{% endfor %}")
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": "ä", "b": [1]}}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert template.prompt([said]) == '{"a": "ä", "b": [1]}'


def test_the_template_for_tools(tmp_path):
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools | length }} tools")
    template = template_of(tmp_path, "plain")
    assert template.prompt(ASKED) == "plain" and template.prompt(ASKED, tools=[TOOL]) == "1 tools"


@pytest.mark.parametrize(
    ("source", "role"),
    [("{{ messages[0].role }}", "system"), ("{# developer #}{{ messages[0].role }}", "developer")],
)
def test_developers_speak_as_the_system(tmp_path, source, role):
    assert template_of(tmp_path, source).prompt([{"role": "developer", "content": "x"}]) == role
