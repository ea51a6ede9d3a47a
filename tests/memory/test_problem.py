"""MiniMalloc's CSV format: what is read, what is written, what is refused and how."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_tvm.errors import UsageError
from hetero_tvm.memory import Buffer, Problem, read_csv, write_csv
from hetero_tvm.memory.problem import format_csv, parse_csv

GOOD = "id,lower,upper,size\na,0,3,4\nb,3,9,4\n"


def test_reads_buffers():
    problem, offsets = parse_csv(GOOD)
    assert problem.buffers == (Buffer("a", 0, 3, 4), Buffer("b", 3, 9, 4)) and offsets == {}
    assert problem.max_live() == 4


def test_columns_in_any_order_with_spaces_blank_lines_and_a_mark():
    text = "\ufeff Size , id,upper,lower,hint,alignment,offset\r\n\r\n8, x ,5,-1,0,64,128\r\n"
    problem, offsets = parse_csv(text.removeprefix("\ufeff"))
    assert problem.buffers == (Buffer("x", -1, 5, 8, 64),) and offsets == {"x": 128}


def test_only_a_header_is_an_empty_problem():
    assert len(parse_csv("id,lower,upper,size\n")[0]) == 0


def test_offset_is_added(tmp_path):
    problem, _ = parse_csv(GOOD)
    write_csv(tmp_path / "out.csv", problem, {"a": 0, "b": 2**50})
    text = (tmp_path / "out.csv").read_text()
    assert text == f"id,lower,upper,size,offset\na,0,3,4,0\nb,3,9,4,{2**50}\n"
    assert read_csv(tmp_path / "out.csv") == (problem, {"a": 0, "b": 2**50})


names = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=5)


@given(st.dictionaries(names, st.tuples(st.integers(-9, 9), st.integers(0, 9), st.integers(0, 2**50))))
def test_round_trip(rows):
    problem = Problem(Buffer(name, lower, lower + life, size) for name, (lower, life, size) in rows.items())
    assert parse_csv(format_csv(problem)) == (problem, {})


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("id,lower,upper\n", "no column size"),
        ("1,2,3,4\n", "first line must name the columns"),
        (GOOD + "c,1,x,4\n", "line 4: upper 'x' is no whole number"),
        (GOOD + "c,1,2\n", "line 4: size is missing"),
        (GOOD + "c,1,2,1.5\n", "line 4: size '1.5' is no whole number"),
        (GOOD + ",1,2,3\n", "line 4: id is missing"),
        (GOOD + "a,1,2,3\n", "line 4: id 'a' was used in line 2"),
        (GOOD + "c,5,2,3\n", "line 4: upper 2 is before lower 5"),
        (GOOD + "c,1,2,-3\n", "line 4: size -3 is negative"),
        (GOOD + f"c,1,2,{2**63}\n", "line 4: a value is beyond"),
        (GOOD + "c,1,2," + "9" * 5000 + "\n", "line 4: size '9999"),
        ("id,lower,upper,size,alignment\na,0,1,1,3\n", "line 2: alignment 3 is no power of two"),
        ('id,lower,upper,size\n"a,0,1,1\n', "not a CSV file"),
    ],
)
def test_mistakes_are_named_with_their_line(text, message):
    with pytest.raises(UsageError) as caught:
        parse_csv(text)
    assert message in str(caught.value)


def test_many_mistakes_are_shortened():
    with pytest.raises(UsageError, match="and 288 more"):
        parse_csv("id,lower,upper,size\n" + "x,y\n" * 100)


def test_files_that_cannot_be_read(tmp_path):
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00id")
    for path in (tmp_path / "absent.csv", tmp_path, binary):
        with pytest.raises(UsageError, match=path.name):
            read_csv(path)


def test_problems_are_checked():
    with pytest.raises(UsageError, match="used 2 times"):
        Problem([Buffer("a", 0, 1, 1), Buffer("a", 1, 2, 1)])
    with pytest.raises(UsageError, match="sum of all sizes"):
        Problem([Buffer("a", 0, 1, 2**61), Buffer("b", 1, 2, 2**61)])
