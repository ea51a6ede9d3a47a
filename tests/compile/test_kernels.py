"""Tasks and the kernels made for them: every call is replaced, constants are packed once."""

import dataclasses
import json

import numpy as np
import pytest

from hetero_tvm.api import import_model, optimize_model
from hetero_tvm.compile.kernels import apply_choices, apply_schedules, usable_choices
from hetero_tvm.errors import BuildError
from hetero_tvm.records.choose import Choice
from hetero_tvm.relax_passes.rewriting.fused import is_call_tir, is_check
from hetero_tvm.schedules.task import symbol, task_key


@pytest.fixture(scope="module")
def optimized():
    return optimize_model(import_model("zoo:minilm-l6-tiny"), "cpu")


def called(module):
    """Names of the kernels that ``main`` calls, in order; without checks of indices."""
    bindings = (binding for block in module["main"].body.blocks for binding in block.bindings)
    functions = [b.value.args[0] for b in bindings if is_call_tir(b.value)]
    return [function.name_hint for function in functions if not is_check(module[function])]


def test_tasks_are_the_distinct_kernels_with_all_their_calls(optimized):
    assert len({task.key for task in optimized.tasks}) == len(optimized.tasks)
    assert sum(task.count for task in optimized.tasks) == len(called(optimized.module))
    for task in optimized.tasks:
        assert task.key == task_key(task.workload) and all(names for names in task.calls)
        assert task.space is None or task.space.refuses(task.op, optimized.machine) is None


def test_every_call_gets_a_kernel_with_its_tasks_name(optimized):
    module = apply_schedules(optimized.module, optimized.tasks, {}, {}, optimized.target, "_x")
    assert set(called(module)) == {symbol(task.name) + "_x" for task in optimized.tasks}
    assert len(called(module)) == len(called(optimized.module))


def test_constants_are_packed_as_the_point_says(optimized):
    task = next(task for task in optimized.tasks if task.name.startswith("matmul"))
    (index,) = task.space.pack(task.op, task.space.default(task.op, optimized.machine), optimized.machine)
    asked = []

    class Counting(type(task.space)):
        def pack(self, op, point, machine):
            return {index: lambda w: asked.append(w.shape) or np.zeros((3, 5), np.float32)}

    tasks = [dataclasses.replace(t, space=Counting()) if t is task else t for t in optimized.tasks]
    module = apply_schedules(optimized.module, tasks, {}, {}, optimized.target, "_x")
    assert asked == [tuple(task.op.inputs[index].shape)] * task.count
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    calls = [binding.value for binding in bindings if is_call_tir(binding.value)]
    calls = [call for call in calls if call.args[0].name_hint == symbol(task.name) + "_x"]
    assert len(calls) == task.count
    assert all(call.args[1].fields[index].value.numpy().shape == (3, 5) for call in calls)


def test_a_kernel_that_cannot_be_scheduled_names_its_nodes(optimized):
    class Refusing:
        def __getattr__(self, name):
            return getattr(optimized.target, name)

        def schedule_generic(self, function):
            raise BuildError("no schedule", hint="write one")

    tasks = [dataclasses.replace(task, space=None) for task in optimized.tasks]
    choices = {task.key: Choice(None, None, "default") for task in tasks}
    with pytest.raises(BuildError, match="no schedule") as caught:
        apply_choices(optimized.module, tasks, choices, Refusing())
    assert optimized.tasks[0].calls[0][0] in caught.value.message and caught.value.hint == "write one"


def test_a_trace_that_no_longer_applies_costs_the_record_not_the_build(optimized):
    generic = dataclasses.replace(optimized.tasks[0], space=None)
    broken = Choice(None, json.dumps([["Nonsense"], []]), "record 2026-01-01", 1e-6, "/logs/cpu-x.jsonl")
    with pytest.warns(UserWarning, match="record 2026-01-01 in /logs/cpu-x.jsonl does not apply") as caught:
        usable = usable_choices([generic], {generic.key: broken})
    assert generic.name in str(caught[0].message)
    assert usable == {generic.key: Choice(None, None, "default")}
