import pytest

from hetero_tvm.errors import LibraryError
from hetero_tvm.generation.text import StopText, Tokenizer, Words


def write_tokenizer(tokenizers, folder, vocab=97):
    """``w0 w1 ...`` with spaces between."""
    words = {f"w{n}": n for n in range(vocab)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))


def test_there_and_back(tmp_path):
    write_tokenizer(pytest.importorskip("tokenizers"), tmp_path)
    tokenizer = Tokenizer(tmp_path)
    assert repr(tokenizer).startswith("<Tokenizer of ")
    assert tokenizer.encode("w3 w14") == [3, 14]
    assert tokenizer.decode([3, 14]) == "w3 w14"


def test_what_training_cut_and_filled_texts_to_is_no_part_of_a_prompt(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    write_tokenizer(tokenizers, tmp_path)
    made = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    made.enable_truncation(4)
    made.enable_padding(length=4, pad_id=0, pad_token="w0")
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("w3") == [3]
    assert tokenizer.encode("w1 w2 w3 w4 w5 w6") == [1, 2, 3, 4, 5, 6]


def test_a_cut_text_keeps_its_marks(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    write_tokenizer(tokenizers, tmp_path)
    made = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    marks = [("w1", 1), ("w2", 2)]
    made.post_processor = tokenizers.processors.TemplateProcessing("w1 $A w2", special_tokens=marks)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("w5 w6 w7", longest=4) == [1, 5, 6, 2]
    assert tokenizer.encode("w5 w6", longest=4) == [1, 5, 6, 2]
    assert tokenizer.encode("w5 w6 w7") == [1, 5, 6, 7, 2]
    cut = {n: tokenizer.encode("w5 w6 w7", longest=n) for n in (1, 2, 3)}
    assert cut == {1: [1], 2: [1, 5], 3: [1, 5, 2]}
    assert tokenizer.encode("w5 w6 w7", special=False, longest=2) == [5, 6]


class Bytes:
    """A tokenizer whose tokens are bytes: letters take several of them."""

    def decode(self, tokens):
        return bytes(tokens).decode("utf-8", "replace")


def test_words_come_when_they_are_whole():
    words, text = Words(Bytes()), "aä\n€!"
    pieces = [words.add(byte) for byte in text.encode()]
    assert "".join(pieces) == text
    assert pieces[1:3] == ["", "ä"]
    words = Words(Bytes())
    assert words.add("ä".encode()[0]) == ""
    assert words.finish() == "\ufffd"


class Spaced:
    """A tokenizer whose words bring their space, which is dropped at the start of a text."""

    def decode(self, tokens):
        return "".join(f" {token}" if token else "\n" for token in tokens).removeprefix(" ")


def test_spaces_between_words_stay():
    words, tokens = Words(Spaced()), [5, 6, 0, 7, 8]
    assert "".join(words.add(token) for token in tokens) == Spaced().decode(tokens) == "5 6\n 7 8"


def test_what_is_missing_or_damaged(tmp_path):
    with pytest.raises(LibraryError, match="no tokenizer.json"):
        Tokenizer(tmp_path)
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(LibraryError, match="cannot read"):
        Tokenizer(tmp_path)


def test_a_text_ends_before_the_first_stop():
    stop = StopText(["END", "\n\n"])
    assert [stop.add(piece) for piece in ("one E", "N two\n", "three E", "ND four")] == [
        "one ",
        "EN two",
        "\nthree ",
        "",
    ]
    assert stop.stopped and stop.add("more") == "" and stop.finish() == ""
    held = StopText(["END"])
    assert held.add("the EN") == "the " and held.finish() == "EN"
    assert StopText([]).add("EN") == "EN"


def test_pieces_are_the_bytes_of_tokens(tmp_path):
    """Of byte pairs, of sentence pieces with single bytes, and of words that only the decoder joins."""
    tokenizers = pytest.importorskip("tokenizers")

    def tokenizer(words, decoder):
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: n for n, w in enumerate(words)}, "x"))
        made.decoder = decoder
        made.add_special_tokens(["<s>"])
        made.save(str(tmp_path / "tokenizer.json"))
        return Tokenizer(tmp_path)

    pairs = tokenizer(["x", "Ġday", "Ã", "Ċ"], tokenizers.decoders.ByteLevel())
    assert [pairs.piece(n) for n in range(6)] == [b"x", b" day", b"\xc3", b"\n", b"<s>", b""]
    decoders = tokenizers.decoders
    sentence = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces = tokenizer(["x", "▁day", "<0xC3>"], sentence)
    assert [pieces.piece(n) for n in range(3)] == [b"x", b" day", b"\xc3"]
    words = tokenizer(["x", "##y", "day"], decoders.WordPiece())
    assert [words.piece(n) for n in range(3)] == [b" x", b"y", b" day"]


def test_words_behind_others_keep_their_space():
    words = Words(Spaced(), [1])
    assert words.add(2) == Words(Spaced()).add(1)[:0] + Spaced().decode([1, 2])[len(Spaced().decode([1])) :]
