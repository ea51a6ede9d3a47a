import numpy as np
import pytest

from hetero_tvm.ops.rope import Rope
from tests.ops.helpers import check, sample_inputs


def formula(op):
    """Each pair as a complex number, turned by a complex factor (elements have factors of their own)."""

    def turn(source, cos, sin):
        flat = source.reshape(-1)
        half = op.rotary // 2
        lead = op.shape[:-1]
        tables = [np.broadcast_to(t, (*lead, t.shape[-1])) for t in (cos, sin)]
        result = np.zeros(op.shape)
        for at in np.ndindex(*lead):
            start = op.place[0] + sum(i * s for i, s in zip(at, op.place[1:], strict=True))
            x = flat[start : start + op.shape[-1]]
            result[at] = x
            for pair in range(half):
                first, second = (2 * pair, 2 * pair + 1) if op.interleaved else (pair, pair + half)
                value = complex(x[first], x[second])
                for element, part in ((first, "real"), (second, "imag")):
                    column = pair if op.per_pair else element
                    factor = complex(tables[0][at][column], tables[1][at][column])
                    result[(*at, element)] = getattr(value * factor, part)
        return result

    return turn


FORMS = {
    "halves, a part rotated, places": Rope((2, 3, 4, 7), 6, False, (1, 1, 4, 6), (2, 4, 30), (9, 120, 7, 30)),
    "neighbours, a value per pair": Rope((2, 4, 3, 6), 6, True, (2, 4, 1, 3), (2, 4, 3, 6), (0, 72, 18, 6)),
    "neighbours, a part rotated": Rope((2, 3, 5), 4, True, (1, 3, 4), (2, 3, 5), (0, 15, 5)),
    "halves, a value per pair": Rope((2, 3, 4), 4, False, (1, 3, 2), (2, 3, 4), (0, 12, 4)),
    "one pair": Rope((1, 2), 2, False, (1, 2), (1, 2), (0, 2)),
}


@pytest.mark.parametrize("op", FORMS.values(), ids=FORMS.keys())
def test_pairs_turn(op):
    check(op, formula(op))


def test_half_precision():
    op = Rope((2, 3, 4), 4, False, (1, 3, 4), (2, 3, 4), (0, 12, 4), "float16")
    assert [x.dtype for x in op.inputs] == ["float16", "float32", "float32"]
    check(op, formula(op), tolerance=5e-4)


def test_turning_keeps_lengths_and_back_again_undoes_it():
    op = FORMS["halves, a value per pair"]
    x = sample_inputs(op)[0].astype(np.float64)
    angles = np.random.default_rng(1).standard_normal((1, 3, 2))
    turned = op.reference(x, np.cos(angles), np.sin(angles))
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-12)
    np.testing.assert_allclose(op.reference(turned, np.cos(angles), -np.sin(angles)), x, atol=1e-12)


def test_cost_and_label():
    op = FORMS["halves, a part rotated, places"]
    assert op.flops == 3 * 24 * 6
    assert op.nbytes == 4 * (2 * 168 + 2 * 24)
    assert op.label == "rope_2x3x4x7r6"
    assert FORMS["neighbours, a value per pair"].label == "rope_2x4x3x6r6_interleaved"
