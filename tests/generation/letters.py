"""A tokenizer whose tokens are the letters of ASCII, for a vocabulary of 97."""

NAMES = [chr(code) for code in range(0x20, 0x7F)]
MARK, END = 95, 96


def write_letters(tokenizers, folder):
    """Letters by their bytes, ``<|mark|>`` and ``<|end|>``, which mark structure."""
    names = {("Ġ" if name == " " else name): number for number, name in enumerate(NAMES)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(names, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<|mark|>", "<|end|>"])
    assert made.token_to_id("<|end|>") == END
    made.save(str(folder / "tokenizer.json"))
