"""Grammars over tokens: what may come next, where texts end, and what cannot be followed."""

import json

import numpy as np
import pytest

pytest.importorskip("llguidance")
tokenizers = pytest.importorskip("tokenizers")

from hetero_tvm.errors import InputError  # noqa: E402
from hetero_tvm.generation.grammar import Grammar, Grammars  # noqa: E402
from hetero_tvm.generation.text import Tokenizer  # noqa: E402
from tests.generation.letters import END, MARK, NAMES, write_letters  # noqa: E402

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "size": {"enum": [1, 22, 333]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("letters")
    write_letters(tokenizers, path)
    return path


@pytest.fixture(scope="module")
def grammars(folder):
    return Grammars(Tokenizer(folder), 100, [END])


def told(grammars, grammar, seed=0, most=400):
    """A text of random logits that follows a grammar, and whether it has ended."""
    random, text = np.random.default_rng(seed), grammars.begin(grammar)
    tokens = []
    while not text.ended and len(tokens) < most:
        logits = text.applied(random.standard_normal(100).astype(np.float32))
        tokens.append(int(np.argmax(logits)))
        text.add(tokens[-1])
    return "".join(NAMES[token] for token in tokens if token < MARK), text.ended


@pytest.mark.parametrize("seed", range(8))
def test_any_text_of_a_schema_is_read_by_it(grammars, seed):
    text, ended = told(grammars, Grammar.of_schema(SCHEMA), seed)
    value = json.loads(text)
    assert ended and list(value) == ["name", "size"]
    assert len(value["name"]) <= 5 and value["size"] in (1, 22, 333)


@pytest.mark.parametrize("seed", range(4))
def test_tokenizers_that_put_a_space_before_a_text(tmp_path, seed):
    """As those of Llama 2 and Mistral: it is no part of what a grammar sees."""
    names = ["</s>", "▁", *NAMES[1:], '▁{"', '":', *(f"<0x{byte:02X}>" for byte in range(256))]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({name: n for n, name in enumerate(names)}, [], byte_fallback=True)
    )
    normalizers, decoders = tokenizers.normalizers, tokenizers.decoders
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    random, text = np.random.default_rng(seed), Grammars(tokenizer, 400, [0]).begin(Grammar.of_schema(SCHEMA))
    tokens = []
    while not text.ended:
        tokens.append(int(np.argmax(text.applied(random.standard_normal(400).astype(np.float32)))))
        text.add(tokens[-1])
    value = json.loads(tokenizer.decode(tokens))
    assert len(value["name"]) <= 5 and value["size"] in (1, 22, 333)


def test_expressions_choices_and_grammars(grammars):
    assert told(grammars, Grammar("regex", "[ab]{3}c"))[0].strip("ab") == "c"
    assert {told(grammars, Grammar("choice", '["yes", "no", "\\\\d"]'), seed)[0] for seed in range(9)} == {
        "yes",
        "no",
        r"\d",
    }
    assert told(grammars, Grammar("grammar", 'start: "x" "y"+ "z"'))[0].startswith("xy")
    assert told(grammars, Grammar("grammar", 'root ::= "x" "y" "z"'))[0] == "xyz"


def test_a_text_may_end_where_it_is_whole(grammars):
    text = grammars.begin(Grammar("regex", "a+"))
    assert np.isinf(text.applied(np.zeros(100, np.float32))[END])
    text.add(NAMES.index("a"))
    logits = text.applied(np.zeros(100, np.float32))
    assert set(np.flatnonzero(np.isfinite(logits))) == {NAMES.index("a"), END} and not text.ended
    text.add(END)
    assert text.ended


def test_without_an_end_a_text_ends_where_nothing_follows(folder):
    grammars = Grammars(Tokenizer(folder), 97, [])
    text = grammars.begin(Grammar("regex", "ab"))
    for letter in "ab":
        logits = text.applied(np.zeros(97, np.float32))
        assert np.flatnonzero(np.isfinite(logits)).tolist() == [NAMES.index(letter)]
        text.add(NAMES.index(letter))
    assert text.ended


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar("regex", "((("), "regular expression cannot be followed: .*invalid regex"),
        (Grammar.of_schema({"type": "string", "format": "odd"}), "JSON schema cannot .*Unknown format: odd"),
        (
            Grammar.of_schema({"type": "object", "patternProperties": {"(": {}}}),
            "JSON schema cannot be followed: regex parse error: unclosed group",
        ),
        (Grammar.of_schema({"$ref": "http://example.com/x"}), "JSON schema cannot be followed"),
        (Grammar.of_schema({"type": "whatever"}), "JSON schema cannot be followed"),
        (Grammar("grammar", "start: nothing"), "grammar cannot be followed"),
        (Grammar("grammar", "root ::= ("), "grammar cannot be followed"),
    ],
)
def test_what_cannot_be_followed(grammars, grammar, words):
    with pytest.raises(InputError, match=words):
        grammars.begin(grammar)


def test_a_token_that_is_none_of_it(grammars):
    text = grammars.begin(Grammar("regex", "ab"))
    with pytest.raises(InputError, match="token|grammar"):
        text.add(NAMES.index("z"))


def test_letters_that_no_token_has(grammars):
    text = grammars.begin(Grammar("regex", "ä"))
    with pytest.raises(InputError, match="no token of the model goes on"):
        text.applied(np.zeros(100, np.float32))
