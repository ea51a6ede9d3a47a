"""Tables of 80 and 120 columns: no number is cut, what is left out is told."""

import io

import pytest

from hetero_tvm.host.terminal import (
    Column,
    console,
    figure,
    milliseconds,
    number_of,
    operations,
    percent,
    table,
)

COLUMNS = [
    Column("kernel", text=True),
    Column("calls", rank=3),
    Column("default ms"),
    Column("tuned ms"),
    Column("GFLOP/s", rank=2),
    Column("% of roofline", rank=4),
    Column("record", text=True, rank=1),
]
ROWS = [
    (
        "attention_b1h12q128k128d32_packed_mask_and_more_words",
        12,
        "0.00123",
        "1234.567",
        "12345.6",
        "100%",
        "x" * 30,
    ),
    ("m", 1, "9999.999", "0.001", "0.1", ">100%", "default"),
]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_numbers_stay_whole(width):
    stream = io.StringIO()
    printer = console(stream)
    printer.width = width
    printer.print(table("kernels", COLUMNS, ROWS, width))
    said = stream.getvalue()
    assert max(map(len, said.splitlines())) <= width
    assert "…" not in said and "..." not in said
    for number in ("0.00123", "1234.567", "9999.999", "0.001"):
        assert number in said
    assert ("left out at" in said) == (width < 120)
    if width < 120:
        assert "% of roofline" in said.partition("left out at")[2].replace("\n", " ")


def test_a_pipe_has_120_columns_unless_the_user_says_another_number(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console(io.StringIO()).width == 120
    monkeypatch.setenv("COLUMNS", "80")
    assert console(io.StringIO()).width == 80
    monkeypatch.setenv("COLUMNS", "wide")
    assert console(io.StringIO()).width == 120


@pytest.mark.parametrize("width", [80, 120])
def test_endless_names_keep_their_ends(width):
    stream = io.StringIO()
    printer = console(stream)
    printer.width = width
    name = "fused_" + "strided_slice_add_tir_sigmoid_" * 8 + "concatenate11"
    printer.print(table("kernels", COLUMNS, [(name, *ROWS[0][1:])], width))
    lines = stream.getvalue().splitlines()
    assert len([line for line in lines if "│" in line]) <= 5 and max(map(len, lines)) <= width
    folded = "".join(line[2 : line.index("│", 1)].strip() for line in lines if line.startswith("│"))
    assert folded.startswith("fused_strided") and folded.endswith("concatenate11") and "…" in folded


def test_numbers():
    assert [milliseconds(v) for v in (12.3456, 0.00123456, 0)] == ["12.346", "0.00123", "0.000"]
    assert [milliseconds(v) for v in (0.00005, 0.0000406)] == ["0.00005", "0.0000406"]  # no 4.06e-05
    assert [figure(v) for v in (0, 0.00123456, 1.5, 12345.6)] == ["0", "0.00123", "1.5", "12346"]
    assert [figure(v, 4) for v in (999.94, 1000.4, 10080.2, 0.055971)] == [
        "999.9",
        "1000",
        "10080",
        "0.05597",
    ]
    assert [number_of(n, "near miss") for n in (0, 1, 2)] == ["0 near misses", "1 near miss", "2 near misses"]
    assert number_of(3, "kernel") == "3 kernels"
    assert [percent(v) for v in (None, 0.5, 1.0, 3.0)] == ["", "50%", "100%", ">100%"]


def test_operations_have_a_unit_that_shows_them():
    assert operations(2_870_000_000) == "2.87 GFLOP"
    assert operations(961_900) == "0.962 MFLOP"
    assert operations(0) == "0 GFLOP"


def test_names_give_a_terminal_no_orders():
    stream = io.StringIO()
    row = ("\x1b[31mred\x07\nnext ☃", *ROWS[0][1:])
    console(stream).print(table("kernels", COLUMNS, [row], 100))
    text = stream.getvalue()
    assert "\x1b" not in text and "\x07" not in text
    assert r"\x1b[31mred\x07" in text and "next ☃" in text
