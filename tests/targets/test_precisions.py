"""Spellings of precisions."""

import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.targets.precisions import PRECISIONS, canonical_precision


@pytest.mark.parametrize(
    "text, short",
    [
        ("fp16", "f16"),
        ("float16", "f16"),
        ("Half", "f16"),
        ("FP32", "f32"),
        ("bfloat16", "bf16"),
        (" f16 ", "f16"),
    ],
)
def test_other_spellings(text, short):
    assert canonical_precision(text) == short


def test_short_names_stay():
    assert [canonical_precision(name) for name in PRECISIONS] == list(PRECISIONS)


def test_another_name_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match="there is no precision 'fp61'") as caught:
        canonical_precision("fp61")
    assert "did you mean" in caught.value.hint and "bf16" in caught.value.hint
