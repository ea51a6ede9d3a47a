"""Regions of a model's operators: legal, consecutive, and complete, whatever the NPU refuses."""

import numpy as np
import pytest

from hetero_tvm import api
from hetero_tvm.relax_passes.rewriting.graph import variables_in
from hetero_tvm.targets.npu.regions.partition import partition
from hetero_tvm.targets.npu.regions.placement import place

REFUSED = "the test refuses it"


@pytest.fixture(scope="module")
def placed():
    model = api.optimize_model(api.import_model("zoo:gpt2-small-tiny"), "npu:edge")
    return place(model.module, model.tasks, model.target)


def refused(placed, seed):
    """Some tasks at random; none for seed 0."""
    keys = sorted({task.key for task in placed.task_of.values()})
    count = min(seed, len(keys) - 1)
    return dict.fromkeys(np.random.default_rng(seed).choice(keys, count, replace=False), REFUSED)


@pytest.mark.parametrize("seed", range(5))
def test_regions_run_one_after_another(placed, seed):
    regions, _ = partition(placed.module, placed.task_of, refused(placed, seed))
    bindings = [(b.var, b.value) for block in placed.module["main"].body.blocks for b in block.bindings]
    assert sorted(var.name for var, _ in regions.order) == sorted(var.name for var, _ in bindings)
    done, numbers = set(), []
    made = {var for var, _ in bindings}
    for var, value in regions.order:
        assert all(used in done for used in variables_in(value) if used in made)
        done.add(var)
        number = regions.region_of.get(var)
        if not numbers or numbers[-1] != number:
            numbers.append(number)
    ran = [number for number in numbers if number is not None]
    assert len(ran) == len(set(ran)), "a region is in several pieces"


@pytest.mark.parametrize("seed", range(5))
def test_the_account_has_every_operator(placed, seed):
    refusals = refused(placed, seed)
    regions, account = partition(placed.module, placed.task_of, refusals)
    assert account.placed + len(account.left) == account.operators
    assert sum(entry["reason"] == REFUSED for entry in account.left) >= len(refusals)
    assert account.placed_flops <= account.flops
    called = [
        (var, placed.task_of[value.args[0]])
        for var, value in regions.order
        if hasattr(value, "args") and value.args and value.args[0] in placed.task_of
    ]
    assert account.operators == len(called)
    on_npu = [task for var, task in called if var in regions.region_of]
    assert account.placed == len(on_npu) and not any(task.key in refusals for task in on_npu)
    assert account.placed_flops == sum(task.flops for task in on_npu)


def test_a_model_of_which_all_is_refused_has_no_region(placed):
    refusals = dict.fromkeys((task.key for task in placed.task_of.values()), REFUSED)
    regions, account = partition(placed.module, placed.task_of, refusals)
    assert not regions.region_of and account.placed == 0
    assert str(account).startswith(f"0 of {account.operators} operators, 0.0% of FLOPs on npu; ")
