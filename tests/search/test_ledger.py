"""What a run knows of the machine and of its tasks."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hetero_tvm.host.peaks import CacheRoof
from hetero_tvm.machines.roofs import Roofs
from hetero_tvm.records.record import Site, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.search.ledger import Ledger, with_point
from hetero_tvm.search.measure.service import OK, Result
from hetero_tvm.search.options import TuneOptions
from tests.search.spaces import MACHINE, ScaleSpace, task


@pytest.mark.parametrize("layers, gbs", [(2, 100.0), (3, 10.0)])
def test_weights_of_equal_layers_are_in_the_cache_only_where_those_of_all_are(layers, gbs, tmp_path):
    one = task(ScaleSpace())
    op = SimpleNamespace(weight_bytes=one.nbytes)
    many = replace(one, op=op, calls=one.calls[:1] * layers, flops=1)
    ledger = Ledger(
        [many], MACHINE, TuneOptions(), RecordStore(Site.of(MACHINE), tmp_path), lambda event: None
    )
    ledger.note_roofs(Roofs(1e9, 10.0, cached=CacheRoof(2 * one.nbytes, 100.0)))
    assert ledger.report.tasks[0].roof_seconds == pytest.approx(one.nbytes / gbs * 1e-9)


def test_a_default_whose_time_is_taken_back_has_none_until_it_is_measured_again(tmp_path):
    store = RecordStore(Site.of(MACHINE), tmp_path)
    ledger = Ledger([task(ScaleSpace())], MACHINE, TuneOptions(), store, lambda event: None)
    (state,) = ledger.states
    default = ledger.default_of(state)
    ledger.record_trial(state, default, Result(OK, 1e-3))
    ledger.note_trial(state, default, Result(OK, 1e-3))
    ledger.take_back(state, default, Result(OK, 1e-3))
    assert state.report.default_seconds is None
    ledger.note_trial(state, default, Result(OK, 2e-3))
    assert state.report.default_seconds == 2e-3


def test_points_that_a_space_does_not_have_are_no_times_to_measure_others_by(tmp_path):
    """One that an editor left, with the least time of all, ended the search in a TypeError."""
    one, site = task(ScaleSpace()), Site.of(MACHINE)
    store = RecordStore(site, tmp_path)
    right = {"point": {"repeat": 2, "pieces": 1}}
    store.append(new_record(one, site, right, seconds=1e-3))
    store.append(new_record(one, site, {"point": {"repeat": 1, "pieces": 1}}, seconds=1.0))
    store.append(new_record(one, site, {"point": {"repeat": ["a", {"b": 1}], "pieces": 1}}, seconds=1e-9))
    store.append(new_record(one, site, {"point": {}}, seconds=1e-8))
    ledger = Ledger([one], MACHINE, TuneOptions(), store, lambda event: None)
    (state,) = ledger.states
    assert state.best == 1e-3 and state.best_candidate == right
    other = RecordStore(site, tmp_path)
    other.append(new_record(one, site, {"point": {"repeat": None, "pieces": 1}}, seconds=1e-9))
    ledger.take_in_others()
    assert state.best == 1e-3
    assert [far["point"] for far in ledger.suspects(state)] == [{"repeat": 1, "pieces": 1}]


def test_the_curve_never_rises_where_a_trial_is_taken_back():
    curve = []
    for point in [(0.1, 1, 9.0), (0.2, 2, 7.0), (0.3, 3, 4.0), (0.4, 3, 6.0), (0.5, 4, 6.0), (0.6, 4, 6.5)]:
        curve = with_point(curve, point)
    assert curve == [(0.1, 1, 9.0), (0.2, 2, 7.0), (0.4, 3, 6.5), (0.6, 4, 6.5)]
