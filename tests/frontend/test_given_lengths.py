"""Lengths that stand for others, as a user writes them."""

import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.frontend.given_lengths import parse_lengths, weighted_sizes
from hetero_tvm.frontend.signature import Symbol

SEQUENCE = (Symbol("sequence", 8, 256),)
BOTH = (Symbol("batch", 1, 8), *SEQUENCE)


def test_lengths_of_one_dimension():
    assert parse_lengths("16:0.2,128:0.6, 200") == {16: 0.2, 128: 0.6, 200: 1.0}
    found = weighted_sizes({16: 1, 128: 3}, SEQUENCE)
    assert found == (({"sequence": 16}, 0.25), ({"sequence": 128}, 0.75))


def test_lengths_of_several_dimensions():
    given = parse_lengths("batch=1/sequence=16:0.5,sequence=128/batch=8:0.5")
    assert weighted_sizes(given, BOTH) == (
        ({"batch": 1, "sequence": 16}, 0.5),
        ({"sequence": 128, "batch": 8}, 0.5),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "16:",
        "x",
        "16:0.2;128:0.8",
        "16:1,16:2",
        "a=1/a=2:1",
        "16/32",
        "a=b",
        "16:0.2:3",
        ",",
        "batch=16,32",
    ],
)
def test_texts_that_are_none(text):
    with pytest.raises(UsageError, match="length"):
        parse_lengths(text)


@pytest.mark.parametrize("lengths", ["16:0.2", [16, 128], {"16": 1.0}, {16: "0.2"}, {16.7: 1.0}, {16: 1e308}])
def test_other_types_are_refused(lengths):
    with pytest.raises(UsageError):
        weighted_sizes(lengths, SEQUENCE)


def test_everything_wrong_is_listed():
    lengths = [({"sequence": 300, "batch": 1}, 1.0), ({"sequence": 16, "rows": 2}, -1.0)]
    with pytest.raises(UsageError) as told:
        weighted_sizes(lengths, BOTH)
    assert list(told.value.problems) == [
        "sequence = 300 is outside of sequence = 8..256",
        "there is no open dimension rows",
        "sequence=16/rows=2 has no size for batch",
        "the weight of sequence=16/rows=2 is -1, not a positive number",
    ]
    for lengths, text in (({16: 1.0}, "16: of which of batch, sequence?"), ({}, "there are none")):
        with pytest.raises(UsageError) as told:
            weighted_sizes(lengths, BOTH)
        assert list(told.value.problems) == [text]
