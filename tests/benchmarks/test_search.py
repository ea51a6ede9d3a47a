"""Tables, and searches that are replayed on them."""

import itertools

import numpy as np
import pytest

from benchmarks.search_collect import _agreed, _Seen
from benchmarks.search_replay import can_replay, replayed
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.records.tables import Table
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.search import points
from hetero_tvm.search.cost_model import described

MACHINE = CpuModel("nowhere", lanes=8, threads=2)
SPACE = MatmulSpace()


def table_of(op, wanted):
    """A complete table whose times are the estimate's, but for what ``wanted`` says of a point."""
    listed = list(points.all_kernels(SPACE, op, MACHINE))
    seconds = [described(SPACE, op, point, MACHINE).estimate * wanted(point) for point in listed]
    return Table.of(SPACE.name, SPACE.version, op, MACHINE, listed, seconds, created="2026-11-23")


@pytest.mark.thorough
def test_a_replayed_search_finds_what_the_estimate_knows_and_what_it_does_not():
    ops = [Matmul((7,), 768, 512), Matmul((7,), 512, 768)]
    tables = [table_of(op, lambda point: 1.0) for op in ops]
    knob = next(knob.name for knob in SPACE.knobs(ops[0], MACHINE) if len(knob.choices) > 2)

    def turned(op):
        default = SPACE.default(op, MACHINE)[knob]
        return table_of(op, lambda point: 3.0 if point[knob] == default else 1.0)

    assert all(can_replay(table, SPACE) for table in tables)
    known = replayed(tables[0], tables, SPACE, seeds=1)
    assert known["model"]["64"] == 1.0 and known["estimate"]["8"] == 1.0
    others = [turned(op) for op in ops]
    unknown = replayed(others[0], others, SPACE, seeds=1)
    assert unknown["estimate"]["1"] < 0.5 < 0.9 < unknown["model"]["8"]
    shares = [list(unknown[name].values()) for name in ("model", "estimate", "random")]
    assert all(a <= b + 1e-9 for one in shares for a, b in itertools.pairwise(one))


def test_tables_from_before_a_knob_are_replayed():
    op = Matmul((7,), 768, 512)
    later = next(knob for knob in SPACE.knobs(op, MACHINE) if knob.absent is not None)
    listed = [p for p in points.all_kernels(SPACE, op, MACHINE) if p[later.name] == later.absent]
    assert later.absent == SPACE.default(op, MACHINE)[later.name]
    seconds = [described(SPACE, op, point, MACHINE).estimate for point in listed]
    without = [{name: choice for name, choice in p.items() if name != later.name} for p in listed]
    table = Table.of(SPACE.name, SPACE.version, op, MACHINE, without, seconds)
    assert replayed(table, [table], SPACE, seeds=1)["estimate"]["1"] > 0.9


def test_points_count_when_calm_windows_agree_or_nothing_varied():
    seen = {
        1: [_Seen(1.0, 2.0, 0.2), _Seen(1.1, 2.1, 0.2)],  # agree
        2: [_Seen(1.0, 1.0, 0.01)],  # steady
        3: [_Seen(1.0, 1.2, 0.3), _Seen(1.1, 1.5, 0.3)],  # neither
        4: [_Seen(1.0, 5.0, 0.3)],  # far from the best
        5: [_Seen(3.0, 1.0, 0.0)],  # a window in a spell
    }
    assert _agreed(seen, 1.0) == pytest.approx({1: 2.0, 2: 1.0, 4: 5.0})
    assert np.isfinite(list(_agreed(seen, 1.0).values())).all()
