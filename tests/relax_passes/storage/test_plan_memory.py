"""Memory plans of whole functions: right numbers, no more memory than planned."""

from __future__ import annotations

import json
import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.memory.model_plan import MemoryPlan
from hetero_tvm.reference import sample_inputs
from hetero_tvm.relax_passes.pipeline import lower
from hetero_tvm.relax_passes.storage.live_ranges import is_op_call
from hetero_tvm.relax_passes.storage.plan_memory import plan_memory
from tests.relax_passes.graphs import constant, module, op, weights
from tests.relax_passes.storage.lowered import TARGET, allocations, finish, legal, machine, planned, tensors
from tests.relax_passes.storage.test_live_ranges import Branches, Dynamic, explicit
from tests.selection import thorough


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["minilm-l6-tiny", "gpt2-small-tiny", "llama-160m-tiny", "resnet50-tiny"])
def test_models_take_what_is_planned_and_no_more(name, tmp_path):
    built = build_model(optimize_model(import_model(f"zoo:{name}")), logs=tmp_path, use_shipped=False)
    plan = built.memory
    plan.verify()
    assert plan.peak <= 1.01 * plan.lower_bound
    assert 0 < plan.peak <= plan.static_plan <= plan.naive
    assert plan.in_place and plan.lower_bound <= plan.arenas[0].live_without_sharing
    names = {node for tensor in plan.arenas[0].tensors for node in tensor.nodes}
    assert names and all(tensor.kernel for tensor in plan.arenas[0].tensors)
    again = MemoryPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again.to_json() == plan.to_json()

    inputs = sample_inputs(built.optimized.model, 0)
    arguments = tensors(*(inputs[spec.name] for spec in built.optimized.model.signature.inputs))
    vm = relax.VirtualMachine(built.executable, tvm.cpu())
    sizes = allocations(vm, arguments)
    assert sizes.count(plan.peak) == 1
    assert sum(sizes) == plan.peak + plan.outputs


@pytest.mark.thorough
def test_every_call_gets_the_same_arena_and_nothing_grows():
    # In a process of its own: threads and caches of other tests take and give back memory at any time.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(_growth, 1000).result() <= 256 << 10  # less than one byte of 32 KiB per call


def _growth(calls):
    """Bytes by which the resident memory grows in some calls of a planned function."""

    def body(emit, x):
        a = emit(op.exp(x))
        b = emit(op.matmul(a, constant(weights(64, 64))))
        return emit(op.add(emit(op.matmul(b, constant(weights(64, 64, seed=1)))), a))

    vm, plan = planned(module({"x": (64, 64)}, body))
    assert plan.peak > 0
    x = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    (argument,) = tensors(x)
    a = np.exp(x.astype("float64"))
    expected = a @ weights(64, 64) @ weights(64, 64, seed=1) + a
    for _ in range(20):
        result = vm["main"](argument).numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)  # float32 sums of 64 products
    before = _resident()
    for _ in range(calls):
        vm["main"](argument)
    return _resident() - before


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("condition", [True, False])
def test_branches(condition):
    lowered, plan = plan_memory(Branches)
    plan.verify()
    assert plan.peak <= 96 and plan.in_place  # three tensors of 32 bytes at most, of four
    x = weights(8)
    result = machine(finish(lowered))["main"](*tensors(x, np.array(condition)))
    np.testing.assert_array_equal(result.numpy(), x * 8)


def test_symbolic_shapes_take_their_upper_bound():
    dynamic = Dynamic.clone()
    main = dynamic["main"].with_attr("tir_var_upper_bound", {"n": 100})
    dynamic.update_func(dynamic.get_global_var("main"), main)
    lowered, plan = plan_memory(explicit(dynamic))
    assert plan.peak == plan.static_plan == 100 * 3 * 4
    vm = machine(finish(lowered))
    for rows in (1, 7, 100):
        x = weights(rows, 3)
        np.testing.assert_array_equal(vm["main"](*tensors(x)).numpy(), x * 4)


def test_machines_in_several_threads_have_arenas_of_their_own():
    def body(emit, x):
        for seed in range(6):
            x = emit(op.tanh(emit(op.matmul(x, constant(weights(48, 48, seed=seed))))))
        return x

    mod = module({"x": (48, 48)}, body)
    lowered, plan = lower(legal(mod))
    assert plan.peak > 0
    executable = TARGET.compile(lowered).executable
    inputs = [weights(48, 48, seed=100 + i) for i in range(4)]
    machines = [relax.VirtualMachine(executable, tvm.cpu()) for _ in inputs]
    expected = [machines[0]["main"](*tensors(x)).numpy() for x in inputs]
    wrong = []

    def serve(number):
        (argument,) = tensors(inputs[number])
        for _ in range(50):
            if not np.array_equal(machines[number]["main"](argument).numpy(), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=serve, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_views_of_the_arena_are_made_once_per_place_and_shape():
    def body(emit, x):
        for seed in range(8):
            x = emit(op.matmul(x, constant(weights(16, 16, seed=seed))))
        return x

    lowered, _ = plan_memory(explicit(legal(module({"x": (16, 16)}, body))))
    made = [
        binding
        for block in lowered["main"].body.blocks
        for binding in block.bindings
        if is_op_call(binding.value, "relax.memory.alloc_tensor")
    ]
    assert len(made) == 2  # one being read, one being written


@pytest.mark.parametrize("seed", [*range(4), *thorough(range(4, 8))])
def test_random_graphs_compute_what_numpy_does(seed):
    """Values used again at any distance, through views, as results, twice in one call."""
    rng = np.random.default_rng(seed)
    shapes = [(4, 16), (16, 4), (64,)]
    x = rng.standard_normal((4, 16)).astype("float32")
    truth = [x.astype("float64")]

    def body(emit, variable):
        values = [variable]
        for step in range(14):
            picked = rng.integers(max(0, len(values) - 5), len(values), 2)
            (a, b), (p, q) = (values[i] for i in picked), (truth[i] for i in picked)
            kind = rng.integers(5)
            if kind == 0:
                values.append(emit(op.tanh(a)))
                truth.append(np.tanh(p))
            elif kind == 1:
                shape = shapes[rng.integers(len(shapes))]
                values.append(emit(op.reshape(a, shape)))
                truth.append(p.reshape(shape))
            elif kind == 2 and p.ndim == 2:
                weight = weights(p.shape[1], p.shape[1], seed=step) * 0.3
                values.append(emit(op.matmul(a, constant(weight))))
                truth.append(p @ weight)
            elif kind == 3 and p.ndim == 2:
                values.append(emit(op.permute_dims(a)))
                truth.append(p.T)
            elif p.shape == q.shape:
                values.append(emit(op.add(a, b)))
                truth.append(p + q)
            else:
                values.append(emit(op.multiply(a, a)))
                truth.append(p * p)
        results = sorted({len(values) - 1, *rng.integers(1, len(values), 2).tolist()})
        truth[:] = [truth[i] for i in results]
        return tuple(values[i] for i in results)

    vm, plan = planned(module({"x": (4, 16)}, body))
    (argument,) = tensors(x)
    for _ in range(2):
        for actual, expected in zip(vm["main"](argument), truth, strict=True):
            scale = max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(actual.numpy() / scale, expected / scale, atol=2e-5)
        np.testing.assert_array_equal(argument.numpy(), x)
    assert plan.peak <= plan.static_plan
