"""Names, shapes and dtypes of a model's ends."""

import json

from hetero_tvm.runtime import Signature, TensorSpec

IDS = TensorSpec("ids", ("batch", 128), "int64")
STATES = TensorSpec("states", (1, 128, 8), "bfloat16")


def test_text():
    signature = Signature((IDS, STATES), (TensorSpec("y", (), "float32"),))
    assert str(signature) == "(ids: int64[batch, 128], states: bfloat16[1, 128, 8]) -> (y: float32[])"


def test_json_round_trip():
    for spec in (IDS, STATES):
        assert TensorSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_open_dimensions():
    assert STATES.static and not IDS.static and TensorSpec("y", (), "float32").static
