"""Tables: folded words, whole numbers, wide characters, streams without lines to draw with."""

import io

import pytest

from hetero_tvm.host.tables import Column, Console, Table, bytes_in_words, fold, paragraphs, width_of

TABLE = Table(
    [Column("kernel", text=True), Column("ms")],
    [("a product of matrices", "1.25"), ("softmax", "123456.789")],
    title="kernels",
    caption="two rows",
)


def printed(thing, width=80, encoding="utf-8"):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    Console(stream, width).print(thing)
    return raw.getvalue().decode(encoding).splitlines()


def test_a_table_is_drawn():
    assert printed(TABLE) == [
        "kernels",
        "┏━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━┓",
        "┃ kernel                ┃         ms ┃",
        "┡━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━┩",
        "│ a product of matrices │       1.25 │",
        "│ softmax               │ 123456.789 │",
        "└───────────────────────┴────────────┘",
        "two rows",
    ]


def test_words_give_way_to_numbers():
    lines = printed(TABLE, width=28)
    assert max(map(len, lines)) == 28 and "│ a product   │       1.25 │" in lines
    assert "│ of matrices │            │" in lines and "123456.789" in "".join(lines)


def test_a_number_wider_than_the_terminal_stays_whole():
    lines = printed(Table([Column("x", text=True), Column("n")], [("word" * 9, "9" * 40)]), width=20)
    assert any("9" * 40 in line for line in lines) and len(set(map(len, lines))) == 1


def test_a_table_without_rows_has_its_headings():
    assert printed(Table([Column("kernel", text=True)], []))[1] == "┃ kernel ┃"


def test_chinese_takes_two_columns_and_an_accent_none():
    assert [width_of(text) for text in ("ab", "张量", "e\u0301")] == [2, 4, 1]
    lines = printed(Table([Column("名字", text=True), Column("n")], [("张量x", "1"), ("ab", "2")]))
    assert {width_of(line) for line in lines} == {13}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_stream_without_lines_gets_plain_characters(encoding):
    lines = printed(TABLE, encoding=encoding)
    assert lines[1] == "+-----------------------+------------+" and "| softmax " in lines[5]
    assert printed("张量", encoding=encoding) == ["??"]


@pytest.mark.parametrize(
    "text", ["", "a", "a b", "x" * 25, "two  blanks", " indented words that go on and on", "张" * 9]
)
def test_fold_loses_nothing_but_blanks(text):
    lines = fold(text, 7)
    assert max(map(width_of, lines)) <= 7
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_names_are_folded_after_their_parts():
    assert fold("matmul_bias_gelu", 12) == ["matmul_bias_", "gelu"]
    assert fold("encoder/attention", 9) == ["encoder/", "attention"] and fold("a_bcdefghij", 6) == [
        "a_bcde",
        "fghij",
    ]


def test_long_lines_are_folded_unless_they_shall_stay_whole():
    stream = io.StringIO()
    printer = Console(stream, 10)
    printer.print("pip install something")
    printer.print("pip install something", whole=True)
    assert stream.getvalue() == "pip\ninstall\nsomething\npip install something\n"


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (86_530_000, "86.5 MB"),
        (1.2e10, "12,000.0 MB"),
        (99_999, "100 kB"),
        (23_040, "23 kB"),
        (512, "512 bytes"),
    ],
)
def test_sizes_are_never_all_zeros(size, words):
    assert bytes_in_words(size) == words


def test_paragraphs_go_on_under_what_they_belong_to():
    assert paragraphs("target   cpu with two threads", 20) == "target   cpu with\n         two threads"
    assert paragraphs("  a sentence of words\n\nnext", 12) == "  a sentence\n    of words\n\nnext"
    path = "/a/path/that/is/longer/than/the/terminal"
    assert paragraphs(f"wrote {path}", 20) == f"wrote\n  {path}"
    assert paragraphs("short", 80) == "short" and paragraphs("", 80) == ""


def test_a_number_in_a_name_is_not_broken():
    assert fold("attention_b32h1q1k50d48", 22) == ["attention_b32h1q1k50d", "48"]
    assert fold("1234567", 3) == ["123", "456", "7"]  # nothing else fits
