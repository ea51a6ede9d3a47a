"""Operators of Relax, one by one: each gets a schedule, and code generation takes it."""

import re

import pytest

from hetero_tvm.compile.kernels import apply_schedules
from hetero_tvm.compile.tasks import tasks_of
from hetero_tvm.errors import BuildError
from hetero_tvm.host.tvm import tvm
from hetero_tvm.relax_passes.pipeline import optimize
from hetero_tvm.targets.cuda import codegen, thread_binding
from tests.schedules.cuda.running import MACHINE, TARGET
from tests.targets.cuda.relax_operators import FORMS, NO_KERNEL, OPERATORS, POINTWISE, REFUSED, module_of


def tasks(makes):
    module, names = module_of(makes)
    with TARGET.scope():
        module, sources, _ = optimize(module, names, TARGET.fusions)
    return module, tasks_of(module, sources, TARGET)


def schedule(task):
    """As a build does: the default of a space, or what there is for any kernel."""
    if task.space is None:
        return TARGET.schedule_generic(task.workload)
    return task.space.emit(task.op, task.space.default(task.op, MACHINE), MACHINE)


@pytest.fixture(scope="module")
def scheduled():
    """Pairs of a task of one of the operators and its scheduled kernel."""
    return [(task, TARGET.stamp(schedule(task))) for task in tasks({**OPERATORS, **FORMS})[1]]


def test_the_list_is_complete():
    known = {name.removeprefix("relax.") for name in tvm.ir.Op.list_op_names() if name.startswith("relax.")}
    lists = (OPERATORS, REFUSED, NO_KERNEL)
    assert known == set().union(*lists) and len(known) == sum(map(len, lists))


@pytest.mark.thorough
def test_every_operator_is_scheduled(scheduled):
    served = {operator for task, _ in scheduled for call in task.calls for operator in call}
    every = {**OPERATORS, **FORMS}
    for operator in every.keys() - served:  # passes of TVM that rewrite it have lost its name
        assert tasks({operator: every[operator]})[1], operator
    for task, kernel in scheduled:
        assert thread_binding.is_bound(kernel), task


@pytest.mark.parametrize("operator", REFUSED)
def test_what_runs_on_the_host_only_is_refused(operator):
    module, found = tasks({operator: REFUSED[operator]})
    with pytest.raises(BuildError, match="no schedule makes a kernel for a GPU") as caught:
        apply_schedules(module, found, {}, {}, TARGET)
    assert "the host's library" in caught.value.problems[0] and "--target cpu" in caught.value.hint
    assert caught.value.message.startswith(tuple(task.name for task in found))


@pytest.mark.thorough
def test_they_become_machine_code(scheduled, compiler):
    """Functions of elements as one kernel, everything else each for itself."""
    module = tvm.IRModule(
        {
            task.name: kernel.with_attr("global_symbol", task.name)
            for task, kernel in scheduled
            if not POINTWISE.keys() >= {operator for call in task.calls for operator in call}
        }
    )
    with codegen.collect() as made:
        codegen.compile_kernels(module, TARGET.tvm_target)
    assert made[0].binary[:4] == b"\x7fELF"
    launched = {re.sub(r"_kernel(_\d+)?$", "", name) for name in made[0].launches}
    idle = {task.name for task, _ in scheduled if task.calls[0] == ("no element",)}
    assert launched == {variable.name_hint for variable in module.functions} - idle and len(idle) == 1
