import json
import shutil

import pytest

import hetero_tvm
from hetero_tvm import generate
from hetero_tvm.generation.beams import BeamSearch, search_beams
from tests import tiny_llama


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
    ],
)
def test_what_cannot_be_is_told(capsys, arguments, message):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


def test_words_of_a_tokenizer(capsys, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    from tests.generation.test_text import write_tokenizer

    out = tmp_path / "out"
    out.mkdir()
    for name in ("model.so", "model.manifest.json"):
        shutil.copy(tiny_llama.built() / name, out)
    write_tokenizer(tokenizers, out)
    assert generate.main([str(out), "--prompt", "w5 w6 w7", "--max-new-tokens", "4", "--ignore-stop"]) == 0
    want = " ".join(f"w{token}" for token in tiny_llama.greedy([5, 6, 7], 4))
    captured = capsys.readouterr()
    assert captured.out.strip() == want
    pytest.importorskip("jinja2")
    (out / "chat_template.jinja").write_text("{{ messages[0].content }} w7")
    assert (
        generate.main([str(out), "--chat", "--prompt", "w5 w6", "--max-new-tokens", "4", "--ignore-stop"])
        == 0
    )
    assert capsys.readouterr().out.strip() == want
    assert "new tokens" in captured.err
