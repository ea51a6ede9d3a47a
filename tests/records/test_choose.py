import pytest

from hetero_tvm.records.choose import choose
from hetero_tvm.records.record import VERIFIED, Site, new_record
from hetero_tvm.records.store import RecordStore
from tests.search.spaces import MACHINE, ScaleSpace, generic_task, task

SITE = Site.of(MACHINE)


def test_default_without_records(tmp_path):
    tasks = [task(ScaleSpace()), generic_task()]
    choices = choose(tasks, MACHINE, RecordStore(SITE, tmp_path))
    assert choices[tasks[0].key].point == {"repeat": 8, "pieces": 1}
    assert choices[tasks[1].key].point is choices[tasks[1].key].trace is None
    assert {choice.origin for choice in choices.values()} == {"default"}


def test_records_shipped_and_own(tmp_path):
    one = task(ScaleSpace())
    shipped = RecordStore(SITE, tmp_path / "shipped")
    shipped.append(new_record(one, SITE, {"point": {"repeat": 2, "pieces": 1}}, seconds=2e-3, role=VERIFIED))
    store = RecordStore(SITE, tmp_path / "own", tmp_path / "shipped")
    choice = choose([one], MACHINE, store)[one.key]
    assert choice.point["repeat"] == 2 and choice.origin.startswith("shipped record 20")
    store.append(new_record(one, SITE, {"point": {"repeat": 1, "pieces": 1}}, seconds=1e-3, role=VERIFIED))
    choice = choose([one], MACHINE, store)[one.key]
    assert choice.point["repeat"] == 1 and choice.origin.endswith("verified")


def test_a_point_that_the_space_does_not_know_counts_as_none(tmp_path):
    one = task(ScaleSpace())
    store = RecordStore(SITE, tmp_path)
    store.append(new_record(one, SITE, {"point": {"repeat": 77, "pieces": 1}}, seconds=1e-9))
    with pytest.warns(UserWarning, match=r"record .* in .*jsonl does not fit .*repeat=77"):
        assert choose([one], MACHINE, store)[one.key].origin == "default"


def test_where_a_point_is_unknown_the_best_of_the_others_counts(tmp_path):
    """A record that somebody edited hid all the others: the kernel was built from its default."""
    one = task(ScaleSpace())
    store = RecordStore(SITE, tmp_path)
    store.append(new_record(one, SITE, {"point": {"repeat": 2, "pieces": 1}}, seconds=2e-3))
    store.append(new_record(one, SITE, {"point": {"repeat": 1, "pieces": 1}}, seconds=1e-3))
    store.append(new_record(one, SITE, {"point": {"repeat": 77, "pieces": 1}}, seconds=1e-9))
    store.append(new_record(one, SITE, {"point": {"repeat": None}}, seconds=1e-9, role=VERIFIED))
    with pytest.warns(UserWarning, match="and 1 more do not; the kernel gets the best of the others") as told:
        assert choose([one], MACHINE, store)[one.key].point["repeat"] == 1
    assert len(told) == 1


def test_a_trace_where_a_point_belongs_counts_as_none(tmp_path):
    one = task(ScaleSpace())
    store = RecordStore(SITE, tmp_path)
    store.append(new_record(one, SITE, {"trace": "[[], []]"}, seconds=1e-9))
    assert choose([one], MACHINE, store)[one.key].origin == "default" and store.measured(one) == {}


def test_generic(tmp_path):
    one = generic_task()
    store = RecordStore(SITE, tmp_path)
    store.append(new_record(one, SITE, {"trace": "[]"}, seconds=1e-3))
    assert choose([one], MACHINE, store)[one.key].trace == "[]"
    store.append(new_record(one, SITE, {"point": {}}, seconds=1e-3, role=VERIFIED))
    choice = choose([one], MACHINE, store)[one.key]
    assert choice.trace is None and choice.point is None and "verified" in choice.origin
