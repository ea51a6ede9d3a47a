"""Memory plans of whole functions: right numbers, no more memory than planned, in place only where safe."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.codegen.pipeline import STACK_LIMIT
from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.host.tvm import script_I as I
from hetero_tvm.host.tvm import script_R as R
from hetero_tvm.memory.model_plan import MemoryPlan
from hetero_tvm.reference import sample_inputs
from hetero_tvm.relax_passes.pipeline import lower
from hetero_tvm.relax_passes.storage.live_ranges import is_op_call
from hetero_tvm.relax_passes.storage.plan_memory import plan_memory
from hetero_tvm.schedules.emit import Kernel
from hetero_tvm.targets.registry import parse_target
from tests.frontend.onnx.helpers import add_weight, text_model
from tests.relax_passes.graphs import constant, module, op, weights
from tests.relax_passes.storage.test_live_ranges import Branches, Dynamic, explicit

TARGET = parse_target("cpu")


def finish(planned):
    """What ``lower`` does after planning."""
    passes = (
        relax.transform.LowerAllocTensor(), relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(), relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(), relax.transform.AttachGlobalSymbol(),
    )  # fmt: skip
    return tvm.transform.Sequential(list(passes))(planned)


def machine(lowered):
    return relax.VirtualMachine(TARGET.compile(lowered), tvm.cpu())


def legal(mod):
    passes = (relax.transform.LegalizeOps(), relax.transform.RewriteDataflowReshape())
    return tvm.transform.Sequential(list(passes))(mod)


def planned(mod):
    """(virtual machine, plan) of a module of Relax operators."""
    lowered, plan = lower(legal(mod))
    plan.verify()
    return machine(lowered), plan


def tensors(*arrays):
    return [tvm.runtime.tensor(array) for array in arrays]


def allocations(vm, arguments):
    """Bytes of each storage that one call takes, as the virtual machine's allocator is asked for them."""
    sizes = []

    def watch(_function, name, before, _result, *args):
        if before and name == "vm.builtin.alloc_storage":
            sizes.append(int(args[1][0]))
        return 0

    vm.set_instrument(watch)
    vm["main"](*arguments)
    vm.set_instrument(None)
    return sizes


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

    inputs = sample_inputs(built.plan.model, 0)
    arguments = tensors(*(inputs[spec.name] for spec in built.plan.model.signature.inputs))
    vm = relax.VirtualMachine(built.executable, tvm.cpu())
    sizes = allocations(vm, arguments)
    assert sizes.count(plan.peak) == 1
    assert sum(sizes) == plan.peak + plan.outputs


def test_every_call_gets_the_same_arena_and_nothing_grows():
    def body(emit, x):
        a = emit(op.exp(x))
        b = emit(op.matmul(a, constant(weights(64, 64))))
        return emit(op.add(emit(op.matmul(b, constant(weights(64, 64, seed=1)))), a))

    vm, plan = planned(module({"x": (64, 64)}, body))
    places = set()

    def watch(_function, name, before, _result, *args):
        if before and name.startswith("matmul"):
            places.add(args[0].data_ptr() if hasattr(args[0], "data_ptr") else id(args[0]))
        return 0

    x = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    (argument,) = tensors(x)
    a = np.exp(x.astype("float64"))
    expected = a @ weights(64, 64) @ weights(64, 64, seed=1) + a
    for _ in range(20):
        result = vm["main"](argument).numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)  # float32 sums of 64 products
    before = _resident()
    for _ in range(1000):
        vm["main"](argument)
    assert _resident() - before <= 256 << 10  # less than one byte of its 32 KiB per call
    assert plan.peak > 0


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_inputs_constants_and_what_is_read_later_stay_as_they_are():
    weight = weights(4, 16)

    def body(emit, x):
        a = emit(op.add(x, constant(weight)))  # x is the user's, the weight a constant
        b = emit(op.exp(a))
        c = emit(op.multiply(a, b))
        return emit(op.subtract(c, x))

    vm, plan = planned(module({"x": (4, 16)}, body))
    assert len(plan.in_place) == 2  # c over b (or a), and the result over c: never over x
    x = weights(4, 16, seed=3)
    (argument,) = tensors(x)
    for _ in range(2):  # a constant that was written over would show in the second call
        a = (x + weight).astype("float64")
        np.testing.assert_allclose(vm["main"](argument).numpy(), a * np.exp(a) - x, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(argument.numpy(), x)


def test_a_view_keeps_its_memory_from_being_written_over():
    def body(emit, x):
        a = emit(op.exp(x))
        view = emit(op.reshape(a, (64,)))
        b = emit(op.negative(a))  # a dies here but for its view
        c = emit(op.reshape(b, (64,)))
        return emit(op.add(view, c))

    vm, _ = planned(module({"x": (4, 16)}, body))
    x = weights(4, 16)
    np.testing.assert_allclose(vm["main"](*tensors(x)).numpy(), np.zeros(64), atol=1e-6)


def test_the_same_tensor_twice():
    vm, plan = planned(module({"x": (4, 16)}, lambda emit, x: emit(op.multiply(*[emit(op.exp(x))] * 2))))
    assert plan.peak == 0 and len(plan.in_place) == 1  # in the memory of the result
    x = weights(4, 16)
    np.testing.assert_allclose(vm["main"](*tensors(x)).numpy(), np.exp(x) ** 2, rtol=1e-5)


def test_no_sharing_when_asked():
    mod = legal(module({"x": (4, 16)}, lambda emit, x: emit(op.exp(emit(op.negative(emit(op.exp(x))))))))
    _, apart = plan_memory(explicit(mod), share=False)
    _, shared = plan_memory(explicit(mod))
    assert not apart.in_place and len(shared.in_place) == 2
    assert apart.peak == 512 and shared.peak == 0


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


@I.ir_module
class External:
    @R.function
    def main(x: R.Tensor((8,), "float32")):
        with R.dataflow():
            a = R.call_dps_packed("hetero_tvm_test.scale", (x,), out_ty=R.Tensor((8,), "float32"))
            b = R.call_dps_packed("hetero_tvm_test.scale", (a,), out_ty=R.Tensor((8,), "float32"))
            c = R.call_dps_packed("hetero_tvm_test.scale", (b,), out_ty=R.Tensor((8,), "float32"))
            R.output(c)
        return c


def test_external_functions_get_their_workspace_from_the_arena():
    seen = []

    @tvm.register_global_func("hetero_tvm_test.scale", override=True)
    def scale(x, y, workspace):
        seen.append((str(workspace.dtype), workspace.shape[0]))
        y.copyfrom(x.numpy() * 2)

    mod = External.with_attr("hetero_tvm.workspaces", {"hetero_tvm_test.scale": 1000})
    lowered, plan = plan_memory(explicit(mod))
    plan.verify()
    (arena,) = plan.arenas
    assert [t.nbytes for t in arena.tensors if t.workspace] == [1000] * 3
    assert plan.peak == 1000 + 24 + 64 + 32  # a and b at 64 bytes each, and one workspace at a time
    assert not plan.in_place  # nothing is known of what an external function reads when
    x = weights(8)
    np.testing.assert_array_equal(machine(finish(lowered))["main"](*tensors(x)).numpy(), x * 8)
    assert seen == [("uint8", 1000)] * 3


def test_machines_in_several_threads_have_arenas_of_their_own():
    def body(emit, x):
        for seed in range(6):
            x = emit(op.tanh(emit(op.matmul(x, constant(weights(48, 48, seed=seed))))))
        return x

    mod = module({"x": (48, 48)}, body)
    lowered, plan = lower(legal(mod))
    assert plan.peak > 0
    executable = TARGET.compile(lowered)
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


def test_large_scratch_of_kernels_is_planned():
    k = Kernel()
    with k:
        x, y = k.argument("x", (STACK_LIMIT,)), k.argument("y", (STACK_LIMIT,))
        scratch = k.scratch((STACK_LIMIT,))
        with k.parallel(STACK_LIMIT) as i:
            k.store(scratch, k.load(x, [i]) * 3.0, [i])
        with k.parallel(STACK_LIMIT) as i:
            k.store(y, k.load(scratch, [STACK_LIMIT - 1 - i]), [i])
    builder = relax.BlockBuilder()
    ty = relax.TensorType((STACK_LIMIT,), "float32")
    variable = relax.Var("x", ty)
    with builder.function("main", [variable]):
        with builder.dataflow():
            function = builder.add_func(k.function.without_attr("global_symbol"), "turn")
            first = builder.emit(relax.call_tir(function, [variable], out_ty=ty))
            second = builder.emit_output(builder.emit(relax.call_tir(function, [first], out_ty=ty)))
        builder.emit_func_output(second)
    lowered, plan = lower(builder.get())
    plan.verify()
    size = 4 * STACK_LIMIT
    # The first call writes to the memory of the result already, which the second one turns in place.
    assert [t.nbytes for t in plan.arenas[0].tensors if t.workspace] == [size, size]
    assert plan.peak == size and len(plan.in_place) == 1 and not plan.stack
    data = weights(STACK_LIMIT)
    vm = machine(lowered)
    np.testing.assert_allclose(vm["main"](*tensors(data)).numpy(), data * 9, rtol=1e-6)
    assert sum(allocations(vm, tensors(data))) == plan.peak + plan.outputs


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


@pytest.mark.parametrize("seed", range(8))
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


def residual_chain(layers):
    """Norms of sums that the next layer needs as well; ``layers`` of them, each kernel with two results."""
    model = text_model(
        "g (float[2, 5, 24] x, float[2, 5, 24] r) => (float[2, 5, 24] y, float[2, 5, 24] s) {\n"
        "  a0 = Exp(x)\n"
        + "\n".join(
            f"  b{i} = Sin(a{i})\n  s{i} = Add(b{i}, {f's{i - 1}' if i else 'r'})\n"
            f"  n{i} = LayerNormalization<axis=-1>(s{i}, scale)\n  a{i + 1} = Cos(n{i})"
            for i in range(layers)
        )
        + f"\n  y = Identity(a{layers})\n  s = Identity(s{layers - 1})\n}}"
    )
    return add_weight(model, "scale", weights(24))


def test_kernels_with_two_results(tmp_path):
    """Sum and norm both lie in the arena; either takes the place of an operand that nobody needs again."""
    built = build_model(
        optimize_model(import_model(residual_chain(3))), logs=tmp_path / "logs", use_shipped=False
    )
    assert sum(len(task.calls) for task in built.plan.tasks if task.name.startswith("add_layer_norm")) == 3
    plan = built.memory
    plan.verify()
    assert plan.peak <= 1.01 * plan.lower_bound and plan.peak <= plan.static_plan
    assert {task.name for task in built.plan.tasks if task.op is not None} == {"add_layer_norm_10x24"}
    assert not [why for why in plan.refused if why.startswith("add_layer_norm")], plan.refused
    # The first sum cannot lie over r, which is the user's; of the later sums each lies over the one before.
    assert len(plan.in_place) >= 6

    vm = relax.VirtualMachine(built.executable, tvm.cpu())
    x, r = weights(2, 5, 24, seed=1), weights(2, 5, 24, seed=2)
    a, s = np.exp(x.astype("float64")), r.astype("float64")
    for _ in range(3):
        s = np.sin(a) + s
        centered = s - s.mean(-1, keepdims=True)
        norm = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * weights(24)
        a = np.cos(norm)
    arguments = tensors(x, r)
    for _ in range(2):
        results = [result.numpy() for result in vm["main"](*arguments)]
        np.testing.assert_allclose(results[0], a, atol=1e-4)  # three norms of float32 on top of one another
        np.testing.assert_allclose(results[1], s, atol=1e-4)
        np.testing.assert_array_equal(arguments[1].numpy(), r)
