"""The report on a memory plan."""

from __future__ import annotations

import io
import json

import pytest

from hetero_tvm import memory
from hetero_tvm.cli import memory_report
from hetero_tvm.errors import UsageError
from hetero_tvm.host.terminal import Console
from hetero_tvm.memory.model_plan import Arena, MemoryPlan, PlanError, Tensor


def make(offsets=None) -> MemoryPlan:
    tensors = (
        Tensor("a", "matmul", "m0", 0, 2, 128, ("/a",)),
        Tensor("b", "add", "m0", 1, 3, 128, ("/b",)),  # over a
        Tensor("c", "exp", "m1", 2, 4, 64),
        Tensor("workspace@3", "conv", "m2", 3, 4, 256, workspace=True),
    )
    arena = Arena("device 0", tensors, memory.Plan({}, 0, 0, True, "trivial", 0.0))
    plan = memory.plan(arena.problem, alignment=64)
    if offsets:
        plan = memory.Plan(offsets, plan.peak, plan.lower_bound, False, "by hand", 0.0, alignment=64)
    return MemoryPlan(
        (Arena("device 0", tensors, plan),),
        4,
        static_plan=448,
        outputs=32,
        in_place=("b",),
        refused={"conv: X": "element 0 is read after it was written"},
        stack={"attention": 1 << 20},
    )


def test_figures():
    figures = memory_report.report(make())
    assert (figures["naive"], figures["static_plan"], figures["peak"]) == (576, 448, 320)
    assert figures["lower_bound"] == 320 and figures["gap"] == 0
    assert (figures["tensors"], figures["buffers"], figures["workspaces"]) == (4, 3, 256)
    (arena,) = figures["arenas"]
    assert arena["fullest_step"] == 3 and [t["name"] for t in arena["largest"]] == ["workspace@3", "c"]
    assert memory_report.report(json.loads(json.dumps(make().to_json()))) == figures


@pytest.mark.parametrize("width", [80, 120])
def test_tables_name_what_matters(width):
    stream = io.StringIO()
    Console(stream, width).print(*memory_report.tables(make(), width))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for part in ("576", "448", "320", "1.000", "workspace@3", "conv: X", "is read after", "1,048,576"):
        assert part in text


@pytest.mark.thorough
def test_plot(tmp_path):
    (path,) = memory_report.plot(make(), tmp_path / "arena.png", "a model")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_plan_is_found():
    make().verify()
    with pytest.raises(PlanError, match="overlap"):
        make({"m0": 0, "m1": 64, "m2": 128}).verify()
    with pytest.raises(PlanError, match="aligned"):
        make({"m0": 1, "m1": 192, "m2": 256}).verify()


@pytest.mark.parametrize("damaged", [None, {}, {"version": 99}, {"version": 1, "arenas": [{}]}])
def test_no_plan(damaged):
    with pytest.raises(UsageError):
        memory_report.report(damaged)
