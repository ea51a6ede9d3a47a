"""Relations between open dimensions of one range."""

import pytest

from hetero_tvm.errors import ShapeError
from hetero_tvm.frontend.relations import equal_symbols
from hetero_tvm.frontend.signature import Symbol


def found(names, holds, ranges=(2, 64)):
    """Partition that a model asks for which imports where ``holds``."""

    def at(sizes):
        if not holds(**sizes):
            raise ShapeError("the sizes contradict each other")

    return equal_symbols([Symbol(name, *ranges) for name in names], at)


@pytest.mark.parametrize(
    ("holds", "groups"),
    [
        (lambda a, b, c, d: b == c, "abbd"),
        (lambda a, b, c, d: b == c == d, "abbb"),
        (lambda a, b, c, d: a == c and b == d, "abab"),
        (lambda a, b, c, d: a == b == c == d, "aaaa"),
        (lambda a, b, c, d: a == b == c, "aaad"),
    ],
    ids=["a pair", "all but the first", "two pairs", "all", "all but the last"],
)
def test_only_those_are_equal_that_must_be(holds, groups):
    """The queries of an attention are as many as one likes, whatever its keys, values and mask are."""
    assert found("abcd", holds) == dict(zip("abcd", groups, strict=True))


def test_no_relation_is_invented():
    assert found("ab", lambda a, b: a == 2 * b) is None


def test_many_caches_of_one_length_take_few_imports():
    tried = []
    names = [f"past{n}" for n in range(40)]

    def at(sizes):
        tried.append(sizes)
        if len(set(sizes.values())) > 1:
            raise ShapeError("the sizes contradict each other")

    assert set(equal_symbols([Symbol(name, 2, 64) for name in names], at).values()) == {"past0"}
    assert len(tried) < 50
