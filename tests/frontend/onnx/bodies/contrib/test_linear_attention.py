"""Linear attention of ONNX Runtime against its own numbers."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import UnsupportedOperatorError
from tests.frontend.onnx.helpers import contrib_model, run_onnxruntime
from tests.selection import thorough

B, STEPS, KEYS, VALUES = 2, 5, 4, 6


def operands(rule, heads, kv_heads, past, by_key, steps=STEPS):
    random = np.random.default_rng(0)

    def floats(*shape):
        return random.standard_normal(shape, np.float32) / 2

    query, key = floats(B, steps, heads * KEYS), floats(B, steps, kv_heads * KEYS)
    value, state = floats(B, steps, kv_heads * VALUES), floats(B, kv_heads, KEYS, VALUES)
    decay = -np.abs(floats(B, steps, kv_heads * (KEYS if by_key else 1)))
    beta = 1 / (1 + np.exp(-floats(B, steps, kv_heads)))
    given = (query, key, value, state if past else None)
    given += (decay if rule.startswith("gated") else None, beta if rule.endswith("delta") else None)
    options = {"update_rule": rule, "q_num_heads": heads, "kv_num_heads": kv_heads}
    return given, options


def written(values, options):
    given = [n for n, value in enumerate(values) if value is not None]
    return contrib_model("LinearAttention", values, options, given=given, results=2)


@pytest.mark.parametrize(
    ("rule", "heads", "kv_heads", "past", "by_key", "steps"),
    [
        ("gated_delta", 4, 2, True, False, 1),
        *thorough([
            ("gated_delta", 2, 2, False, False, 5),
            ("gated_delta", 2, 2, True, True, 5),
            ("delta", 2, 2, True, False, 5),
            ("gated", 4, 1, True, True, 5),
            ("linear", 2, 2, False, False, 5),
        ]),
    ],
)  # fmt: skip
def test_rules(rule, heads, kv_heads, past, by_key, steps):
    given, options = operands(rule, heads, kv_heads, past, by_key, steps)
    model, inputs = written(given, options)
    expected = run_onnxruntime(model, inputs)
    found = build_model(optimize_model(import_model(model))).run(inputs)
    for have, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_refusals():
    given, options = operands("linear", 2, 2, False, False)
    with pytest.raises(UnsupportedOperatorError, match="has the rule 'other'; linear, gated, delta"):
        import_model(written(given, {**options, "update_rule": "other"})[0])
    with pytest.raises(UnsupportedOperatorError, match="state_window=2"):
        import_model(written(given, {**options, "state_window": 2})[0])
    with pytest.raises(UnsupportedOperatorError, match="its operand beta"):
        import_model(written(given, {**options, "update_rule": "delta"})[0])
