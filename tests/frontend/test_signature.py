"""Shape options."""

import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.frontend import parse_shape_option


@pytest.mark.parametrize(
    ("text", "expected"),
    [("x=1x128", ("x", (1, 128))), ("a=b=3", ("a=b", (3,))), (" x = 2X3 ", ("x", (2, 3)))],
)
def test_shape_options(text, expected):
    assert parse_shape_option(text) == expected


@pytest.mark.parametrize(
    "text", ["", "x", "x=", "=1x2", "x=1x", "x=0x2", "x=-1", "x=1.5", "x=axb", "x=1,2", "x=²"]
)
def test_bad_shape_options(text):
    with pytest.raises(UsageError, match="--shape"):
        parse_shape_option(text)
