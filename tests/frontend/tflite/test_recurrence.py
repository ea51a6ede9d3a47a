"""Recurrent layers against LiteRT: every gate, bound and order of axes."""

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

from hetero_tvm import build_model, import_model, optimize_model  # noqa: E402
from hetero_tvm.errors import UnsupportedOperatorError  # noqa: E402
from tests.frontend.tflite.judge import assert_same, both  # noqa: E402
from tests.frontend.tflite.written import T, const, one  # noqa: E402

RNG = np.random.default_rng(0)
BATCH, TIME, WIDE, UNITS = 2, 4, 5, 3


def weights(*shape, scale=0.8):
    return const((RNG.standard_normal(shape) * scale).astype("float32"))


def lstm(is_timed=False, has_holes=False, project=0, is_coupled=False, cell_clip=0.0, norm=False):
    out = project or UNITS
    shape = (TIME, BATCH) if is_timed else (BATCH, TIME)
    gates = [not is_coupled, True, True, True]
    holes = [not is_coupled and has_holes, has_holes, has_holes]
    operands = [
        T((*shape, WIDE)),
        *(weights(UNITS, WIDE) if on else None for on in gates),
        *(weights(UNITS, out) if on else None for on in gates),
        *(weights(UNITS) if on else None for on in holes),
        *(weights(UNITS) if on else None for on in gates),
        weights(out, UNITS) if project else None,
        None,
        T((BATCH, out), variable=True),
        T((BATCH, UNITS), variable=True),
        *((weights(UNITS) for _ in range(4)) if norm else ()),
    ]
    options = {"FusedActivationFunction": 4, "CellClip": cell_clip, "TimeMajor": is_timed}
    kind = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    return one(kind, operands, [T((*shape, out))], "UnidirectionalSequenceLSTMOptions", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"cell_clip": 10.0},  # as Keras writes it
        {"is_timed": True, "has_holes": True},
        {"project": 2, "is_coupled": True, "cell_clip": 0.3},
        {"has_holes": True, "is_coupled": True},
    ],
)
def test_lstm(options):
    assert_same(lstm(**options))


@pytest.mark.parametrize("is_timed", [False, True])
@pytest.mark.parametrize("activation", [1, 4])
def test_rnn(is_timed, activation):
    shape = (TIME, BATCH) if is_timed else (BATCH, TIME)
    state = T((BATCH, UNITS), variable=True)
    operands = [T((*shape, WIDE)), weights(UNITS, WIDE), weights(UNITS, UNITS), weights(UNITS), state]
    options = {"FusedActivationFunction": activation, "TimeMajor": is_timed}
    results = [T((*shape, UNITS))]
    assert_same(one("UNIDIRECTIONAL_SEQUENCE_RNN", operands, results, "SequenceRNNOptions", **options))


def test_an_lstm_is_built(tmp_path):
    (tmp_path / "lstm.tflite").write_bytes(lstm(cell_clip=10.0))
    built = build_model(optimize_model(import_model(tmp_path / "lstm.tflite"), "cpu"))
    built.check()


def test_normalized_gates_are_refused():
    with pytest.raises(UnsupportedOperatorError, match="normalized gates"):
        both(lstm(norm=True))
