import dataclasses
import json

import numpy as np
import pytest

from hetero_tvm.errors import LibraryError
from hetero_tvm.generation.facts import LanguageFacts, SourceFacts
from hetero_tvm.generation.rules import TextRules
from hetero_tvm.ops.decoding.contracts import Heads

FACTS = LanguageFacts(
    architecture="llama",
    precision="f32",
    vocab=10,
    context=64,
    rows=8,
    layers=3,
    kv_heads=2,
    dim=8,
    page=32,
    cache="float16",
    ropes=(((1.0, 0.5), 2.0), ((0.25, 0.125), 1.0)),
    rotated=4,
    stop=(2,),
    read=1000,
)


def test_json_there_and_back():
    source = SourceFacts(20, 50, 0, (2, 5))
    rules = TextRules((7,), bad_words=((3,), (4, 5)), no_repeat=2, forced_first=6)
    for facts in (FACTS, dataclasses.replace(FACTS, source=source, rules=rules)):
        assert LanguageFacts.from_json(json.loads(json.dumps(facts.to_json())), "m") == facts
    with pytest.raises(LibraryError, match="no language model"):
        LanguageFacts.from_json({}, "m")
    with pytest.raises(LibraryError, match="build the model again"):
        LanguageFacts.from_json({**FACTS.to_json(), "version": 99}, "m")


def test_libraries_of_before_have_the_rules_of_their_source():
    source = {
        **dataclasses.asdict(SourceFacts(20, 50, 0, (2, 5))),
        "suppressed": [7],
        "suppressed_first": [9],
    }
    data = {**FACTS.to_json(), "source": source}
    del data["rules"]
    assert LanguageFacts.from_json(data, "m").rules == TextRules((7,), (9,))


def test_pages_and_ropes():
    assert FACTS.page_shapes == ((3, 2, 2, 8, 16), (3, 2, 32, 8))
    assert FACTS.page_bytes == 2 * 3 * 2 * 32 * 8 * 2
    integers = dataclasses.replace(FACTS, cache="int8")
    assert integers.page_shapes == ((3, 2, 2, 12, 16),) * 2  # four rows of bytes are scales
    assert integers.page_shapes[0] == Heads(4, 2, 8, 3, 32, "int8").pools(1)[0][1:]
    table = FACTS.rope_table(5)
    assert table.shape == (5, 2, 4)
    np.testing.assert_allclose(
        table[3, 0], 2 * np.array([np.cos(3), np.cos(1.5), np.sin(3), np.sin(1.5)]), rtol=1e-6
    )
    np.testing.assert_allclose(table[2, 1, :2], np.cos([0.5, 0.25]), rtol=1e-6)
