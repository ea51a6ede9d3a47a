import importlib.util
import io
import json
import shutil
import sys

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import generate
from hetero_tvm.generation.beams import BeamSearch, search_beams
from tests import tiny_llama
from tests.generation.letters import write_letters


def run(*arguments):
    return generate.main([str(tiny_llama.built()), "-q", *arguments])


def test_one_text_as_json(capsys):
    assert run("--prompt-ids", "5,6,7", "--max-new-tokens", "9", "--json", "--ignore-stop") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tokens"] == tiny_llama.greedy([5, 6, 7], 9)
    assert document["reason"] == "length" and document["prompt_tokens"] == 3
    assert document["prefill_s"] > 0 and document["decode_s"] > 0


def test_several_texts(capsys):
    prompts = ("--prompt-ids", "5,6,7", "--prompt-ids", "90")
    assert run(*prompts, "--max-new-tokens", "4", "--ignore-stop") == 0
    want = [tiny_llama.greedy(prompt, 4) for prompt in ([5, 6, 7], [90])]
    assert capsys.readouterr().out.split() == [",".join(map(str, tokens)) for tokens in want]


def test_the_best_of_several_beams(capsys):
    """Also of two prompts; the text is what the search gives."""
    model = hetero_tvm.load_language_model(tiny_llama.built())
    want = [search_beams(model, p, search=BeamSearch(3), max_new_tokens=6)[0].tokens for p in ([5, 6], [90])]
    assert run("--prompt-ids", "5,6", "--prompt-ids", "90", "--beams", "3", "--max-new-tokens", "6") == 0
    assert capsys.readouterr().out.split() == [",".join(map(str, tokens)) for tokens in want]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no prompt"),
        (("--prompt-ids", "5,97"), "token 97"),
        (("--prompt-ids", "5", "--max-new-tokens", "500"), "context is 128"),
        (("--prompt-ids", "5", "--temperature", "-1"), "temperature"),
        (("--prompt", "hello"), "tokenizer.json"),
        (("--prompt-ids", "5", "--beams", "2", "--top-k", "3"), "draws none"),
        (("--prompt-ids", "5", "--beams", "2", "--json", "--logprobs", "1"), "neither --stop nor --logprobs"),
        (("--prompt-ids", "5", "--logprobs", "1"), "--json"),
        (("--prompt-ids", "5", "--json", "--logprobs", "21"), "expected 0 to 20"),
        (("--prompt-ids", "5", "--system", "s"), "needs --chat"),
        (("--prompt-ids", "5", "--chat"), "--chat takes texts"),
        (("--prompt-ids", "5", "--draft", "d", "--beams", "2"), "--draft"),
        (("--prompt-file", "/nowhere/x"), "cannot read /nowhere/x: No such file"),
    ],
)
def test_what_cannot_be_is_told(capsys, arguments, message):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def with_words(tmp_path):
    """The library in a folder with a tokenizer: ``w0 w1 ...``."""
    from tests.generation.test_text import write_tokenizer

    tokenizers, out = pytest.importorskip("tokenizers"), tmp_path / "out"
    out.mkdir()
    for name in ("model.so", "model.manifest.json"):
        shutil.copy(tiny_llama.built() / name, out)
    write_tokenizer(tokenizers, out)
    return out


def words(tokens):
    return " ".join(f"w{token}" for token in tokens)


def test_words_of_a_tokenizer(capsys, with_words):
    rest = ("--max-new-tokens", "4", "--ignore-stop")
    assert generate.main([str(with_words), "--prompt", "w5 w6 w7", *rest]) == 0
    want = words(tiny_llama.greedy([5, 6, 7], 4))
    captured = capsys.readouterr()
    assert captured.out.strip() == want
    pytest.importorskip("jinja2")
    (with_words / "chat_template.jinja").write_text(
        "{{ messages | map(attribute='content') | join(' ') }} w7"
    )
    assert generate.main([str(with_words), "--chat", "--system", "w5", "--prompt", "w6", *rest]) == 0
    assert capsys.readouterr().out.strip() == want
    assert "new tokens" in captured.err


def test_tokens_need_no_package_for_words(capsys, monkeypatch, with_words):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tokenizers" else find(name)
    )
    given = [str(with_words), "--prompt-ids", "5,6,7", "--max-new-tokens", "4", "--json", "--ignore-stop"]
    assert generate.main(given) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["tokens"] == tiny_llama.greedy([5, 6, 7], 4)
    assert "tokenizers is not installed" in said.err


@pytest.mark.parametrize("form", [(), ("--json",), ("--draft",)])
def test_a_text_ends_before_a_stop_string(capsys, with_words, form):
    """As it is printed, in the document, and with a draft; the rest of the prompts goes on."""
    tokens = tiny_llama.greedy([5, 6, 7], 12)
    form = ("--draft", str(tiny_llama.built())) if form == ("--draft",) else form
    stop = f"{words(tokens[4:6])} "  # nothing follows a space but the next word
    arguments = [str(with_words), "-q", "--prompt", "w5 w6 w7", "--max-new-tokens", "12", "--ignore-stop"]
    assert generate.main([*arguments, "--stop", stop, "--stop", "none such", *form]) == 0
    out, want = capsys.readouterr().out, words(tokens[:4])
    if form != ("--json",):
        assert out.strip() == want
        return
    document = json.loads(out)
    assert document["text"].strip() == want and document["reason"] == "stop"
    assert document["tokens"] == tokens[:7]


def test_prompts_keep_the_order_of_the_command_line(capsys, monkeypatch, tmp_path, with_words):
    """Tokens, texts, files and stdin."""
    (tmp_path / "prompt.txt").write_text("w5\nw6\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("w9\n"))
    given = ("--prompt", "w90", "--prompt-ids", "5,6,7", "--prompt-file", str(tmp_path / "prompt.txt"))
    rest = ("--prompt-file", "-", "--max-new-tokens", "3", "--ignore-stop", "--json")
    assert generate.main([str(with_words), *given, *rest]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tokens"] == [tiny_llama.greedy(p, 3) for p in ([90], [5, 6, 7], [5, 6], [9])]


def test_log_probabilities(capsys, with_words):
    """Those of the tokens and of the likeliest, to 1e-4 of float64, with words where there is a tokenizer."""
    rest = ("--prompt-ids", "5,6", "--json", "--logprobs", "2", "--max-new-tokens", "2", "--ignore-stop")
    logits = tiny_llama.logits([5, 6])[-1]
    want = logits - np.log(np.exp(logits).sum())
    best = np.argsort(-want)[:2]
    for folder, named in ((with_words, True), (tiny_llama.built(), False)):
        assert generate.main([str(folder), *rest]) == 0
        [first, _] = json.loads(capsys.readouterr().out)["logprobs"]
        assert [one["token"] for one in first["top"]] == best.tolist()
        assert first["logprob"] == pytest.approx(want[best[0]], abs=1e-4)
        assert first["top"][1]["logprob"] == pytest.approx(want[best[1]], abs=1e-4)
        assert first.get("text", "").strip() == (f"w{best[0]}" if named else "")


def test_a_draft_changes_no_text(capsys):
    draft = ("--draft", str(tiny_llama.built()))
    prompts = ("--prompt-ids", "5,6,7", "--prompt-ids", "90")
    assert run(*prompts, *draft, "--max-new-tokens", "9", "--ignore-stop", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tokens"] == [tiny_llama.greedy(prompt, 9) for prompt in ([5, 6, 7], [90])]
    assert document["reason"] == ["length", "length"] and document["prefill_s"] > 0


def test_each_text_draws_numbers_of_its_own(capsys):
    drawn = ("--temperature", "3", "--seed", "1", "--max-new-tokens", "9", "--json")
    assert run("--prompt-ids", "5", "--prompt-ids", "5", *drawn) == 0
    one, other = json.loads(capsys.readouterr().out)["tokens"]
    assert one != other


def test_texts_that_follow_a_schema_or_an_expression(capsys, tmp_path):
    pytest.importorskip("llguidance")
    tokenizers = pytest.importorskip("tokenizers")
    shutil.copytree(tiny_llama.built(), tmp_path / "tiny")
    write_letters(tokenizers, tmp_path / "tiny")
    schema = tmp_path / "schema.json"
    schema.write_text(
        '{"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"], '
        '"additionalProperties": false}'
    )
    given = [str(tmp_path / "tiny"), "--prompt", "hi", "--prompt", "ho", "--json", "-q"]
    drawn = ["--temperature", "1", "--seed", "3"]
    assert generate.main([*given, "--json-schema", str(schema), "--max-new-tokens", "60", *drawn]) == 0
    document = json.loads(capsys.readouterr().out)
    assert all(json.loads(text)["a"] in (1, 22) for text in document["text"])
    assert generate.main([*given, "--regex", "[0-9]{3}", "--max-new-tokens", "9", *drawn]) == 0
    document = json.loads(capsys.readouterr().out)
    assert all(text.isdecimal() and len(text) == 3 for text in document["text"])
    assert document["reason"] == ["stop", "stop"]
    assert generate.main([*given, "--regex", "((("]) == 2
    assert "regular expression cannot be followed" in capsys.readouterr().err
    assert generate.main([*given, "--regex", "a", "--beams", "2"]) == 2
