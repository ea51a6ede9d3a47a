"""The report on defaults: far-off ones are told, with what the best does otherwise."""

import pytest

from benchmarks.gpu import calibration
from hetero_tvm.records.record import VERIFIED
from hetero_tvm.records.store import RecordStore
from tests.benchmarks.gpu.recorded import SITE, SPACE, TILES, document, record


def test_defaults_that_are_far_off_are_told(tmp_path):
    store = RecordStore(SITE, tmp_path)
    for place, tile in enumerate(TILES):  # exactly the reverse of what the space believes
        store.append(record(tile, 1e-3 - 1e-6 * place))
    best = 1e-3 - 1e-6 * (len(TILES) - 1)
    store.append(record(TILES[-1], best, VERIFIED, default_seconds=2 * best))
    lines = calibration.report(document(TILES[0]), tmp_path)
    (line,) = [line for line in lines if line.startswith(f"  {SPACE.name}")]
    assert "2.00" in line and f"place {len(TILES)} of {len(TILES)}" in line and "order -1.00" in line
    assert f"tile {list(TILES[0])} -> {list(TILES[-1])}" in line
    knob = lines[lines.index(line) + 1]
    assert knob.startswith(f"    tile: {TILES[-1]} 1.00, {TILES[-2]}")
    assert lines[0].startswith("NVIDIA H200, sm_90a")


def test_a_good_default_is_left_alone(tmp_path):
    store = RecordStore(SITE, tmp_path)
    for place, tile in enumerate(TILES):
        store.append(record(tile, 1e-3 + 1e-6 * place))
    store.append(record(TILES[0], 1e-3, VERIFIED, default_seconds=1e-3))
    text = "\n".join(calibration.report(document(TILES[0]), tmp_path))
    assert "1.00, place 1 of" in text and "order +1.00" in text and "->" not in text


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((1, 2, 3), (10, 20, 30), 1),
        ((1, 2, 3), (3, 2, 1), -1),
        ((1, 1), (1, 2), 0),
        ((1, 1, 2), (1, 1, 5), 1),
    ],
)
def test_spearman(first, second, expected):
    assert calibration.spearman(first, second) == pytest.approx(expected)
